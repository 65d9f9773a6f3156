"""A draft directory that is there whole or not at all (no torch)."""

from __future__ import annotations

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

    Raises UsageError when ``path`` holds anything but an earlier draft.
    """
    if path.is_dir() and (foreign := sorted({child.name for child in path.iterdir()} - OWN_FILES)):
        raise UsageError(f"it holds {foreign[0]}, no part of a draft", where=str(path), remedy="choose another")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    aside = part.with_suffix(".old")
    try:
        yield part
        part.chmod(0o755)
        sync_directory(part)
        if path.exists():
            path.rename(aside)
        part.rename(path)
        sync_directory(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def sweep(path: Path) -> None:
    """Remove what a killed try left beside ``path``; only for a place that no other process writes."""
    for pattern in (f".{path.name}.*.part", f".{path.name}.*.old"):
        for stale in path.parent.glob(pattern):
            shutil.rmtree(stale)
