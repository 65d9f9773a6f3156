"""What nobody needs any more: results that no run's last plan names, and unfinished work of such keys."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from k25stack.errors import LeaseError
from k25stack.files import read_json
from k25stack.locks import describe, holder
from k25stack.pipeline.workspace import Workspace


@dataclass(frozen=True)
class Garbage:
    path: Path
    bytes: int
    why: str


def garbage(workspace: Workspace) -> list[Garbage]:
    """What could go.  Measurements stay: they cannot be made again.  Raises LeaseError while a run is in use."""
    for run in workspace.all_runs():
        if (held_by := holder(run.lock)) is not None:
            raise LeaseError(f"run {run.name} is in use by {describe(held_by)}", remedy="wait for it or stop it")
    needed = {key for run in workspace.all_runs() for key in run.keys().values()}
    busy = {str(read_json(path)["key"]) for path in workspace.jobs.glob("*/*/job.json")}
    found = []
    for place, why in ((workspace.artefacts, "no run's plan names it"), (workspace.work, "unfinished and not planned")):
        for path in sorted(place.glob("*")):
            if path.name not in needed | busy:
                found.append(Garbage(path, _size(path), why))
    found += [Garbage(path, _size(path), "left by a kill") for path in sorted((workspace.state / "trash").glob("*"))]
    return found


def collect(items: list[Garbage]) -> int:
    """Delete; returns the bytes that are free now."""
    for item in items:
        shutil.rmtree(item.path)
    return sum(item.bytes for item in items)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
