"""The engine's own thread: commands in, events out, and a verdict on its health (no torch in the interface)."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable

from k25stack.errors import HostError, UsageError
from k25stack.reference.engine import Engine
from k25stack.reference.request import Request

STALLED_S = 60.0
"""A step that has not ended after this time counts as a hang (one step takes well under a second)."""


class EngineLoop:
    """Steps an engine while it has work and sleeps while it has none.  Methods may be called from any thread."""

    def __init__(self, engine: Engine, on_death: Callable[[], None] | None = None) -> None:
        """``on_death`` is called in the engine's thread after a step has raised."""
        self.engine = engine
        self.on_death = on_death
        self.died = False
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # orders a submit against the thread's death
        self._step_begun: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine")

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request.  Raises UsageError when it can never be served, HostError when the engine has died."""
        request.check(self.engine.target.config.vocab, self.engine.config.max_len)
        with self._lock:
            if self.died:
                raise HostError("the engine has stopped", where="engine", remedy="see its log, start it again")
            self._commands.put(lambda: self.engine.submit(request))

    def abort(self, request_id: str) -> None:
        """End a request; its last event has the reason "abort".  Unknown ids are ignored."""
        self._commands.put(lambda: self.engine.abort(request_id))

    def close(self) -> None:
        """Abort what is left and wait for the thread's end."""
        self._commands.put(None)
        self._thread.join()

    def healthy(self) -> bool:
        """False when the thread is dead or one step has been running for `STALLED_S`."""
        begun = self._step_begun
        return self._thread.is_alive() and not (begun is not None and time.monotonic() - begun > STALLED_S)

    def _run(self) -> None:
        engine, closed = self.engine, False
        try:
            while not closed:
                closed = self._obey(wait=not engine.busy)
                if engine.busy and not closed:
                    self._step_begun = time.monotonic()
                    engine.step()
                    self._step_begun = None
        finally:
            with self._lock:
                self.died = True
            self._obey(wait=False)
            engine.abort_all("abort" if closed else "error")
            if not closed and self.on_death is not None:
                self.on_death()

    def _obey(self, wait: bool) -> bool:
        """Carry out queued commands, waiting for the first if ``wait``; True when one of them is to close."""
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return False
            if command is None:
                return True
            try:
                command()
            except UsageError as error:  # checked in submit already; a duplicate id, for instance, is not
                print(f"warning: {error}", file=sys.stderr, flush=True)
            wait = False
