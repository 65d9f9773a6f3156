"""Does a compiler run below us?  Then an engine that makes no token is at work, not stuck."""

from __future__ import annotations

import os

from k25stack.proc import descendants, snapshot

# Names as the kernel keeps them.  An engine's kernels are built by ninja and nvcc (which runs cicc and ptxas), by
# Triton with ptxas, or by a C++ compiler.
COMPILERS = frozenset(
    ("ninja", "nvcc", "cicc", "ptxas", "nvlink", "fatbinary", "cudafe++", "c++", "g++", "gcc", "cc1plus", "clang++")
)


def compilers(root: int) -> tuple[str, ...]:
    """Names of the compilers among the descendants of process ``root``, each once, sorted."""
    processes = snapshot()
    below = (processes[pid] for pid in descendants(processes, [root]))
    return tuple(sorted({entry.name for entry in below if not entry.zombie} & COMPILERS))


def ours() -> tuple[str, ...]:
    """Of this process: all that it has below it belongs to its engine."""
    return compilers(os.getpid())
