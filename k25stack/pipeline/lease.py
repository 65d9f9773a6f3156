"""The GPU lease: one lock for the whole host, so that two users of the cards never meet by surprise.

Whatever computes takes it (``run``, ``bench``, ``serve``, live tests); a machine without cards uses the same lock with
zero cards.  The record tells holder, purpose, cards, since and progress.  It lies in ``$K25_STATE_DIR``, else in
``/run/lock/k25stack``, else in ``$XDG_STATE_HOME/k25stack`` (``~/.local/state/k25stack``).

The lease is an flock whose descriptor running steps inherit: when the command is killed, its step keeps the lease
until it ends, and the same run may take it over.  After a crash of both the kernel has freed it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from k25stack.errors import LeaseError
from k25stack.pipeline.locks import NamedLock, describe, holder, lives, me

SHARED = Path("/run/lock")


def lease_path() -> Path:
    """The lease file of this host."""
    if chosen := os.environ.get("K25_STATE_DIR"):
        return Path(chosen) / "gpu.lease"
    if os.access(SHARED, os.W_OK):
        return SHARED / "k25stack" / "gpu.lease"
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "k25stack" / "gpu.lease"


class Lease:
    """Held by one run (or server) at a time; ``scope`` (its directory) tells whether a running step is our own."""

    def __init__(self, who: str, purpose: str, cards: int, scope: Path) -> None:
        self.record: dict[str, Any] = {
            **me(),
            "who": who,
            "purpose": purpose,
            "cards": cards,
            "scope": str(scope.resolve()),
            "progress": "",
        }
        path = lease_path()
        _make_shared(path)
        self.lock = NamedLock(path)

    def take(self) -> None:
        """Raises LeaseError that names the holder, unless the holder is a step which this run has left running."""
        held_by = self.lock.acquire(self.record)
        if held_by is None or self._own_step(held_by):
            return
        progress = f", {held_by['progress']}" if held_by.get("progress") else ""
        raise LeaseError(
            f"{held_by.get('who', 'somebody')} holds the lease of this host's {_cards(held_by)}: {describe(held_by)}, "
            f"{held_by.get('purpose', 'purpose unknown')}{progress}",
            where=str(self.lock.path),
            remedy="wait for it, or end it: k25stack status",
        )

    def _own_step(self, held_by: dict[str, Any]) -> bool:
        return held_by.get("scope") == self.record["scope"] and not lives(held_by)

    def secure(self) -> None:
        """Before anything new is started: a lease that our own earlier step held is ours by now, or somebody else's."""
        if self.lock.handle is None:
            self.take()

    def note(self, progress: str) -> None:
        """Tell others how far we are."""
        if self.lock.handle is not None and progress != self.record["progress"]:
            self.record["progress"] = progress
            self.lock.update(self.record)

    def descriptors(self) -> tuple[int, ...]:
        """What a keeper inherits."""
        return () if self.lock.handle is None else (self.lock.handle,)

    def release(self) -> None:
        self.lock.release()


def lease_holder() -> dict[str, Any] | None:
    return holder(lease_path())


def _cards(record: dict[str, Any]) -> str:
    cards = int(record.get("cards", 0))
    return f"{cards} cards" if cards else "processors (no cards)"


def _make_shared(path: Path) -> None:
    """The shared directory is open to every user of the host, as /run/lock itself is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.parent == SHARED and not path.exists():
        path.parent.chmod(0o1777)
        old = os.umask(0)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        finally:
            os.umask(old)
