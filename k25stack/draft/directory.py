"""A draft directory that is there whole or not at all (no torch)."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k25stack.draft.provenance import CONFIG, PROVENANCE, WEIGHTS
from k25stack.errors import UsageError
from k25stack.files import sync_directory

OWN_FILES = {CONFIG, WEIGHTS, PROVENANCE, "result.json"}


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """A temporary directory beside ``path`` that takes its place when the block ends without an error.

    What a killed try left there is removed first.  Raises UsageError when ``path`` holds anything but an earlier draft.
    """
    if path.is_dir() and (foreign := sorted({child.name for child in path.iterdir()} - OWN_FILES)):
        raise UsageError(f"it holds {foreign[0]}, no part of a draft", where=str(path), remedy="choose another")
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    aside, replaces = part.with_suffix(".old"), path.exists()
    try:
        with held(part):
            yield part
            part.chmod(0o755)
            sync_directory(part)
            if path.exists():
                if not replaces:
                    raise UsageError("another process wrote it meanwhile", where=str(path), remedy="choose another")
                path.rename(aside)
            part.rename(path)
            sync_directory(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def held(part: Path) -> Iterator[bool]:
    """Lock a directory for as long as this process works on it; False when another one does."""
    handle = os.open(part, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except BlockingIOError:
            ours = False
        yield ours
    finally:
        os.close(handle)


def sweep(path: Path) -> None:
    """Remove what a killed try left beside ``path``; what another process still writes stays.

    Killed between the two renames, a try leaves the earlier draft aside: it comes back.
    """
    for stale in path.parent.glob(f".{path.name}.*.old"):
        if path.exists():
            shutil.rmtree(stale)
        else:
            stale.rename(path)
    for stale in path.parent.glob(f".{path.name}.*.part"):
        with held(stale) as ours:
            if ours:
                shutil.rmtree(stale)
