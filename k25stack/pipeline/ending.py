"""What a run leaves for people when it is over: status.md, report.html, summary.json and the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.files import write_json
from k25stack.pipeline.runner import Outcome


@dataclass(frozen=True)
class Ending:
    table: str
    paths: list[Path]
    summary: dict[str, Any]
    next: str
    failed: tuple[str, ...] = ()  # gates that do not hold, each with its figure and limit


def finish(outcome: Outcome, stack_path: Path) -> Ending:
    """Write the documents of a run from its ledger; the same ledger gives the same documents."""
    from k25stack import report

    run = outcome.run
    paths = report.write(run.directory)
    summary = report.summary(run.directory)
    summary_path = run.directory / "summary.json"
    if summary_path not in paths:
        write_json(summary_path, summary)
        paths = [*paths, summary_path]
    failed = tuple(
        f"{gate.name}: {gate.value:g}, the stack's limit is {gate.limit:g}"
        for gate in report.gates(run.directory)
        if gate.holds is False and gate.value is not None
    )
    return Ending(report.table(run.directory), paths, summary, _next(outcome, stack_path), failed)


def _next(outcome: Outcome, stack_path: Path) -> str:
    """The command that helps most after this run."""
    if "package" in outcome.results and any(name.startswith("bench-") for name in outcome.results):
        return f"k25stack draft inspect {outcome.results['package'].tree.root}"
    return f"k25stack run {stack_path}"
