"""Tasks for a worker pool: negate a number, fail on 3, or die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from k25stack.errors import UsageError


def make(setup: None) -> Callable[[Any, Callable[[int], None]], int]:
    def work(task: Any, progress: Callable[[int], None]) -> int:
        if task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if task == 3:
            raise UsageError("broken on purpose", where=f"task {task}")
        progress(1)
        return -int(task)

    return work
