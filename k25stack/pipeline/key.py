"""The key of a step: what decides its result, as one hash, and which field made it another one.

The key is the sha256 of the canonical JSON of *fields*::

    {"protocol": 1, "code": {room: hash}, "packages": {name: version}, "image": digest or null,
     "argv": [with placeholders], "params": {...}, "env": {declared only}, "input": {name: content hash},
     "file": {name: content hash}, "service": {...} for a measurement, "host": {...} for a measurement}

Secrets and paths never enter.  Neither do the package's root utilities (errors, atomic files, process identity, the
worker protocol): they carry bytes and signals and hold no mathematics; ``protocol`` counts up when their meaning
changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from k25stack.errors import HostError
from k25stack.files import canonical_json, manifest_hash, sha256_file, sha256_text
from k25stack.pipeline.step import Step

PROTOCOL = 1
PACKAGE = Path(__file__).resolve().parents[1]
CODE = (".py", ".json", ".yaml", ".j2", ".css")


@cache
def code_hash(room: str, root: Path = PACKAGE) -> str:
    """Hash of a room's source and data files (names and bytes); ``room/module.py`` stands for that file alone.

    A step names single files of rooms that it only shares a file format with, so that work on the trainer, say, does
    not make the answers anew.
    """
    place = root / room
    if place.is_file():
        return sha256_file(place)
    found = sorted(path for path in place.rglob("*") if path.suffix in CODE and _is_code(path.relative_to(place)))
    if not found:
        raise HostError(f"no code of room {room!r}", where=str(place), remedy="reinstall k25stack")
    return manifest_hash({path.relative_to(place).as_posix(): sha256_file(path) for path in found})


def _is_code(path: Path) -> bool:
    return not any(part.startswith((".", "__pycache__")) for part in path.parts)


@cache
def package_version(name: str) -> str:
    """The version that is installed.  Raises HostError when it is not."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise HostError(f"{name} is not installed", remedy="make env, or pip install 'k25stack[demo]'") from None


def fields(
    step: Step,
    inputs: Mapping[str, str],
    files: Mapping[str, str],
    host: Mapping[str, Any],
    root: Path = PACKAGE,
) -> dict[str, Any]:
    """The document behind the key.  ``inputs`` and ``files`` are content hashes; ``host`` enters a measurement's only.

    Inputs that are not known yet may be left out: then the fields serve for comparison, not for a key.
    """
    service = step.service
    rooms = sorted({*step.rooms, *(service.rooms if service else ())})
    packages = sorted({*step.packages, *(service.packages if service else ())})
    if step.image is not None:  # its content decides what is installed, not this environment
        packages = []
    document: dict[str, Any] = {
        "protocol": PROTOCOL,
        "code": {room: code_hash(room, root) for room in rooms},
        "packages": {name: package_version(name) for name in packages},
        "image": step.image,
        "argv": list(step.argv),
        "params": dict(step.params),
        "env": dict(step.env),
        "input": dict(inputs),
        "file": dict(files),
    }
    if service:
        document["service"] = {"argv": list(service.argv), "env": dict(service.env), "image": service.image}
    if step.kind == "measurement":
        document["host"] = dict(host)
    return dict(json.loads(canonical_json(document)))  # as it is read back: lists, no tuples


def key_of(document: Mapping[str, Any]) -> str:
    return sha256_text(canonical_json(document))


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted names of the fields that differ, with the old and the new value (None: absent)."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    return {name: (before.get(name), after.get(name)) for name in names}


def _leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and (item or not prefix):
            found += _leaves(item, f"{prefix}{name}.")
        elif isinstance(item, list) and item and all(isinstance(part, Mapping) for part in item):
            found += _leaves({str(index): part for index, part in enumerate(item)}, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", item))
    return found
