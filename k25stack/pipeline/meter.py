"""The largest memory of a run: this command, its step and its server, added up at the same moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from k25stack.proc import members, rss_gb, snapshot

EVERY_S = 0.25


class Meter:
    """Sums resident memory of this process's tree and of the trees of ``roots()`` (jobs that others started)."""

    def __init__(self) -> None:
        self.step_peak_gb = 0.0
        self.peak_gb = 0.0
        self._next = 0.0

    def begin(self) -> None:
        """A new step: the next look is due at once."""
        self.step_peak_gb, self._next = 0.0, 0.0

    def sample(self, roots: Callable[[], Iterable[int]]) -> None:
        """Look now, unless the last look was a moment ago (looking costs at most 2 % of a core)."""
        now = time.monotonic()
        if now < self._next:
            return
        processes = snapshot()
        held = rss_gb(processes, members(processes, [os.getpid(), *roots()]))
        self.step_peak_gb = max(self.step_peak_gb, held)
        self.peak_gb = max(self.peak_gb, held)
        after = time.monotonic()
        self._next = after + max(EVERY_S, 50 * (after - now))

    def include(self, peak_gb: float) -> None:
        """A peak that a keeper saw while this command was not there."""
        self.step_peak_gb = max(self.step_peak_gb, peak_gb)
        self.peak_gb = max(self.peak_gb, peak_gb)
