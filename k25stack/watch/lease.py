"""The GPU lease as the supervisor holds it: from the first start until it ends or stays down."""

from __future__ import annotations

from k25stack.errors import HostError
from k25stack.locks import NamedLock, lease_held, make_shared, me
from k25stack.watch.policy import Policy


class Lease:
    """Nothing is locked when the policy names no lease."""

    def __init__(self, policy: Policy) -> None:
        self.path = policy.lease
        self.holder = policy.holder
        self.lock: NamedLock | None = None

    def take(self) -> None:
        """Raises LeaseError that names the holder, HostError when the file cannot be opened; held already: nothing."""
        if self.path is None or self.lock is not None:
            return
        lock = NamedLock(self.path)
        who = {"who": self.holder.who, "purpose": self.holder.purpose, "cards": self.holder.cards}
        try:
            make_shared(self.path)
            held_by = lock.acquire({**me(), **who})
        except OSError as error:
            raise HostError(f"the lease cannot be taken: {error.strerror}", where=str(self.path),
                            remedy="mount the lease's directory writable") from None  # fmt: skip
        if held_by is not None:
            raise lease_held(held_by, self.path)
        self.lock = lock

    def descriptors(self) -> tuple[int, ...]:
        """What the engine inherits: while it lives, the lease is taken."""
        return () if self.lock is None or self.lock.handle is None else (self.lock.handle,)

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None
