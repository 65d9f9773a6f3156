"""The one gate to other programs, and what /proc knows of processes: identity, kin, memory (standard library only)."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k25stack.errors import HostError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Entry:
    """One line of the process table."""

    pid: int
    name: str  # as the kernel keeps it, 15 characters at most
    parent: int
    session: int
    rss_pages: int
    started: int  # clock ticks since boot
    zombie: bool


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
    entry = _entry(pid)
    return None if entry is None or entry.zombie else entry.started


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


def snapshot() -> dict[int, Entry]:
    """All processes of this host by pid; those that vanish meanwhile are left out."""
    found: dict[int, Entry] = {}
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries if entry.name.isdigit()]
    for name in names:
        if (entry := _entry(int(name))) is not None:
            found[entry.pid] = entry
    return found


def _entry(pid: int) -> Entry | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - a Path costs more than the read
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return None
    name, fields = head.partition(b"(")[2].decode(errors="replace"), rest.split()
    return Entry(pid, name, int(fields[1]), int(fields[3]), int(fields[21]), int(fields[19]), fields[0] == b"Z")


def descendants(processes: Mapping[int, Entry], roots: Iterable[int]) -> set[int]:
    """Pids of all that ``roots`` started, and of what those started; the roots themselves are not among them."""
    children: dict[int, list[int]] = {}
    for entry in processes.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def members(processes: Mapping[int, Entry], roots: Iterable[int]) -> set[int]:
    """Pids of ``roots``, their descendants and their sessions, as far as they are alive.

    A grandchild whose parent died is no descendant any more, but still of the session.
    """
    sessions = set(roots)
    wanted = {entry.pid for entry in processes.values() if entry.pid in sessions or entry.session in sessions}
    return {pid for pid in wanted | descendants(processes, wanted) if not processes[pid].zombie}


def rss_gb(processes: Mapping[int, Entry], pids: Iterable[int]) -> float:
    """Sum of resident set sizes in GB (10^9 bytes); pages shared by several processes count once each."""
    return sum(processes[pid].rss_pages for pid in pids if pid in processes) * PAGE / 1e9
