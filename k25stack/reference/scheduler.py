"""Who runs next: waiting requests, slots, and groups of prompts that are prefilled together (no torch)."""

from __future__ import annotations

import random
from collections import deque

from k25stack.reference.request import Active, Request


class Scheduler:
    """Requests in order of arrival, at most ``slots`` of them active."""

    def __init__(self, slots: int, seed: int, width: int) -> None:
        """``width`` of each request's histogram of rounds: k + 1 with a draft, 0 without."""
        self.free = list(range(slots - 1, -1, -1))
        self.waiting: deque[Request] = deque()
        self.active: dict[str, Active] = {}
        self.width = width
        self._seeds = random.Random(seed)

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def knows(self, request_id: str) -> bool:
        return request_id in self.active or any(request.id == request_id for request in self.waiting)

    def admit(self) -> None:
        """Give free slots to waiting requests, oldest first."""
        while self.free and self.waiting:
            request = self.waiting.popleft()
            fallback = self._seeds.getrandbits(64)  # drawn for every request, so seeded ones shift nothing
            seed = fallback if request.sampling.seed is None else request.sampling.seed
            histogram = [0] * self.width
            self.active[request.id] = Active(request, self.free.pop(), random.Random(seed), histogram=histogram)

    def release(self, active: Active) -> None:
        """Take the slot back; the next owner overwrites its caches from position 0."""
        del self.active[active.request.id]
        self.free.append(active.slot)

    def drop_waiting(self, request_id: str) -> Request | None:
        """Remove a request that has no slot yet; None when it is not among them."""
        for request in self.waiting:
            if request.id == request_id:
                self.waiting.remove(request)
                return request
        return None

    def running(self) -> list[Active]:
        """Requests past their prefill, by slot."""
        return sorted((a for a in self.active.values() if a.prefilled), key=lambda a: a.slot)

    def prefill_group(self, budget: int, chunk: int, alone: bool) -> list[Active]:
        """The oldest request with prompt left; if none of it is in the cache yet, others like it beside it.

        Each takes part with at most ``chunk`` tokens, all together with at most ``budget`` unless the first alone
        exceeds it.  ``alone`` (same-rows mode): groups of one, so that what arrives together changes no row count.
        """
        pending = [active for active in self.active.values() if not active.prefilled]
        if not pending or alone or pending[0].cached:
            return pending[:1]
        group: list[Active] = []
        tokens = 0
        for active in pending:
            count = min(active.remaining_prompt, chunk)
            if active.cached or (group and tokens + count > budget):
                continue
            group.append(active)
            tokens += count
        return group
