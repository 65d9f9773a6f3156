"""From looks to a verdict: is the engine still working?  Pure: no clock, no socket.

A look is a miss when

* the engine refused it, was saturated, did not answer in time, or answered something else, or
* requests were running (or waiting) at this look and at the one before, and no token was counted in between.

The engine is unhealthy after so many misses in a row; the last miss names the way.  A prefill that takes less than
``misses`` times the heartbeat is no alarm, and a longer one is none either when the engine counts its chunks.
"""

from __future__ import annotations

from collections.abc import Callable

from k25stack.watch.look import Look


class Heartbeat:
    def __init__(self, misses: int) -> None:
        self.limit = misses
        self.row = 0  # misses in a row
        self.kind = ""  # of the last miss
        self.text = ""
        self.before: Look | None = None  # the last reading of the counters

    def feed(self, look: Look) -> bool:
        """Take a look in; True when the engine is unhealthy now."""
        kind, text = self.judge(look)
        if look.outcome == "fine":
            self.before = look
        if not kind:
            self.row, self.kind, self.text = 0, "", ""
            return False
        self.row, self.kind, self.text = self.row + 1, kind, text
        return self.row >= self.limit

    def judge(self, look: Look) -> tuple[str, str]:
        """(kind of miss, text), or two empty strings."""
        if look.outcome != "fine":
            return look.outcome, look.text
        if self.stalled(look):
            return (
                "stalled",
                f"{look.running or 0:g} running and {look.waiting:g} waiting, no token since the last look",
            )
        return "", ""

    def stalled(self, look: Look) -> bool:
        before = self.before
        return before is not None and before.busy and look.busy and look.tokens == before.tokens


def look_closer(look: Look, beat: Heartbeat, healthy: Callable[[], Look]) -> Look:
    """Ask a quiet engine for its health too: some make a token for it, which wakes a gauge that went stale.

    An idle engine that does not answer is a miss.  A good answer of a busy one proves nothing, so it changes nothing.
    """
    if look.outcome != "fine" or look.running is None or (look.busy and not beat.stalled(look)):
        return look
    health = healthy()
    return health if health.outcome != "fine" and not look.busy else look
