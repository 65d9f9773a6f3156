"""The figures of each benchmarked profile, as its rows carry them.  Nothing is computed here: `bench` has done it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k25stack.report.facts import Facts

Row = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """An accept length with its 95 % interval, clustered by prompt."""

    value: float  # tokens per round
    interval: Sequence[float] | None
    rounds: int  # complete ones; a greedy response that was asked for again counts once
    prompts: int | None

    @classmethod
    def of(cls, raw: Mapping[str, Any] | None) -> Estimate | None:
        return None if raw is None else cls(raw["value"], raw["interval"], raw["rounds"], raw["prompts"])


@dataclass(frozen=True)
class Profile:
    """One profile of the table; ``rows`` in order of concurrency."""

    name: str
    role: str
    rows: tuple[Row, ...]
    overall: Mapping[str, Any]  # of its newest row, {} without speculation

    @property
    def measured(self) -> Estimate | None:
        return Estimate.of(self.overall.get("accept_length"))

    @property
    def served(self) -> Estimate | None:
        """The part of the measured rounds over responses that have a walk."""
        return Estimate.of(self.overall.get("served"))

    @property
    def predicted(self) -> Estimate | None:
        """The greedy walk over these responses, weighted as they were served."""
        return Estimate.of(self.overall.get("predicted"))

    @property
    def gap_ratio(self) -> float | None:
        return (self.overall.get("gap") or {}).get("ratio")

    @property
    def gap_verdict(self) -> str | None:
        return (self.overall.get("gap") or {}).get("verdict")

    @property
    def single(self) -> dict[str, Any] | None:
        """Single-stream tok/s over the repeats."""
        return next((row["single_stream_tok_s"] for row in self.rows if row.get("single_stream_tok_s")), None)

    @property
    def costs(self) -> dict[int, Mapping[str, Any]]:
        """Concurrency -> r with its verdict, break-even and speed-up."""
        return {int(row["concurrency"]): row["cost"] for row in self.rows if row.get("cost")}


def profiles(facts: Facts) -> list[Profile]:
    """Every benchmarked profile, in the order of the ledger."""
    names = dict.fromkeys(str(row["profile"]) for row in facts.rows)
    return [_profile(facts, name) for name in names]


def _profile(facts: Facts, name: str) -> Profile:
    own = [row for row in facts.rows if row["profile"] == name]
    ordered = tuple(sorted(own, key=lambda row: int(row["concurrency"])))
    return Profile(name, str(own[0].get("role", "none")), ordered, own[-1].get("overall") or {})


def of_role(found: Sequence[Profile], role: str) -> Profile | None:
    """The first profile with this role."""
    return next((profile for profile in found if profile.role == role), None)


def stale_costs(facts: Facts, profile: Profile) -> list[int]:
    """Concurrencies whose r was taken against a baseline that has been measured again since."""
    now = {int(row["concurrency"]): (row.get("step") or {}).get("seconds") for row in facts.role("baseline")}
    return [
        concurrency
        for concurrency, cost in profile.costs.items()
        if cost["baseline_step_s"] is not None and now.get(concurrency) not in (None, cost["baseline_step_s"])
    ]
