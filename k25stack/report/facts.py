"""What a run's ledger says, the newest record of each thing.

Record kinds and the fields that are read (others are kept and ignored):

=============  ======================================================================================================
run.start      run, stack {the resolved stack}, host {...}, versions {name: version}
run.end        code, seconds, peak_rss_gb, error
step.end       step, key, seconds, cached, setup, peak_rss_gb, result {figures with units in their names}
bench.row      a row of ``k25stack.bench``, with what follows from it under ``overall`` and ``cost``
train.epoch    one evaluation of the training
coverage       overall, by_domain, by_split: share of tokens inside the draft vocabulary
check          one result of ``k25stack check``
reference.row  profile, metric, value, unit, concurrency, origin, confounders: a figure from elsewhere
note, discovery, decision, assumption   text, and for discoveries evidence
=============  ======================================================================================================

A record that carries ``step`` and ``key`` is a fact of that step; it counts while the step's newest end has that key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k25stack import ledger
from k25stack.errors import UsageError
from k25stack.ledger import Record

TEXTS = ("note", "discovery", "decision", "assumption")


@dataclass(frozen=True)
class Step:
    """The newest end of a step."""

    name: str
    key: str
    seconds: float  # of the work itself, also when the last call found it done
    cached: bool
    setup: bool  # installation and one-off conversions, not counted in the total
    result: dict[str, Any]
    peak_rss_gb: float | None


@dataclass(frozen=True)
class Facts:
    """One run."""

    run: str
    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    updated: str = ""  # time of the newest record
    steps: dict[str, Step] = field(default_factory=dict)  # by name, in order of first end
    rows: tuple[dict[str, Any], ...] = ()  # newest of each profile and concurrency
    epochs: tuple[dict[str, Any], ...] = ()  # of the newest training
    coverage: dict[str, Any] | None = None
    checks: tuple[dict[str, Any], ...] = ()  # newest of each target
    references: tuple[dict[str, Any], ...] = ()
    texts: dict[str, tuple[Record, ...]] = field(default_factory=dict)

    def figure(self, step: str, name: str) -> Any:
        """A figure of a step's result, at its top or in the part named like the step; None when there is none."""
        result = self.steps[step].result if step in self.steps else {}
        part = result.get(step)
        return result.get(name, part.get(name) if isinstance(part, dict) else None)

    def held_out_coverage(self) -> float | None:
        """Share of held-out response tokens inside the draft vocabulary (of all tokens where splits are not told)."""
        coverage = self.coverage or {}
        by_split = coverage.get("by_split") or {}
        value = by_split.get("held_out", coverage.get("overall"))
        return float(value) if isinstance(value, int | float) else None

    def role(self, role: str) -> list[dict[str, Any]]:
        """Rows of the profiles with this role."""
        return [row for row in self.rows if row.get("role") == role]


def read_facts(run: Path) -> Facts:
    """The facts of a run directory.  Raises UsageError when it has no ledger."""
    records = ledger.read(run / "ledger") if (run / "ledger").is_dir() else []
    if not records:
        raise UsageError("no ledger here", where=str(run), remedy="give a run directory or the name of a run")
    return facts_of(run.resolve().name, records)


def facts_of(run: str, records: Sequence[Record]) -> Facts:
    """Sort records into facts; later ones replace earlier ones of the same thing."""
    steps = _steps([record.data for record in records if record.kind == "step.end"])
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record.kind == "step.end" or _current(record.data, steps):
            by_kind.setdefault(record.kind, []).append(record.data)
    starts, ends = by_kind.get("run.start", []), by_kind.get("run.end", [])
    last_start = max((r.order() for r in records if r.kind == "run.start"), default=("", "", 0))
    last_end = max((r.order() for r in records if r.kind == "run.end"), default=("", "", -1))
    coverage = by_kind.get("coverage", [])
    return Facts(
        run=run,
        start=starts[-1] if starts else {},
        end=ends[-1] if ends and last_end > last_start else None,
        updated=records[-1].time,
        steps=steps,
        rows=_newest(by_kind.get("bench.row", []), ("profile", "concurrency")),
        epochs=_last_training(by_kind.get("train.epoch", [])),
        coverage=coverage[-1] if coverage else None,
        checks=_newest(by_kind.get("check", []), ("kind", "target")),
        references=_newest(by_kind.get("reference.row", []), ("profile", "metric", "concurrency", "origin")),
        texts={kind: tuple(record for record in records if record.kind == kind) for kind in TEXTS},
    )


def _newest(items: Sequence[dict[str, Any]], by: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """The last item of each combination of ``by``, in order of first appearance."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item in items:
        found[tuple(str(item.get(name)) for name in by)] = item
    return tuple(found.values())


def _current(data: dict[str, Any], steps: dict[str, Step]) -> bool:
    """A fact of a step whose result was replaced by one with another key is out of date."""
    step = steps.get(str(data.get("step")))
    return step is None or "key" not in data or data["key"] == step.key


def _steps(ends: Sequence[dict[str, Any]]) -> dict[str, Step]:
    return {
        str(end["step"]): Step(
            name=str(end["step"]),
            key=str(end.get("key")),
            seconds=float(end.get("seconds") or 0.0),
            cached=bool(end.get("cached")),
            setup=bool(end.get("setup")),
            result=dict(end.get("result") or {}),
            peak_rss_gb=end.get("peak_rss_gb"),
        )
        for end in ends
    }


def _last_training(epochs: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Evaluations since the epoch number last went back: an earlier training of this run is no part of the curve."""
    start = 0
    for index in range(1, len(epochs)):
        if epochs[index].get("epoch", index) < epochs[index - 1].get("epoch", index - 1):
            start = index
    return tuple(epochs[start:])
