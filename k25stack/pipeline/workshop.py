"""What every try at a step needs, and the few things that steps and their servers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import K25Error
from k25stack.jobs import Backend
from k25stack.pipeline.lease import Lease
from k25stack.pipeline.meter import Meter
from k25stack.pipeline.progress import Display
from k25stack.pipeline.store import Store
from k25stack.pipeline.workspace import Run

GRACE_S = 20.0  # of a program that was asked to end


class Interrupted(K25Error):
    """Ctrl-C or SIGTERM; what is finished is kept."""

    exit_code = 130


@dataclass(frozen=True)
class Workshop:
    run: Run
    store: Store
    backend: Backend
    lease: Lease
    display: Display
    meter: Meter
    threads: int

    def work(self, key: str) -> Path:
        return self.run.workspace.work / key

    def base_env(self) -> dict[str, str]:
        """What every program gets besides its declared environment; none of it decides a result."""
        return {"OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}

    def sample(self) -> None:
        """Note the memory of this command and of everything that runs for it."""
        self.meter.sample(
            lambda: [root for job in self.backend.jobs(self.run.name) for root in self.backend.roots(job)]
        )

    def halt(self, name: str, handle: str) -> None:
        """Ask a job to end and wait; Ctrl-C while waiting ends it at once."""
        self.display.hint(f"stopping {name} (Ctrl-C again: at once)")
        try:
            self.backend.stop(handle, GRACE_S)
        except KeyboardInterrupt:
            self.backend.stop(handle, 0.0)


def expand(value: Any, places: Mapping[str, str]) -> Any:
    """``value`` with every text that is a placeholder replaced, at any depth."""
    if isinstance(value, str):
        return places.get(value, value)
    if isinstance(value, Mapping):
        return {name: expand(item, places) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item, places) for item in value]
    return value
