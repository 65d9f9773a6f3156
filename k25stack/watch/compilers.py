"""Does a compiler run below us?  Then an engine that makes no token is at work, not stuck."""

from __future__ import annotations

import os
from pathlib import Path

# Names as the kernel keeps them.  An engine's kernels are built by ninja and nvcc (which runs cicc and ptxas), by
# Triton with ptxas, or by a C++ compiler.
COMPILERS = frozenset(
    ("ninja", "nvcc", "cicc", "ptxas", "nvlink", "fatbinary", "cudafe++", "c++", "g++", "gcc", "cc1plus", "clang++")
)


def compilers(root: int, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Names of the compilers among the descendants of process ``root``, each once, sorted."""
    names: dict[int, str] = {}
    below: dict[int, list[int]] = {}
    for place in proc.iterdir():
        if not place.name.isdecimal():
            continue
        try:
            head, _, rest = (place / "stat").read_text(errors="replace").rpartition(")")
        except OSError:  # it ended meanwhile
            continue
        state, parent = rest.split()[:2]
        if state != "Z":
            names[int(place.name)] = head.partition("(")[2]
            below.setdefault(int(parent), []).append(int(place.name))
    found: set[str] = set()
    ahead = [root]
    while ahead:
        for pid in below.get(ahead.pop(), ()):
            found.add(names[pid])
            ahead.append(pid)
    return tuple(sorted(found & COMPILERS))


def ours() -> tuple[str, ...]:
    """Of this process: all that it has below it belongs to its engine."""
    return compilers(os.getpid())
