"""``summary.json``: the run in a few figures with stable keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k25stack.report.facts import Facts, read_facts
from k25stack.report.figures import Profile, of_role, profiles


def summary(run: Path) -> dict[str, Any]:
    """The summary of a run directory; null where the ledger holds no such figure.  Raises UsageError without one."""
    facts = read_facts(run)
    return summarise(facts, profiles(facts))


def summarise(facts: Facts, found: Sequence[Profile]) -> dict[str, Any]:
    """Keys, units and definitions: accept lengths in tokens per round (1 + accepted / verify calls), tok_s single
    stream (1 / TPOT), speedup = accept length / r and break_even = r at the lowest concurrency that gave r."""
    draft, control, baseline = (of_role(found, role) for role in ("draft", "control", "baseline"))
    cost = next((cost for cost in draft.costs.values() if cost["r"] is not None), {}) if draft else {}
    return {
        "accept_length": _accept_length(facts, draft, control),
        "lossless": _lossless(draft),
        "speedup": _rounded(cost.get("speedup")),
        "break_even": _rounded(cost.get("break_even")),
        "coverage": _rounded(facts.held_out_coverage()),
        "tok_s": {
            "baseline": _rounded(baseline.single["median"] if baseline and baseline.single else None, 2),
            "draft": _rounded(draft.single["median"] if draft and draft.single else None, 2),
        },
        "train": {"tok_s": _rounded(facts.figure("train", "tok_s"), 1), "epochs": facts.figure("train", "epochs")},
        "extract": {
            "tok_s": _rounded(facts.figure("extract", "tok_s"), 1),
            "bytes_per_token": _rounded(facts.figure("extract", "bytes_per_token"), 1),
        },
        "seconds": seconds(facts),
        "peak_rss_gb": peak_rss_gb(facts),
        "versions": dict(facts.start.get("versions") or {}),
    }


def _accept_length(facts: Facts, draft: Profile | None, control: Profile | None) -> dict[str, Any]:
    measured = draft.measured if draft else None
    predicted = draft.predicted.value if draft and draft.predicted else by_training(facts, "accept_length")
    return {
        "measured": _rounded(measured.value if measured else None),
        "predicted": _rounded(predicted),
        "survival_uniform": _rounded(by_training(facts, "survival_uniform")),
        "random_control": _rounded(control.measured.value if control and control.measured else None),
        "k": draft.rows[0]["k"] if draft else None,
        "rounds": measured.rounds if measured else None,
    }


def by_training(facts: Facts, name: str) -> float | None:
    """What the training step predicted over all held-out responses."""
    predicted = facts.figure("train", "predicted")
    value = predicted.get(name) if isinstance(predicted, Mapping) else None
    return None if value is None else float(value)


def _lossless(draft: Profile | None) -> dict[str, int | None]:
    """Faults and ties over all rows whose outputs were compared with the baseline's; null when none was."""
    judged = [row["lossless"] for row in draft.rows if row.get("lossless")] if draft else []
    if not judged:
        return {"faults": None, "ties": None}
    return {name: sum(int(one[name]) for one in judged) for name in ("faults", "ties")}


def seconds(facts: Facts) -> dict[str, float]:
    """Seconds of each step's own work; ``total`` leaves out the set-up: its steps, and installation where known."""
    setup = sum(step.seconds for step in facts.steps.values() if step.setup) + (facts.start.get("installation_s") or 0)
    others = {step.name: round(step.seconds, 2) for step in facts.steps.values() if not step.setup}
    return {"setup": round(setup, 2), **others, "total": round(sum(others.values()), 2)}


def peak_rss_gb(facts: Facts) -> float | None:
    """The largest memory of the process tree at any moment of any step, GB."""
    known = [step.peak_rss_gb for step in facts.steps.values() if step.peak_rss_gb is not None]
    return round(max(known), 3) if known else None


def _rounded(value: Any, digits: int = 4) -> float | None:
    return None if value is None else round(float(value), digits)
