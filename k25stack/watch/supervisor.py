"""The state machine: one engine, started, watched, healed and drained.

::

    starting --warm--> ready --SIGTERM--> draining --> ending --> (exit)
       |                 | unhealthy                      ^ SIGTERM in any other state
       | too slow        v
       +-----------> healing --> backoff --> starting
                        +--> down (a restart cannot help)

Everything that happens (signals, the end of a child, looks of the looking thread, deadlines) is a call in the queue of
the main thread, so no state is shared with a lock.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from k25stack.proc import adopt_orphans
from k25stack.watch import cause as causes
from k25stack.watch.cause import Cause
from k25stack.watch.child import KILL_S, Child, kill_rest, reap
from k25stack.watch.history import History
from k25stack.watch.lease import Lease
from k25stack.watch.load import left_s
from k25stack.watch.look import listens
from k25stack.watch.looker import Looker, Report
from k25stack.watch.page import Status, serve
from k25stack.watch.policy import WARM, Policy

FORWARDED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
KILLED = 137


class Supervisor:
    """For the main thread of a process of its own: it reaps, and in the end kills, every child that process has."""

    def __init__(self, policy: Policy, argv: Sequence[str]) -> None:
        self.policy = policy
        self.argv = tuple(argv)
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.history = History(policy.history)
        self.usual: dict[str, float] = {}
        self.lease = Lease(policy)
        self.child: Child | None = None
        self.looker: Looker | None = None
        self.timer: tuple[float, Callable[[], None]] | None = None
        self.state, self.text = "starting", ""
        self.since = time.time()
        self.pending: Cause | None = None  # why we kill it
        self.last: Cause | None = None
        self.stop_at: float | None = None  # when SIGTERM came
        self.asked = False  # the engine was told to end
        self.starts: deque[float] = deque()  # times of restarts within the window
        self.restarts: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.report: Report | None = None
        self.warming = ""  # which warm request is out
        self.compiling = ""  # compilers that ran at the last look
        self.looked_at: float | None = None  # last look that was no miss
        self.oom = causes.oom_counter()
        self.code: int | None = None

    def run(self) -> int:
        """Until the engine is stopped or given up; the exit code.  Raises LeaseError, HostError before any start."""
        adopt_orphans()
        self._listen()
        self.lease.take()
        serve(self.policy.ready, self.status)
        try:
            self._start()
            while self.code is None:
                try:
                    call = self.events.get(timeout=self._patience())
                except queue.Empty:
                    call = self._due()
                call()
        finally:
            self.lease.release()
        self.history.note("end", code=self.code, state=self.state, text=self.text)
        return self.code

    # -- what happens -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        parts = urlsplit(self.policy.health_url)
        if listens(parts.hostname or "", parts.port or 0):
            text = f"port taken: somebody already listens on {parts.netloc} ({causes.REMEDY['port_taken']})"
            self._after(Cause("port_taken", text))
            return
        self.lease.take()
        self.usual = self.history.phases()
        self.oom = causes.oom_counter()
        self.pending, self.warming, self.compiling = None, "", ""
        self.child = Child(self.policy, self.argv, self.lease.descriptors())
        self._enter("starting", f"pid {self.child.pid}")
        self.history.note("start", pid=self.child.pid, argv0=self.argv[0], engine=self.policy.engine)
        self.looker = Looker(self.policy, self._tell)
        self._after_s(self.policy.ready_s, self._too_slow)

    def _tell(self, looker: Looker, report: Report) -> None:
        self.events.put(partial(self._on_report, looker, report))

    def _on_report(self, looker: Looker, report: Report) -> None:
        if looker is not self.looker or self.child is None:
            return  # of an earlier life
        if report.step == "healthy":
            self.child.phases.begin(WARM)
        elif report.step == "warming":
            self.child.phases.begin(report.kind)
            self.warming = f"{report.kind} request, {report.row} of {len(self.policy.warm)}"
            self._say(self.warming)
        elif report.step == "declined":
            self._say(f"passed over: {report.text}")
            self.history.note("declined", phase=report.kind, text=report.text)
        elif report.step == "warm" and self.state == "starting":
            self._ready(self.child)
        elif report.step == "unfit" and self.state == "starting":
            self._heal(Cause("unfit", f"it answers, but the {report.kind} request fails: {report.text}"))
        elif report.step == "beat":
            self._on_beat(self.child, report)
        elif report.step == "compiling":
            self._on_compiling(report)

    def _ready(self, child: Child) -> None:
        child.phases.finish()
        self.timer = None
        seconds = child.phases.seconds()
        total = sum(seconds.values())
        shown = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
        self.looked_at = time.monotonic()
        self._enter("ready", f"after {total:.1f} s ({shown})")
        self.history.note("ready", pid=child.pid, seconds=round(total, 3), phases=seconds)

    def _on_beat(self, child: Child, report: Report) -> None:
        self.report, self.compiling = report, ""
        if report.row:
            self.misses[report.kind] += 1
            self._say(f"miss {report.row} of {self.policy.misses}: {report.kind}: {report.text}")
        else:
            self.looked_at = time.monotonic()
        if self.state == "draining" and (report.unhealthy or (not report.row and not report.look.busy)):
            self._terminate()
        elif self.state == "ready" and report.unhealthy:
            self._heal(causes.of_heartbeat(report.kind, report.text, child.marker()))

    def _on_compiling(self, report: Report) -> None:
        """No token came, and compilers run below the engine: no miss."""
        if report.look.running is not None:
            self.report = report  # else the counters are the last ones seen: a drain goes by them
        self.looked_at = time.monotonic()
        if not self.compiling:
            self._say(f"no token since the last look while the engine compiles ({report.text}): no miss")
            self.history.note("compiling", compilers=report.text)
        self.compiling = report.text

    def _too_slow(self) -> None:
        assert self.child is not None
        phase = self.child.phases.now
        text = (
            f"not ready after {self.policy.ready_s:g} s, in phase {phase} (give it a longer ready_s, or read the log)"
        )
        self._heal(causes.of_heartbeat("never_ready", text, self.child.marker()))

    def _heal(self, cause: Cause) -> None:
        """Kill the engine; what follows is decided when it is gone."""
        assert self.child is not None
        self.pending = cause
        if self.looker is not None:
            self.looker.stop()
        self._enter("healing", cause.text)
        self.history.note("unhealthy", kind=cause.kind, text=cause.text, pid=self.child.pid)
        self.child.kill()
        self._after_s(KILL_S, self._stuck)

    def _stuck(self) -> None:
        """It does not even die: a driver call that never returns."""
        pid = 0 if self.child is None else self.child.pid
        cause = Cause("stuck", f"process {pid} does not end after SIGKILL: the driver hangs "
                      f"({causes.REMEDY['gpu_reset']})", False)  # fmt: skip
        if self.stop_at is not None:
            self.text, self.code = cause.text, KILLED
            return
        self._after(cause)

    def _on_child(self) -> None:
        ended = reap()
        child = self.child
        if child is None or child.pid not in ended or self.looker is None:
            return
        child.ended(ended[child.pid])
        self.looker.stop()
        left = kill_rest(child.pid)
        child.finish_log()
        self.child, self.looker, self.report = None, None, None
        cause = self.pending or self._cause(child)
        if left:
            which = ", ".join(str(pid) for pid in sorted(left))
            cause = Cause("stuck", f"processes {which} do not end after SIGKILL ({causes.REMEDY['gpu_reset']})", False)
        self.history.note("exit", pid=child.pid, code=child.code, kind=cause.kind, text=cause.text)
        if self.stop_at is not None:
            self._stopped(child)
        else:
            self._after(cause)

    def _cause(self, child: Child) -> Cause:
        if self.asked:
            return Cause("asked", f"ended with code {child.code} after SIGTERM")
        return causes.of_exit(child.code or 0, child.marker(), self.oom())

    def _stopped(self, child: Child) -> None:
        late = self.pending is not None and self.pending.kind == "late"
        self.text = f"the engine ended with code {child.code}" + (" after SIGKILL: the grace was over" if late else "")
        self.code = KILLED if late else 0 if self.asked else (child.code or 1)
        self._say(self.text)

    def _after(self, cause: Cause) -> None:
        """The engine is gone and nobody asked: stay down, give up, or start again after a while."""
        self.last, rule, now = cause, self.policy.restart, time.monotonic()
        while self.starts and now - self.starts[0] > rule.window_s:
            self.starts.popleft()
        if not cause.restart:
            self.timer = None
            self.lease.release()
            self._enter("down", cause.text)
            self.history.note("down", kind=cause.kind, text=cause.text)
        elif len(self.starts) >= rule.max:
            self.text = f"given up after {rule.max} restarts in {rule.window_s:g} s: {cause.text}"
            self._say(self.text)
            self.code = 1
        else:
            wait = min(rule.backoff_s * 2 ** len(self.starts), rule.backoff_max_s)
            self.starts.append(now)
            self.restarts[cause.kind] += 1
            self._enter("backoff", f"{cause.text}; starting again in {wait:g} s")
            self.history.note("restart", kind=cause.kind, number=len(self.starts), wait_s=wait)
            self._after_s(wait, self._start)

    # -- stopping -----------------------------------------------------------------------------------------------

    def _on_stop(self, number: int) -> None:
        again = self.stop_at is not None
        self.stop_at = self.stop_at if self.stop_at is not None else time.monotonic()
        if self.child is None:
            self.code = 1 if self.state == "down" else 0
            return
        if again:
            self._terminate()
            return
        self.history.note("stop", signal=number)
        running = self.report is not None and self.report.look.running is not None
        if self.state == "ready" and running and self.looker is not None:
            self._enter("draining", f"until no request runs, at most {self.policy.grace_s - self.policy.kill_s:g} s")
            self.looker.hurry()
            self._after_s(self.policy.grace_s - self.policy.kill_s, self._terminate)
        elif self.state != "healing":
            self._terminate()

    def _terminate(self) -> None:
        if self.child is None or self.asked:
            return
        self.asked = True
        if self.looker is not None:
            self.looker.stop()
        self._enter("ending", "SIGTERM sent")
        self.child.signal(signal.SIGTERM)
        self.child.signal(signal.SIGCONT)  # a stopped process would keep the request to itself
        self._after_s(self.policy.kill_s, self._late)

    def _late(self) -> None:
        if self.child is None:
            return
        self.pending = Cause("late", f"still there {self.policy.kill_s:g} s after SIGTERM")
        self.child.kill()
        self._after_s(KILL_S, self._stuck)

    # -- small things -------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Handlers only put a call into the queue (its put is safe there)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._later(self._on_stop))
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._later(self._forward))
        signal.signal(signal.SIGCHLD, self._later(lambda number: self._on_child()))

    def _later(self, call: Callable[[int], None]) -> Callable[[int, FrameType | None], None]:
        return lambda number, frame: self.events.put(partial(call, number))

    def _forward(self, number: int) -> None:
        if self.child is not None:
            self.child.signal(number)

    def _after_s(self, seconds: float, call: Callable[[], None]) -> None:
        self.timer = (time.monotonic() + seconds, call)

    def _patience(self) -> float | None:
        return None if self.timer is None else max(0.0, self.timer[0] - time.monotonic())

    def _due(self) -> Callable[[], None]:
        call = self.timer[1] if self.timer is not None else lambda: None
        self.timer = None
        return call

    def _enter(self, state: str, text: str) -> None:
        self.state, self.text, self.since = state, text, time.time()
        self._say(f"{state}: {text}")

    def _say(self, text: str) -> None:
        print(f"k25stack-watch: {text}", file=sys.stderr, flush=True)

    def status(self) -> Status:
        """What /status shows; called by the page's threads, so it reads each thing once."""
        child, report, looked_at, last = self.child, self.report, self.looked_at, self.last
        text, warming = self.text, self.warming
        phases = None if child is None else child.phases
        load: dict[str, Any] = {"phase": None, "seconds": {}, "usual": self.usual, "left_s": None}
        if phases is not None:
            load |= {"seconds": phases.seconds()}
            if phases.end is None:
                load |= {"phase": phases.now, "left_s": left_s(phases, self.usual)}
                if warming and self.state == "starting":
                    text = f"{text}, {warming}, for {load['seconds'][phases.now]:.0f} s"
        return {
            "state": self.state,
            "ready": self.state == "ready",
            "text": text,
            "since": round(self.since, 3),
            "engine": self.policy.engine,
            "pid": os.getpid(),
            "child": None if child is None else {"pid": child.pid, "start": child.start},
            "load": load,
            "row": 0 if report is None else report.row,
            "look": None if report is None else {"outcome": report.look.outcome, "running": report.look.running,
                                                 "waiting": report.look.waiting, "tokens": report.look.tokens},
            "compiling": self.compiling,
            "look_age_s": None if looked_at is None else round(time.monotonic() - looked_at, 3),
            "misses": dict(self.misses),
            "restarts": dict(self.restarts),
            "last": None if last is None else {"kind": last.kind, "text": last.text, "restart": last.restart},
            "lease": None if self.lease.lock is None else str(self.lease.path),
        }  # fmt: skip
