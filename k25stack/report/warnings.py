"""What the figures say by themselves: findings that nobody should have to discover by reading a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from k25stack.report.facts import Facts
from k25stack.report.figures import Profile, stale_costs

PLATEAU = 0.01
"""A relative fall of the loss below this, twice in a row, is a plateau."""

TOKENS_PER_PARAMETER = 1.0
"""Response tokens of one epoch per draft parameter, below which data and not steps are the limit."""

SUSPECTS = {
    "wiring fault": "suspects: weights dropped at load (key names), hidden states of the wrong width or layers, "
    "auxiliary capture not active, draft vocabulary map, chat template",
    "weak or shifted": "suspects: prompts or decode mode other than in training, states from another engine or "
    "precision, verify rule",
    "not enough rounds": "measure more or longer held-out responses: at least 1500 complete rounds",
    "nothing predicted": "the walk itself says that the draft contributes nothing",
}


def warnings(facts: Facts, found: Sequence[Profile]) -> list[str]:
    """One line per finding, the gravest first; ``found`` are the figures of every profile."""
    return [
        *_losses(found),
        *_rejected(facts),
        *_lengths(found),
        *_gaps(found),
        *_costs(facts, found),
        *_training(facts),
        *_references(facts),
    ]


def _losses(found: Sequence[Profile]) -> Iterator[str]:
    for profile in found:
        for row in profile.rows:
            faults = (row.get("lossless") or {}).get("faults")
            if faults:
                yield f"{profile.name} C={row['concurrency']}: not lossless: {faults} faults against the baseline"


def _rejected(facts: Facts) -> Iterator[str]:
    for row in facts.rows:
        if not row["accepted"]:
            yield f"{row['profile']} C={row['concurrency']}: row rejected: {'; '.join(row['reasons'])}"


def _lengths(found: Sequence[Profile]) -> Iterator[str]:
    for profile in found:
        if profile.measured is None:
            continue
        length, nothing = profile.measured.value, profile.overall["contributes_nothing"]
        if profile.role == "control" and not nothing:
            yield (
                f"{profile.name}: a random draft reached accept length {length:.3f} tokens/round; it should stay at "
                "1.00: what is measured as accepted?"
            )
        elif profile.role != "control" and nothing:
            yield f"{profile.name}: accept length {length:.3f} tokens/round: the draft contributes nothing"


def _gaps(found: Sequence[Profile]) -> Iterator[str]:
    for profile in found:
        if profile.gap_verdict is None or profile.gap_verdict == "fine":
            continue
        ratio = "" if profile.gap_ratio is None else f"gap ratio {profile.gap_ratio:.2f}: "
        yield f"{profile.name}: {ratio}{profile.gap_verdict}; {SUSPECTS[profile.gap_verdict]}"


def _costs(facts: Facts, found: Sequence[Profile]) -> Iterator[str]:
    for profile in found:
        for concurrency, cost in profile.costs.items():
            if cost["verdict"] != "fine":
                yield (
                    f"{profile.name} C={concurrency}: {cost['verdict']}: fewer requests ran than were open, "
                    "or not as many as in the baseline: no step-cost ratio, no break-even"
                )
        for concurrency in stale_costs(facts, profile):
            yield (
                f"{profile.name} C={concurrency}: the baseline was measured again after the step-cost ratio was taken; "
                f"measure again too (k25stack run ... --again bench-{profile.name})"
            )


def _training(facts: Facts) -> Iterator[str]:
    seen, epochs = facts.figure("train", "response_tokens"), facts.figure("train", "epochs")
    parameters = facts.figure("train", "parameters")
    if seen and epochs and parameters and seen / epochs / parameters < TOKENS_PER_PARAMETER:
        tokens = round(seen / epochs)
        yield (
            f"data-limited: {tokens:,} response tokens an epoch for {parameters:,} draft parameters "
            f"({tokens / parameters:.3f} tokens per parameter); more data helps more than more epochs"
        )
    if plateau(facts.epochs):
        yield f"loss plateau: under {PLATEAU:.0%} lower in each of the last two evaluations; more data, not more epochs"


def plateau(epochs: tuple[dict[str, Any], ...]) -> bool:
    """The loss fell by less than 1 % in each of the last two evaluations."""
    losses = [float(value) for epoch in epochs if (value := loss_of(epoch)) is not None][-3:]
    return len(losses) == 3 and all(b > a * (1 - PLATEAU) for a, b in pairwise(losses))


def loss_of(epoch: dict[str, Any]) -> float | None:
    """The training loss up to an evaluation."""
    value = epoch.get("loss")
    return float(value) if isinstance(value, int | float) else None


def _references(facts: Facts) -> Iterator[str]:
    for row in facts.references:
        if row.get("confounders"):
            where = f"{row.get('profile') or 'elsewhere'} {row['metric']}"
            yield f"reference {where} {row['value']:g} {row['unit']}: not comparable: {'; '.join(row['confounders'])}"
