"""Which processes belong to a job, and how much memory they hold (standard library only, Linux /proc).

A job's processes are the descendants of its keeper plus everything in the keeper's session: a grandchild whose parent
died is still found.  Memory is the sum of resident set sizes, so pages shared by several processes count once each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Entry:
    pid: int
    parent: int
    session: int
    rss_pages: int
    started: int  # clock ticks since boot
    zombie: bool


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
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Entry(pid, int(fields[1]), int(fields[3]), int(fields[21]), int(fields[19]), fields[0] == b"Z")


def members(processes: dict[int, Entry], roots: Iterable[int]) -> set[int]:
    """Pids of ``roots``, their descendants and their sessions, as far as they are alive."""
    wanted = {pid for pid in roots if pid in processes}
    sessions = {pid for pid in roots if any(entry.session == pid for entry in processes.values())}
    children: dict[int, list[int]] = {}
    for entry in processes.values():
        children.setdefault(entry.parent, []).append(entry.pid)
        if entry.session in sessions:
            wanted.add(entry.pid)
    queue = list(wanted)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in wanted:
                wanted.add(child)
                queue.append(child)
    return {pid for pid in wanted if not processes[pid].zombie}


def rss_gb(processes: dict[int, Entry], pids: Iterable[int]) -> float:
    """Sum of resident set sizes in GB (10^9 bytes)."""
    return sum(processes[pid].rss_pages for pid in pids if pid in processes) * PAGE / 1e9
