"""The thread that looks at one life of the engine: until it is healthy, until it is warm, then beat by beat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from k25stack.watch.compilers import ours
from k25stack.watch.heartbeat import Heartbeat, look_closer
from k25stack.watch.look import Eye, Look
from k25stack.watch.policy import Policy, Warm

START_S = 0.25  # between two looks while it starts
HEALTH_S = 30.0  # a health answer may cost the engine a token, and the first tokens are slow
WARM_TRIES = 5  # whoever answers is up: a warm request that fails so often is wrong
WARM_S = 0.5
DRAIN_S = 0.25


@dataclass(frozen=True)
class Report:
    """What the supervisor hears.

    ``healthy``, ``warm``: reached.  ``warming``: request number ``row`` of phase ``kind`` is sent; ``declined``: the
    engine does not serve that one; ``unfit``: it keeps failing.  ``beat``: a look, with the row of misses that it ends
    and whether that makes the engine unhealthy.  ``compiling``: it would be a miss, but compilers (``text``) run below.
    """

    step: Literal["healthy", "warming", "declined", "warm", "unfit", "beat", "compiling"]
    look: Look
    row: int = 0
    kind: str = ""
    text: str = ""
    unhealthy: bool = False


class Looker:
    def __init__(self, policy: Policy, tell: Callable[[Looker, Report], None]) -> None:
        self.policy = policy
        self.eye = Eye(policy)
        self.tell = tell
        self.beat = Heartbeat(policy.misses)
        self.poke = threading.Event()
        self.over = False
        self.drain = False
        self.late = False  # the last look came or ended much later than it should
        self.excuses = 0  # in a row
        self.compiles: float | None = None  # since when, with no good look in between
        self.thread = threading.Thread(target=self._run, name="look", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.over = True
        self.poke.set()

    def hurry(self) -> None:
        """Look often from now on: somebody waits for the last request."""
        self.drain = True
        self.poke.set()

    def _run(self) -> None:
        if self._healthy() and self._warm():
            self._beats()

    def _wait(self, seconds: float) -> bool:
        """Wait, or until poked; False when it is over."""
        self.poke.wait(max(0.0, seconds))
        self.poke.clear()
        return not self.over

    def _healthy(self) -> bool:
        while not self.over:
            look = self.eye.healthy(HEALTH_S)
            if look.outcome == "fine":
                self.tell(self, Report("healthy", look))
                return True
            self._wait(START_S)
        return False

    def _warm(self) -> bool:
        """All warm requests, one after the other.  The first must be answered; another one that is declined in order is
        passed over, since users would be told the same.
        """
        for number, warm in enumerate(self.policy.warm, 1):
            self.tell(self, Report("warming", Look("fine"), number, warm.phase))
            look = self._asked(warm)
            if self.over:
                return False
            if look.declined and number > 1:
                self.tell(self, Report("declined", look, number, warm.phase, look.text))
            elif look.outcome != "fine":
                self.tell(self, Report("unfit", look, number, warm.phase, look.text))
                return False
        self.tell(self, Report("warm", Look("fine")))
        return True

    def _asked(self, warm: Warm) -> Look:
        """The last look of at most ``WARM_TRIES``; each may take as long as the whole start."""
        for _ in range(WARM_TRIES):
            look = self.eye.warm(warm, self.policy.ready_s)
            if self.over or look.outcome == "fine" or look.declined:
                break
            self._wait(WARM_S)
        return look

    def _beats(self) -> None:
        """Every T; after a look that got no answer already T/2 later, so that three of them take less than 3 T."""
        every = self.policy.heartbeat_s
        due = time.monotonic()
        while True:
            begun = time.monotonic()
            if begun >= due or self.drain:
                self.late = begun - due > every / 4
                look = look_closer(self._timed(self.eye.counted), self.beat, lambda: self._timed(self.eye.healthy))
                if self.over:
                    return
                if names := self._compiling(look):
                    self.beat.row = 0
                    self.tell(self, Report("compiling", look, text=", ".join(names)))
                elif look.outcome == "fine" or not self._excused():
                    unhealthy = self.beat.feed(look)
                    self.tell(self, Report("beat", look, self.beat.row, self.beat.kind, self.beat.text, unhealthy))
                due = begun + (every if look.outcome == "fine" else every / 2)
            if not self._wait(DRAIN_S if self.drain else due - time.monotonic()):
                return

    def _timed(self, look: Callable[[float], Look]) -> Look:
        """Look for at most T/2; it is late when that took much longer."""
        allowed, begun = self.policy.heartbeat_s / 2, time.monotonic()
        seen = look(allowed)
        self.late = self.late or time.monotonic() - begun > 1.5 * allowed
        return seen

    def _compiling(self, look: Look) -> tuple[str, ...]:
        """Compilers that explain a look without a new token, for ``compile_s`` at most."""
        if look.outcome != "timeout" and not (look.outcome == "fine" and self.beat.stalled(look)):
            self.compiles = None if look.outcome == "fine" else self.compiles
            return ()
        names = ours()
        if names and self.compiles is None:
            self.compiles = time.monotonic()
        return names if self.compiles is not None and time.monotonic() - self.compiles < self.policy.compile_s else ()

    def _excused(self) -> bool:
        """A bad look proves nothing while we are not let run ourselves (a paused container, a starved machine);
        but not for ever.
        """
        self.excuses = self.excuses + 1 if self.late else 0
        return 0 < self.excuses <= self.policy.misses
