"""What every backend keeps about a job: a control directory ``<root>/<run>/<step>`` on this host (stdlib only).

A handle is that directory's path.  ``job.json`` says what was submitted, ``exit.json`` how it ended, and ``lock`` is
held (flock) while the job's keeper lives, whoever looks, and whether or not an engine answers.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k25stack.errors import HostError
from k25stack.files import read_json
from k25stack.jobs.job import Job

POLL_S = 0.02


class Control:
    """The part of a backend that only reads control directories.  ``kind`` tells backends' jobs apart."""

    kind = ""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def directory(self, job: Job) -> Path:
        return self.root / job.run / job.step

    def logs(self, handle: str) -> Path:
        return Path(read_json(Path(handle) / "job.json")["log"])

    def step(self, handle: str) -> str:
        return Path(handle).name

    def key(self, handle: str) -> str:
        return str(read_json(Path(handle) / "job.json")["key"])

    def ports(self, handle: str) -> tuple[int, ...]:
        return tuple(read_json(Path(handle) / "job.json")["ports"])

    def find(self, run: str, step: str) -> str | None:
        """Raises HostError while the step runs under another backend, which alone can follow and stop it."""
        directory = self.root / run / step
        job = read_or_none(directory / "job.json")
        if job is None:
            return None
        other = str(job.get("backend", "process"))
        if other != self.kind and is_locked(directory / "lock"):
            raise HostError(f"{step} of {run} runs under the {other} backend", where=str(directory),
                            remedy=f"go on with --backend {other}, or stop it: k25stack stop run {run}")  # fmt: skip
        return str(directory)

    def jobs(self, run: str) -> list[str]:
        return sorted(str(path.parent) for path in (self.root / run).glob("*/job.json"))


def public(job: Job, kind: str) -> dict[str, Any]:
    """What ``job.json`` holds; values of passed variables are not in it."""
    return {
        "backend": kind,
        "run": job.run,
        "step": job.step,
        "key": job.key,
        "argv": list(job.argv),
        "env": dict(job.env),
        "pass_env": list(job.pass_env),
        "log": str(job.log),
        "ports": list(job.ports),
        "orphan_s": job.orphan_s,
    }


@contextmanager
def locked(path: Path | None, busy: str) -> Iterator[tuple[int, ...]]:
    """Hold an exclusive flock; a child that inherits the descriptor goes on holding it after the block."""
    if path is None:
        yield ()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not wait_for(lambda: try_lock(handle, fcntl.LOCK_EX), 1.0):  # a passing look by `status` is short
            raise HostError(busy, remedy="wait for it, or stop it: k25stack stop run NAME")
        yield (handle,)
    finally:
        os.close(handle)


def try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """True while somebody holds the lock of this file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def wait_for(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def wait_for_process(pid: int, timeout_s: float) -> None:
    """Return when the process has ended or the time is over."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([end], [], [], timeout_s)
    finally:
        os.close(end)


def read_or_none(path: Path) -> dict[str, Any] | None:
    try:
        return dict(read_json(path))
    except FileNotFoundError:
        return None


def changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
