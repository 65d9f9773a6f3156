"""What a step has made: its files, their hashes, and whether they are still what they were.

A hash is computed once; afterwards size, mtime and inode vouch for it.  When one of them differs, the file is hashed
again: a copied directory costs one pass, a changed file is found.  ``deep`` hashes everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from k25stack.files import manifest_hash, sha256_file

Entry = tuple[str, int, int, int]  # sha256, size, mtime_ns, inode


@dataclass(frozen=True)
class Tree:
    """The files below a directory (or one file, under its own name) with their hashes."""

    root: Path
    files: dict[str, Entry]

    def path(self, part: str = "") -> Path:
        return self.root / part if part else self.root

    def content(self, part: str = "", volatile: Iterable[str] = ()) -> str:
        """One hash of all files (of those at or below ``part``) that are not volatile."""
        patterns = tuple(volatile)
        chosen = {
            name: entry[0]
            for name, entry in self.files.items()
            if (not part or name == part or name.startswith(part + "/"))
            and not any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        return manifest_hash(dict(sorted(chosen.items())))

    @property
    def bytes(self) -> int:
        return sum(entry[1] for entry in self.files.values())

    def as_json(self) -> dict[str, list[Any]]:
        return {name: list(entry) for name, entry in self.files.items()}


def from_json(root: Path, raw: dict[str, list[Any]]) -> Tree:
    return Tree(root, {name: (str(e[0]), int(e[1]), int(e[2]), int(e[3])) for name, e in raw.items()})


def scan(root: Path, known: dict[str, Entry] | None = None, deep: bool = False) -> Tree:
    """Hash the files of ``root``; those of ``known`` whose size, mtime and inode stand are not read again."""
    found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    names = [path.name if path == root else path.relative_to(root).as_posix() for path in found]
    earlier = [None if deep or known is None else known.get(name) for name in names]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        entries = list(pool.map(_entry, found, earlier))
    return Tree(root.parent if root.is_file() else root, dict(zip(names, entries, strict=True)))


def _entry(path: Path, known: Entry | None) -> Entry:
    before = path.stat()
    mark = (before.st_size, before.st_mtime_ns, before.st_ino)
    if known is not None and known[1:] == mark:
        return known
    return (sha256_file(path), *mark)


def damage(old: Tree, now: Tree) -> list[str]:
    """One line per file that is gone or altered; files that came in addition are none of our business."""
    lines = []
    for name, entry in old.files.items():
        if name not in now.files:
            lines.append(f"{name} is gone")
        elif now.files[name][0] != entry[0]:
            kind = "truncated" if now.files[name][1] < entry[1] else "altered"
            lines.append(f"{name} was {kind}")
    return lines
