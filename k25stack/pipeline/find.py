"""Runs and logs by the names that people type."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from k25stack.errors import UsageError
from k25stack.pipeline.backends import Looker
from k25stack.pipeline.workspace import Run, Workspace

SERVER = ".server"
FOLLOW_S = 0.2


def find_run(workspace: Workspace, name: str | None) -> Run:
    """The named run, or the one used last.  Raises UsageError when there is none."""
    runs = workspace.all_runs()
    if name is None and runs:
        return runs[0]
    for run in runs:
        if run.name == name:
            return run
    where = str(workspace.root.resolve())
    if name is None:
        raise UsageError("no runs here", where=where, remedy="k25stack run STACK")
    known = f"there are {', '.join(run.name for run in runs)}" if runs else "k25stack run STACK makes one"
    raise UsageError(f"no run {name!r}", where=where, remedy=known)


def find_log(run: Run, step: str | None) -> Path:
    """The log of a step, ``STEP.server`` for its server; without a name that of the step that runs or ran last.

    Raises UsageError when there is none.
    """
    if (running := _running_log(run, step)) is not None:
        return running
    keys = run.keys()
    if step is None:
        logs = sorted(run.directory.glob("steps/*/log"), key=lambda path: path.stat().st_mtime_ns)
        if logs:
            return logs[-1]
        raise UsageError("no log yet", where=run.name, remedy="k25stack run makes the first")
    name = step.removesuffix(SERVER)
    if name not in keys:
        known = f"there are {', '.join(keys)}" if keys else "no step has been made yet"
        raise UsageError(f"no step {name!r}", where=run.name, remedy=known)
    path = run.step(keys[name]) / ("server.log" if step.endswith(SERVER) else "log")
    if path.exists():
        return path
    raise UsageError(f"no log of {step}", where=run.name, remedy="this run reuses what another one made")


def _running_log(run: Run, step: str | None) -> Path | None:
    backend = Looker(run.workspace)
    for handle in backend.jobs(run.name):
        name = Path(handle).name
        wanted = not name.endswith(SERVER) if step is None else name == step
        if wanted and backend.poll(handle).phase == "running":
            return backend.logs(handle)
    return None


def follow_log(run: Run, path: Path) -> Iterator[str]:
    """Pieces of a log as they are written, until nothing that writes to it runs any more."""
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            running = _writes(run, path)
            if text := file.read():
                yield text
            elif not running:
                return
            else:
                time.sleep(FOLLOW_S)


def _writes(run: Run, path: Path) -> bool:
    backend = Looker(run.workspace)
    jobs = [job for job in backend.jobs(run.name) if backend.logs(job).resolve() == path.resolve()]
    return any(backend.poll(job).phase == "running" for job in jobs)
