"""The supervisor's own ledger file: starts, readiness with its phases, misses, ends with their cause."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from k25stack.errors import K25Error
from k25stack.ledger import append, read_file

KIND = "watch"
STARTS = 5  # earlier starts that an estimate rests on


class History:
    """A disk that refuses is said once and does not stop the engine."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def note(self, event: str, **data: Any) -> None:
        if self.path is None:
            return
        try:
            append(self.path, KIND, {"event": event, **data})
        except (OSError, K25Error) as error:
            print(f"k25stack-watch: no history from now on: {self.path}: {error}", file=sys.stderr, flush=True)
            self.path = None

    def phases(self) -> dict[str, float]:
        """Median seconds of every load phase over the last starts; empty when there is no history."""
        if self.path is None or not self.path.exists():
            return {}
        try:
            records = read_file(self.path)
        except (OSError, K25Error):
            return {}
        return usual([record.data for record in records if record.data.get("event") == "ready"][-STARTS:])


def usual(readies: list[dict[str, Any]]) -> dict[str, float]:
    """Phase -> median over ``ready`` events, in the order of the newest one."""
    if not readies:
        return {}
    found: dict[str, float] = {}
    for name in readies[-1]["phases"]:
        seconds = sorted(ready["phases"][name] for ready in readies if name in ready["phases"])
        found[name] = seconds[len(seconds) // 2]
    return found
