"""How long each phase of a start took, told by lines of the engine's log."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

FIRST = "start"  # from the exec to the first marker


class Phases:
    """Marks of one start.  The phase that a marker begins ends where the next one begins."""

    def __init__(self, markers: Mapping[str, str]) -> None:
        self.patterns = {name: re.compile(text.encode()) for name, text in markers.items()}
        self.ahead = list(self.patterns)
        self.marks: dict[str, float] = {FIRST: time.monotonic()}
        self.end: float | None = None

    def line(self, line: bytes) -> None:
        """See whether a log line begins a phase.

        Phases come in the order of the markers and each begins once: every rank prints its own line, and a draft is
        read when the target's phases are over.
        """
        for name in self.ahead:
            if self.patterns[name].search(line):
                self.marks[name] = time.monotonic()
                self.ahead = self.ahead[self.ahead.index(name) + 1 :]
                return

    def begin(self, name: str) -> None:
        self.marks.setdefault(name, time.monotonic())

    def finish(self) -> None:
        self.end = time.monotonic()

    @property
    def now(self) -> str:
        """The phase that the start is in."""
        return max(self.marks, key=self.marks.__getitem__)

    def seconds(self) -> dict[str, float]:
        """Phase -> seconds, in order of time; the one that goes on is counted up to now."""
        order = sorted(dict(self.marks).items(), key=lambda mark: mark[1])
        ends = [*(at for _, at in order[1:]), self.end or time.monotonic()]
        return {name: round(end - at, 3) for (name, at), end in zip(order, ends, strict=True)}


def left_s(phases: Phases, earlier: Mapping[str, float]) -> float | None:
    """Seconds to readiness if this start goes like ``earlier`` ones; None when nothing is known."""
    if not earlier:
        return None
    done = phases.seconds()
    rest = sum(seconds for name, seconds in earlier.items() if name not in done)
    return round(rest + max(0.0, earlier.get(phases.now, 0.0) - done[phases.now]), 1)
