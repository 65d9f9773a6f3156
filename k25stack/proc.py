"""The one gate to other programs, and the identity of a process (standard library only)."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from k25stack.errors import HostError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


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


def die_with(parent: int) -> Callable[[], None]:
    """What a child runs before its program (``preexec_fn``): the kernel kills it when ``parent`` is gone."""
    import ctypes  # only keepers of other programs need it

    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)

    return prepare


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent died, as pid 1 of a container is anyway."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Pids of this process's children, ended ones that were not waited for included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except OSError:  # that thread is gone
            continue
    return found
