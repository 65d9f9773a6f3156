"""Why the engine ended, and whether starting it again can help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from k25stack.watch.policy import STAY_DOWN

OWN_CGROUP = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
HOST = Path("/proc/vmstat")
KILLED = 137  # 128 + SIGKILL
# Restarts are counted by these, by the ways of missing a look, and by the policy's own fatal markers.
CAUSES = ("error", "ended", "signal", "killed", "oom", "gpu_oom", "port_taken", "unfit", "never_ready")


@dataclass(frozen=True)
class Cause:
    """``kind`` is for machines, ``text`` for people (with the remedy)."""

    kind: str
    text: str
    restart: bool = True


REMEDY = {
    "gpu_lost": "stop everything on the card, power-cycle the host, check seating, power and risers",
    "gpu_reset": "reset the card (nvidia-smi --gpu-reset) or reboot the host, then start again",
    "gpu_oom": "lower the engine's memory fraction, context or running requests",
    "port_taken": "stop whoever listens there",
}


def of_exit(code: int, marker: tuple[str, str] | None, oom: str | None) -> Cause:
    """The cause of an end that nobody asked for.

    ``code``: 128 + signal when a signal ended it.  ``marker``: name and log line of the last fatal marker.
    ``oom``: who counted an out-of-memory kill meanwhile.
    """
    if marker is not None:
        name, line = marker
        return Cause(name, f"exit {code}; its log: {line} ({REMEDY.get(name, 'read the log')})", name not in STAY_DOWN)
    if code == KILLED and oom:
        return Cause("oom", f"out of memory: {oom} counted an out-of-memory kill (raise the memory limit, or lower "
                     "what the engine keeps in host memory)")  # fmt: skip
    if code == KILLED:
        return Cause("killed", "exit 137: killed by SIGKILL, and no out-of-memory kill was counted (somebody's "
                     "kill -9, or a limit outside this container)")  # fmt: skip
    if code == 0:
        return Cause("ended", "ended by itself with code 0; a server goes on until it is stopped")
    if code > 128:
        return Cause("signal", f"ended by signal {code - 128} (read the log)")
    return Cause("error", f"ended with code {code} (read the log)")


def of_heartbeat(kind: str, text: str, marker: tuple[str, str] | None) -> Cause:
    """The cause of a kill by us: misses of ``kind``, or a lost card that the log named."""
    if marker is not None and marker[0] in STAY_DOWN:
        return Cause(marker[0], f"{text}; its log: {marker[1]} ({REMEDY[marker[0]]})", False)
    return Cause(kind, text)


def oom_counter() -> Callable[[], str | None]:
    """Note the kernel's counts of out-of-memory kills now; the function returned says who counted one since."""
    before = _oom_kills()

    def look() -> str | None:
        now = _oom_kills()
        return next((who for who, count in now.items() if count > before.get(who, count)), None)

    return look


def _oom_kills() -> dict[str, int]:
    """Whoever counts -> kills so far: this container (cgroup v2, then v1), then the whole host."""
    counts: dict[str, int] = {}
    for path in (*_cgroup_files(), HOST):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        if "oom_kill" in words:
            counts["the host" if path == HOST else "this container"] = int(words[words.index("oom_kill") + 1])
    return counts


def _cgroup_files() -> list[Path]:
    """In a container the own group is the mounted root, on a host it lies below."""
    files: list[Path] = []
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return files
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            files += [
                MOUNT / "memory" / "memory.oom_control",
                MOUNT / "memory" / path.lstrip("/") / "memory.oom_control",
            ]
        elif not controllers:
            files += [MOUNT / "memory.events", MOUNT / path.lstrip("/") / "memory.events"]
    return files
