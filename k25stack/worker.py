"""How a step's program is started, reports progress and ends (standard library only).

A step program is ``python -m k25stack.<room>.<module> SPEC.json``.  The spec says everything it may use::

    {"params": {...},              what decides the result; part of the step's key
     "inputs": {"target": "/..."}, realised inputs, by name
     "out": "/...",                where to write; may hold the finished parts of an earlier try
     "threads": 2}                 compute threads in all

The program leaves its outputs and ``result.json`` (figures with units in their names) under ``out``, writes
``progress.json`` beside ``out``, logs to stderr, and exits 0; a ``K25Error`` ends it with one line and the error's
exit code.  SIGTERM raises ``KeyboardInterrupt``, so ``finally`` blocks run.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from k25stack.errors import HostError, K25Error, UsageError, in_words
from k25stack.files import read_json, write_json


@dataclass(frozen=True)
class Spec:
    """What a step program was asked to do."""

    params: dict[str, Any]
    inputs: dict[str, Path]
    out: Path
    threads: int

    @classmethod
    def read(cls, path: Path) -> Spec:
        """Raises UsageError when the file is missing or is not a spec."""
        try:
            raw = read_json(path)
            return cls(
                params=dict(raw["params"]),
                inputs={name: Path(value) for name, value in raw["inputs"].items()},
                out=Path(raw["out"]),
                threads=int(raw.get("threads", 1)),
            )
        except FileNotFoundError:
            raise UsageError("no such spec file", where=str(path), remedy="give the spec.json of a step") from None
        except (KeyError, TypeError, ValueError, json.JSONDecodeError) as error:
            raise UsageError(f"not a step spec: {in_words(error)}", where=str(path)) from None


class Progress:
    """Phase, count and rate of a running step, kept in ``progress.json`` beside its output directory."""

    def __init__(self, out: Path, every_s: float = 0.5) -> None:
        self.path = out.parent / "progress.json"
        self.every_s = every_s
        self.phase = ""
        self.started = time.monotonic()
        self.written = 0.0

    def update(self, phase: str, done: float, total: float, unit: str) -> None:
        """Note that ``done`` of ``total`` units of ``phase`` are finished; written at most every ``every_s``."""
        now = time.monotonic()
        if phase != self.phase:
            self.phase, self.started, self.written = phase, now, 0.0
        if now - self.written < self.every_s and done < total:
            return
        self.written = now
        elapsed = now - self.started
        rate = done / elapsed if elapsed > 0 else 0.0
        eta = (total - done) / rate if rate > 0 else None
        state = {"phase": phase, "done": done, "total": total, "unit": unit, "rate_per_s": rate, "eta_s": eta}
        write_json(self.path, state)


def log(message: str) -> None:
    """One line for people, with the time of day, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def run_worker(program: Callable[[Spec], dict[str, Any]], argv: list[str] | None = None) -> int:
    """Read the spec, run ``program``, write its result; returns the exit code.

    ``program`` returns the figures for ``result.json``.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if len(arguments) != 1:
            raise UsageError("a step program takes one argument", remedy="give the path of its spec.json")
        spec = Spec.read(Path(arguments[0]))
        spec.out.mkdir(parents=True, exist_ok=True)
        write_json(spec.out / "result.json", program(spec))
    except K25Error as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        where = str(error.filename or "")
        problem = HostError(
            error.strerror or str(error), where=where, remedy="free space or mend permissions, run again"
        )
        print(f"error: {problem}", file=sys.stderr, flush=True)
        return problem.exit_code
    except KeyboardInterrupt:
        print("interrupted: finished parts are kept, run again to go on", file=sys.stderr, flush=True)
        return 130
    return 0
