"""A lock that names its holder: an flock, which the kernel drops when the holder dies, and a record of who it is.

The descriptor may be inherited by a job that outlives its command; then the lock stays taken until the job ends too.
Standard library only.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from k25stack.errors import LeaseError
from k25stack.proc import alive, start_time

SHARED = Path("/run/lock")
PATIENCE_S = 0.3  # somebody who only looks at the lock holds it for a moment


def me() -> dict[str, Any]:
    """Who this process is, for people and for the check whether it still lives."""
    return {
        "pid": os.getpid(),
        "start": start_time(os.getpid()),
        "user": _user(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the user database and no variable: common in containers
        return str(os.getuid())


class NamedLock:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: int | None = None

    def acquire(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Take the lock and write ``record`` into it; returns None, or the record of the present holder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = _open_or_make(self.path)
        if not _lock(handle, fcntl.LOCK_EX):
            os.close(handle)
            return _read(self.path) or {"pid": 0}
        self.handle = handle
        self.update(record)
        return None

    def update(self, record: dict[str, Any]) -> None:
        """Replace the record; only the holder does."""
        assert self.handle is not None
        text = json.dumps(record).encode()
        os.pwrite(self.handle, text, 0)
        os.ftruncate(self.handle, len(text))

    def release(self) -> None:
        if self.handle is not None:
            os.ftruncate(self.handle, 0)
            os.close(self.handle)
            self.handle = None


def holder(path: Path) -> dict[str, Any] | None:
    """The record of whoever holds the lock now; None when nobody does."""
    try:
        handle = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        free = _lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
    return None if free else _read(path) or {"pid": 0}


def lives(record: dict[str, Any]) -> bool:
    """True while the process that wrote the record runs on this host."""
    return bool(record.get("pid")) and alive(int(record["pid"]), int(record.get("start") or 0))


def describe(record: dict[str, Any]) -> str:
    """``pid 12 of ann on hostname since 2026-11-29 12:00:00``"""
    who = f"pid {record.get('pid')}" + (f" of {record['user']}" if record.get("user") else "")
    return f"{who} on {record.get('host', 'this host')} since {record.get('since', 'an unknown time')}"


def lease_held(record: dict[str, Any], path: Path) -> LeaseError:
    """The error of whoever wants the GPU lease at ``path`` while ``record`` holds it."""
    progress = f", {record['progress']}" if record.get("progress") else ""
    cards = int(record.get("cards", 0))
    what = f"{cards} cards" if cards else "processors (no cards)"
    return LeaseError(
        f"{record.get('who', 'somebody')} holds the lease of this host's {what}: {describe(record)}, "
        f"{record.get('purpose', 'purpose unknown')}{progress}",
        where=str(path),
        remedy="wait for it, or end it: k25stack status",
    )


def make_shared(path: Path, shared: Path = SHARED) -> None:
    """Make the directory of a lease; below ``shared`` it is open to every user of the host, as /run/lock itself is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.parent == shared and not path.exists():
        if path.parent.stat().st_mode & 0o1777 != 0o1777:  # in a container it is somebody else's, and open already
            path.parent.chmod(0o1777)
        old = os.umask(0)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        finally:
            os.umask(old)


def _open_or_make(path: Path) -> int:
    """Creation is asked for only when needed: kernels refuse it on somebody else's file in a shared directory."""
    try:
        return _open(path, os.O_RDWR)
    except FileNotFoundError:
        return _open(path, os.O_RDWR | os.O_CREAT)


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


def _lock(handle: int, kind: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
            continue
        return True


def _read(path: Path) -> dict[str, Any] | None:
    for _ in range(20):  # the holder may be writing
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            time.sleep(0.01)
    return None
