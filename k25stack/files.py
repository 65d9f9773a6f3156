"""Files that are either whole or absent, and the hashes that name their content (standard library only)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN.  Raises ValueError for NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in 1 MiB pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def content_manifest(root: Path) -> dict[str, str]:
    """Relative path -> sha256 of every file below ``root`` (or of the one file), sorted by path."""
    if root.is_file():
        return {root.name: sha256_file(root)}
    found = sorted(p for p in root.rglob("*") if p.is_file())
    return {p.relative_to(root).as_posix(): sha256_file(p) for p in found}


def manifest_hash(manifest: dict[str, str]) -> str:
    """One hash for a whole tree: what a later step's key holds for this input."""
    return sha256_text(canonical_json(manifest))


def sync_directory(path: Path) -> None:
    """Make a rename in ``path`` survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same directory that becomes ``path`` when the block ends without an error.

    Readers see the old file or the new one, never a part.  On an error the temporary file goes away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = str(path)  # a write that finds the disk full does not say where, unlike an open
        raise
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON (indented, keys in the given order) whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises ValueError for what is no JSON, or nested without end; OSError when it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested without end") from None
