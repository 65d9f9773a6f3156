"""A recording: what was read from a host, as a directory that people can look at and edit."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, HostError, UsageError
from k25stack.files import read_json, write_json, write_text
from k25stack.host.mask import mask
from k25stack.host.seen import Reading, Seen
from k25stack.host.sources import Source

INDEX = "recording.json"
SCHEMA = 1


def read_recording(directory: Path, sources: Sequence[Source]) -> Seen:
    """The sources that the directory holds.  Without an index nothing is known to be absent.  Raises UsageError."""
    if not directory.is_dir():
        raise UsageError("no such directory", where=str(directory), remedy="k25stack check host --record DIR makes one")
    readings: dict[str, Reading] = {}
    for source in sources:
        for place in _places(directory, source):
            readings[place] = _read(directory, place)
    index = _index(directory)
    absent = frozenset(str(place) for place in index.get("absent", ()))
    if not readings and not absent:
        raise UsageError(
            "no recording of a host in it", where=str(directory), remedy="k25stack check host --record DIR makes one"
        )
    return Seen(readings, absent)


def _places(directory: Path, source: Source) -> list[str]:
    if source.kind != "files":
        path = directory / source.place
        return [source.place] if path.is_file() or path.with_name(path.name + ".rc").is_file() else []
    found = sorted(path.relative_to(directory).as_posix() for path in directory.glob(source.place) if path.is_file())
    return [place for place in found if not place.endswith(".rc")]


def _read(directory: Path, place: str) -> Reading:
    path, code = directory / place, directory / f"{place}.rc"
    try:
        text = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else ""
        rc = code.read_text(encoding="utf-8").strip() if code.is_file() else "0"
    except OSError as error:
        raise HostError(error.strerror or "cannot be read", where=str(path), remedy="check its permissions") from None
    if not rc.isdigit() or int(rc) > 255:
        raise DamageError(f"{rc[:20]!r} is no exit code", where=str(code), remedy="write a number from 0 to 255")
    return Reading(text, int(rc))


def _index(directory: Path) -> dict[str, Any]:
    path = directory / INDEX
    if not path.is_file():
        return {}
    try:
        found = read_json(path)
    except ValueError:
        raise DamageError("no JSON", where=str(path), remedy="remove it, or record again") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("absent", []), list):
        raise DamageError("no index of a recording of this version", where=str(path), remedy="record again")
    return found


def write_recording(directory: Path, seen: Seen, profile: str, taken: str) -> int:
    """Write a recording with serials, addresses and names masked; returns the number of files.

    The directory must be new or empty; it appears under its name only when it is whole.
    """
    if directory.exists() and any(directory.iterdir()):
        raise UsageError("is not empty", where=str(directory), remedy="give a new directory")
    masked = mask(seen)
    part = directory.with_name(f".{directory.name}.part")
    if part.exists():
        raise HostError("a half-written recording is in the way", where=str(part), remedy="remove it")
    written = 0
    try:
        part.mkdir(parents=True)
        for place, reading in sorted(masked.readings.items()):
            write_text(part / place, reading.text)
            if reading.rc:
                write_text(part / f"{place}.rc", f"{reading.rc}\n")
            written += 1
        index = {"schema": SCHEMA, "profile": profile, "taken": taken, "masked": True, "absent": sorted(masked.absent)}
        write_json(part / INDEX, index)
        if directory.exists():
            directory.rmdir()
        part.replace(directory)
    except OSError as error:
        _remove(part)
        why = "no space left" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise HostError(why, where=str(directory), remedy="free space or choose another directory") from None
    return written


def _remove(directory: Path) -> None:
    """A directory that this module has just made."""
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()
