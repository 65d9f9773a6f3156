"""What is going on in a working directory, from files only: looking changes nothing and waits for nobody."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from k25stack.ledger import Record, read
from k25stack.locks import describe, holder
from k25stack.pipeline.backends import Looker
from k25stack.pipeline.lease import lease_holder
from k25stack.pipeline.progress import describe as describe_progress
from k25stack.pipeline.progress import read_progress
from k25stack.pipeline.workspace import Run, Workspace


def overview(workspace: Workspace) -> dict[str, Any]:
    """``{lease, disk, runs}`` as plain values; ``runs`` begins with the one used last."""
    backend = Looker(workspace)
    return {
        "lease": lease_holder(),
        "disk": _disk(workspace),
        "runs": [run_state(run, backend) for run in workspace.all_runs()],
    }


def run_state(run: Run, backend: Looker) -> dict[str, Any]:
    """One run: its state in a word, who holds it, its jobs with their progress, its steps and its last end."""
    silent: list[str] = []
    records = read(run.ledger, silent.append)
    jobs = [_job(run, backend, handle) for handle in backend.jobs(run.name)]
    held_by = holder(run.lock)
    last = next((record for record in reversed(records) if record.kind in ("run.start", "run.end")), None)
    ended = last.data if last is not None and last.kind == "run.end" else None
    return {
        "run": run.name,
        "stack": run.stack,
        "directory": str(run.directory),
        "state": _word(held_by, [job for job in jobs if job["phase"] == "running"], ended),
        "holder": held_by,
        "jobs": jobs,
        "steps": _steps(records),
        "last_end": ended,
        "warnings": silent,
    }


def _word(held_by: dict[str, Any] | None, running: list[dict[str, Any]], ended: dict[str, Any] | None) -> str:
    if held_by is not None:
        return "running"
    if running:
        return "running without its command"
    if ended is None:
        return "killed"
    return {0: "finished", 130: "interrupted"}.get(int(ended["code"]), "failed")


def _job(run: Run, backend: Looker, handle: str) -> dict[str, Any]:
    key, step = backend.key(handle), Path(handle).name
    progress = read_progress(run.workspace.work / key / "progress.json")
    state = backend.poll(handle)
    return {
        "step": step,
        "key": key,
        "phase": state.phase,
        "ports": list(backend.ports(handle)),
        "progress": progress,
        "log": str(backend.logs(handle)),
    }


def _steps(records: list[Record]) -> list[dict[str, Any]]:
    """The last end of every step, in the order in which they first ended."""
    last: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.kind == "step.end":
            last[str(record.data["step"])] = record.data
    return [
        {name: data.get(name) for name in ("step", "key", "seconds", "peak_rss_gb", "bytes")} for data in last.values()
    ]


def _disk(workspace: Workspace) -> dict[str, float]:
    """What the loop keeps; engines that tests put below state/ are many thousands of files, and not the loop's."""
    rooms = (workspace.artefacts, workspace.measurements, workspace.work, workspace.jobs, workspace.models)
    stats = (path.lstat() for room in rooms for path in room.rglob("*") if path.is_file())
    files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}
    free = shutil.disk_usage(workspace.state if workspace.state.exists() else Path.cwd()).free
    return {"used_gb": round(sum(files.values()) / 1e9, 3), "free_gb": round(free / 1e9, 2)}


def render(view: dict[str, Any]) -> list[str]:
    """The overview as lines for people."""
    lines = []
    for run in view["runs"]:
        holder_text = f" ({describe(run['holder'])})" if run["holder"] else ""
        lines.append(f"{run['run']}: {run['state']}{holder_text}, {len(run['steps'])} steps there")
        for job in run["jobs"]:
            if job["phase"] == "running":
                where = f" on port {job['ports'][0]}" if job["ports"] else f": {describe_progress(job['progress'])}"
                lines.append(f"  {job['step']}{where}")
        if run["state"] == "failed":
            lines.append(f"  {run['last_end']['error']}")
        lines += [f"  warning: {text}" for text in run["warnings"]]
    if not lines:
        lines.append("no runs here")
    lease = view["lease"]
    if lease:
        progress = f", {lease['progress']}" if lease.get("progress") else ""
        lines.append(f"lease: {lease.get('who', 'somebody')}, {describe(lease)}{progress}")
    else:
        lines.append("lease: free")
    lines.append(f"disk: {view['disk']['used_gb']} GB of artefacts and models, {view['disk']['free_gb']} GB free")
    return lines
