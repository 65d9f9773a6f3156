"""The keeper of one program: ``python -m k25stack.jobs.shim DIRECTORY`` (standard library only).

The keeper is the leader of a new session, so neither a lost terminal nor the death of the command that started it
reaches the program.  It starts the program of ``job.json``, adds up the memory of the process tree, passes SIGTERM
on, and writes ``exit.json`` whole when the program ends.  If the keeper itself is killed, the kernel kills the
program.  Files in DIRECTORY::

    job.json    argv, declared environment, log (values of passed variables are in this process only)
    pid.json    keeper and program: pid and start time
    owners.json who needs a scoped service: pids and start times, or locks that are held (written by the runner)
    exit.json   code, started, ended, peak_rss_gb
    lock        locked (flock, inherited from the submitting command) while the keeper lives
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from k25stack.files import read_json, write_json
from k25stack.jobs.control import is_locked
from k25stack.proc import alive, die_with, members, rss_gb, snapshot, start_time

SAMPLE_S = 0.25
RESERVE = 4096
GRACE_S = 60.0  # of a program that was asked to end by SIGTERM to the keeper; the stopping command may be quicker


def main(directory: Path, more: Callable[[], dict[str, Any]] = dict) -> int:
    """Keep the job of this directory until it ends.  ``more`` gives further notes for ``exit.json``."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stopper = _Stopper()
    signal.signal(signal.SIGTERM, stopper.ask)
    reserve = _reserve(directory)
    job = read_json(directory / "job.json")
    started = time.time()
    _note_pids(directory, None)
    child = _start(job["argv"])
    code, peak = 127, 0.0
    if child is not None:
        _note_pids(directory, child.pid)
        stopper.attach(child.pid)
        peak = _watch(child, directory, job.get("orphan_s"), stopper)
        code = child.returncode if child.returncode >= 0 else 128 - child.returncode
        _kill_rest(child.pid)
    ended = {"code": code, "started": started, "ended": time.time(), "peak_rss_gb": round(peak, 4)}
    _write_exit(directory, reserve, {**ended, **more()})
    return 0


class _Stopper:
    """Passes SIGTERM on to the program's process group, and kills it when it does not end in time."""

    def __init__(self) -> None:
        self.group: int | None = None
        self.deadline: float | None = None

    def ask(self, signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE_S
            self._signal(signal.SIGTERM)

    def attach(self, group: int) -> None:
        """The program runs now; a stop that came earlier is passed on."""
        self.group = group
        if self.deadline is not None:
            self._signal(signal.SIGTERM)

    def enforce(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.group is not None:
            _signal_group(self.group, number)


def _start(argv: list[str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, close_fds=True, process_group=0, preexec_fn=die_with(os.getpid())
        )
    except OSError as error:
        print(f"error: {argv[0]}: cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        return None


def _watch(child: subprocess.Popen[bytes], directory: Path, orphan_s: float | None, stopper: _Stopper) -> float:
    """Wait for the end; returns the largest sum of resident memory seen.  Sampling takes at most 2 % of a core."""
    peak, owned_at = 0.0, time.monotonic()
    end = os.pidfd_open(child.pid)
    while child.poll() is None:
        before = time.monotonic()
        processes = snapshot()
        peak = max(peak, rss_gb(processes, members(processes, [os.getpid()])))
        if orphan_s is not None:
            if _owned(directory):
                owned_at = time.monotonic()
            elif time.monotonic() - owned_at > orphan_s:
                stopper.ask()
        stopper.enforce()
        select.select([end], [], [], max(SAMPLE_S, 50 * (time.monotonic() - before)))
    os.close(end)
    return peak


def _owned(directory: Path) -> bool:
    try:
        return any(_alive(owner) for owner in read_json(directory / "owners.json"))
    except (OSError, json.JSONDecodeError):
        return False


def _alive(owner: dict[str, Any]) -> bool:
    """A process lives, or a lock is held: what a keeper in a container can see of those outside."""
    return is_locked(Path(owner["lock"])) if "lock" in owner else alive(owner["pid"], owner["start"])


def _kill_rest(group: int) -> None:
    """Nothing of a job outlives its program."""
    _signal_group(group, signal.SIGKILL)
    processes = snapshot()
    for pid in members(processes, [os.getpid()]) - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _note_pids(directory: Path, child: int | None) -> None:
    keeper, child_start = os.getpid(), start_time(child) if child else None
    pids = {"pid": keeper, "start": start_time(keeper), "child": child, "child_start": child_start}
    write_json(directory / "pid.json", pids)


def _reserve(directory: Path) -> Path:
    """Take the space for ``exit.json`` now: the end of a program must be noted on a full disk too."""
    path = directory / ".exit.json.part"
    with path.open("wb") as file:
        file.write(b" " * RESERVE)
        file.flush()
        os.fsync(file.fileno())
    return path


def _write_exit(directory: Path, reserve: Path, ended: dict[str, Any]) -> None:
    with reserve.open("r+b") as file:
        file.write(json.dumps(ended).encode().ljust(RESERVE - 1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    reserve.replace(directory / "exit.json")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
