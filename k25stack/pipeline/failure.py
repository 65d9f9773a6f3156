"""A failed step in one line: what its program said, and where the rest is."""

from __future__ import annotations

import shutil
from pathlib import Path

from k25stack.errors import DriftError, HostError, K25Error, UsageError
from k25stack.jobs import State

TRY = "--- "
TAIL = 1 << 16
FULL_BYTES = 1 << 20
KINDS: dict[int, type[K25Error]] = {2: UsageError, 3: HostError, 4: DriftError}


def begin_log(log: Path, step: str, time: str) -> None:
    """A line between the tries of one step."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{TRY}{step} {time}\n")


def last_try(log: Path) -> list[str]:
    """The lines that the newest try left."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    starts = [index for index, line in enumerate(lines) if line.startswith(TRY)]
    return lines[starts[-1] + 1 :] if starts else lines


def of(step: str, state: State, log: Path, state_directory: Path) -> K25Error:
    """The error of a step that did not end well.  A program's own ``error:`` line is repeated, with its exit code."""
    if state.cause:
        what, _, remedy = state.cause.partition(" | ")
        return HostError(what, where=step, remedy=f"{remedy}; log: {log}" if remedy else f"log: {log}")
    lines = [line for line in last_try(log) if line.strip()]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if own:
        error = KINDS.get(state.code or 1, K25Error)
        return error(f"{own[-1]}", where=step, remedy=f"log: {log}")
    if state.phase == "lost":
        return K25Error("its keeper was killed", where=step, remedy="run again: finished parts are kept")
    if state.code is not None and state.code > 128:
        name = {137: "killed (signal 9; out of memory?)", 130: "interrupted", 143: "terminated"}
        what = name.get(state.code, f"killed by signal {state.code - 128}")
        return K25Error(f"it was {what}", where=step, remedy="run again: finished parts are kept")
    if shutil.disk_usage(state_directory).free < FULL_BYTES:
        return HostError(f"the disk of {state_directory} is full", where=step, remedy="free space, run again")
    said = f": {lines[-1]}" if lines else ""
    return K25Error(f"ended with exit {state.code}{said}", where=step, remedy=f"log: {log}")
