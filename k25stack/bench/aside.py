"""Progress beside a measurement."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

Report = Callable[[str, float, float, str], None]
"""phase, done, total, unit: as `worker.Progress.update`."""


class Aside:
    """Reports from a thread of its own: writing a file must not hold up the loop that takes arrival times.

    While one report is being written, newer ones are dropped, save the last of a phase.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def of(self, phase: str, requests: int) -> Callable[[int], None]:
        """A callback that takes the number of finished requests."""

        def show(done: int) -> None:
            if self._pending is None or self._pending.done() or done == requests:
                self._pending = self._writer.submit(self.report, phase, done, max(requests, done), "requests")

        return show

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._writer.shutdown(wait=True)
        if kind is None and self._pending is not None:
            self._pending.result()  # a full disk, say
