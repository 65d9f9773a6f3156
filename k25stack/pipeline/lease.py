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

from k25stack.locks import SHARED, NamedLock, holder, lease_held, lives, make_shared, me


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
        make_shared(path, SHARED)
        self.lock = NamedLock(path)

    def take(self) -> None:
        """Raises LeaseError that names the holder, unless the holder is a step which this run has left running."""
        held_by = self.lock.acquire(self.record)
        if held_by is None or self._own_step(held_by):
            return
        raise lease_held(held_by, self.lock.path)

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
