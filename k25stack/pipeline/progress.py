"""What a person sees while a run works: one moving line on a terminal, a plain line every ten seconds elsewhere.

All of it goes to stderr.  When the terminal is lost, the run goes on in silence.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

EVERY_S = 10.0
BAR = 24


class Display:
    def __init__(self, stream: TextIO | None = None, every_s: float = EVERY_S) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.moving = self.stream.isatty() and os.environ.get("TERM", "") != "dumb"
        self.every_s = every_s
        self._last = 0.0
        self._open = False

    def line(self, text: str) -> None:
        """A line that stays."""
        self._write(("\r\x1b[K" if self._open else "") + text + "\n")
        self._open = False

    def show(self, step: str, state: dict[str, Any] | None, elapsed_s: float) -> str:
        """Where ``step`` stands (``state`` is its progress.json); returns the same in words."""
        text = describe(state)
        now = time.monotonic()
        if self.moving:
            width = os.get_terminal_size(self.stream.fileno()).columns - 1 if self._has_size() else 100
            self._write("\r\x1b[K" + f"{step:<14} {_bar(state)} {text}  [{clock(elapsed_s)}]"[:width])
            self._open = True
        elif now - self._last >= self.every_s:
            self._last = now
            self._write(f"{step}: {text} [{clock(elapsed_s)}]\n")
        return text

    def hint(self, text: str) -> None:
        """A line that only a person at a terminal needs, and only now."""
        if self.moving:
            self._write("\r\x1b[K" + text)
            self._open = True

    def begin(self) -> None:
        """A new step: its first plain line comes ``every_s`` from now."""
        self._last = time.monotonic()

    def _has_size(self) -> bool:
        try:
            os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError):
            return False
        return True

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal is gone: the work is not
            self.stream = open(os.devnull, "w")  # noqa: SIM115, PTH123
            self.moving = False


def read_progress(path: Path) -> dict[str, Any] | None:
    """A step's progress.json, or None before the first."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def describe(state: dict[str, Any] | None) -> str:
    """``train  43 %  1,234 tok/s  ETA 2:10``"""
    if not state:
        return "starting"
    done, whole = float(state.get("done") or 0), float(state.get("total") or 0)
    parts = [str(state.get("phase", ""))]
    if whole > 0:
        parts.append(f"{100 * min(1.0, done / whole):.0f} %")
    if state.get("rate_per_s"):
        parts.append(f"{state['rate_per_s']:,.4g} {state.get('unit', '')}/s")
    if state.get("eta_s") is not None and done < whole:
        parts.append(f"ETA {clock(float(state['eta_s']))}")
    return "  ".join(part for part in parts if part)


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _bar(state: dict[str, Any] | None) -> str:
    whole = float((state or {}).get("total") or 0)
    share = min(1.0, float((state or {}).get("done") or 0) / whole) if whole > 0 else 0.0
    return "[" + "#" * round(BAR * share) + "." * (BAR - round(BAR * share)) + "]"
