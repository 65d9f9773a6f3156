"""The one gate to other programs, and the identity of a process (standard library only)."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from k25stack.errors import HostError


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    quiet: bool = True,
    remedy: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return it with its text output.

    ``env`` is added to this process's environment.  ``quiet=False`` prints the command first (stderr).
    Raises HostError when the program is missing, runs out of time or, with ``check``, exits non-zero.
    """
    line = shlex.join(argv)
    if not quiet:
        print(f"+ {line}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            list(argv),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError:
        raise HostError(f"no such program: {argv[0]}", where=line, remedy=remedy or "install it") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"no end after {timeout_s:g} s", where=line, remedy=remedy) from None
    if check and done.returncode != 0:
        tail = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise HostError(f"exit {done.returncode}: {tail[0]}", where=line, remedy=remedy)
    return done


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which ``pid`` started (field 22 of /proc/PID/stat), or None when it is gone.

    A pid alone is reused; a pid with its start time names one process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def alive(pid: int, started: int) -> bool:
    """True while the process with this pid and start time runs (a zombie does not)."""
    return start_time(pid) == started
