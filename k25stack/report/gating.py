"""The stack's gates, judged by what was measured.  A limit that is null, or has nothing to judge, is not judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k25stack.report.facts import Facts, read_facts
from k25stack.report.figures import Profile, of_role, profiles
from k25stack.report.warnings import SUSPECTS


@dataclass(frozen=True)
class Gate:
    """One limit.  ``holds`` is None when the ledger has no such figure yet."""

    name: str
    limit: float
    value: float | None
    holds: bool | None
    remark: str = ""

    @property
    def verdict(self) -> str:
        return "not measured" if self.holds is None else "holds" if self.holds else "FAILS"


def gates(run: Path) -> list[Gate]:
    """Every gate of a run directory's stack with its verdict.  Raises UsageError when there is no ledger."""
    facts = read_facts(run)
    return judge(facts, profiles(facts))


def judge(facts: Facts, found: Sequence[Profile]) -> list[Gate]:
    """Every gate of the stack that is set."""
    limits: Mapping[str, Any] = (facts.start.get("stack") or {}).get("gates") or {}
    known = {gate.name: gate for gate in _all(facts, found, {name: v for name, v in limits.items() if v is not None})}
    return [known[name] for name in limits if name in known]


def _all(facts: Facts, found: Sequence[Profile], limits: Mapping[str, Any]) -> Iterator[Gate]:
    draft, control = of_role(found, "draft"), of_role(found, "control")
    measured = draft.measured if draft else None
    if "min_accept_length" in limits:
        yield _least("min_accept_length", limits, measured.value if measured else None)
    if "max_random_control" in limits:
        yield _most("max_random_control", limits, control.measured.value if control and control.measured else None)
    if "min_rounds" in limits:
        yield _least("min_rounds", limits, measured.rounds if measured else None)
    if "min_gap_ratio" in limits:
        gate = _least("min_gap_ratio", limits, draft.gap_ratio if draft else None)
        remark = SUSPECTS.get(draft.gap_verdict or "", "") if draft and not gate.holds else ""
        yield replace(gate, remark=remark)
    if "max_prediction_gap" in limits:
        yield _prediction(limits, draft)
    if "max_faults" in limits:
        judged = [row["lossless"]["faults"] for p in found for row in p.rows if row.get("lossless")]
        yield _most("max_faults", limits, sum(judged) if judged else None)
    if "min_coverage" in limits:
        yield _least("min_coverage", limits, facts.held_out_coverage())


def _least(name: str, limits: Mapping[str, Any], value: float | None) -> Gate:
    return Gate(name, limits[name], value, None if value is None else value >= limits[name])


def _most(name: str, limits: Mapping[str, Any], value: float | None) -> Gate:
    return Gate(name, limits[name], value, None if value is None else value <= limits[name])


def _prediction(limits: Mapping[str, Any], draft: Profile | None) -> Gate:
    """|measured - predicted| over the same responses, or the paired interval of the difference holds 0."""
    limit = limits["max_prediction_gap"]
    if draft is None or draft.served is None or draft.predicted is None:
        return Gate("max_prediction_gap", limit, None, None)
    gap = abs(draft.served.value - draft.predicted.value)
    interval = draft.overall.get("difference_interval")
    inside = interval is not None and interval[0] <= 0.0 <= interval[1]
    remark = "the 95 % interval of the difference holds 0" if inside and gap > limit else ""
    return Gate("max_prediction_gap", limit, gap, gap <= limit or inside, remark)
