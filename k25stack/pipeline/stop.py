"""End a run: its command when there is one, otherwise the jobs that a killed command has left running."""

from __future__ import annotations

import os
import signal
import time

from k25stack.errors import HostError
from k25stack.locks import describe, holder, lives
from k25stack.pipeline.backends import Looker
from k25stack.pipeline.workshop import GRACE_S
from k25stack.pipeline.workspace import Run

MARGIN_S = 15.0


def what_runs(run: Run) -> list[str]:
    """What ``stop_run`` would end, in words; empty when nothing runs."""
    backend = Looker(run.workspace)
    held_by = holder(run.lock)
    found = [f"the command ({describe(held_by)})"] if held_by else []
    jobs = [handle for handle in backend.jobs(run.name) if backend.poll(handle).phase == "running"]
    return found + [f"step {handle.rpartition('/')[2]}" for handle in jobs]


def stop_run(run: Run, grace_s: float = GRACE_S) -> None:
    """End everything of a run; finished parts stay.  Raises HostError when its command is on another host or deaf."""
    held_by = holder(run.lock)
    if held_by is not None:
        if not lives(held_by):
            raise HostError(f"its command runs elsewhere: {describe(held_by)}", where=run.name, remedy="stop it there")
        os.kill(int(held_by["pid"]), signal.SIGTERM)
        deadline = time.monotonic() + grace_s + MARGIN_S
        while holder(run.lock) is not None:
            if time.monotonic() > deadline:
                raise HostError(f"its command does not end: {describe(held_by)}", where=run.name, remedy="kill -9 it")
            time.sleep(0.05)
    backend = Looker(run.workspace)
    for handle in backend.jobs(run.name):
        if backend.poll(handle).phase == "running":
            backend.stop(handle, grace_s)
