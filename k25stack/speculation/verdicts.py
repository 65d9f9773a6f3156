"""From accept length to speed: gap ratio, step-cost ratio, break-even, speed-up."""

from __future__ import annotations

from dataclasses import dataclass

from k25stack.errors import UsageError

ENOUGH_ROUNDS = 1500
"""Rounds below which a measured accept length is no evidence about the wiring."""

NOTHING = 1.05
"""An accept length up to this says: the draft contributes nothing."""

CAPPED = 0.95
"""Running requests below this share of the asked concurrency make a row "capped"."""

EQUAL_BATCH = 0.10
"""Running batches further apart than this (relative) are not equal."""


@dataclass(frozen=True)
class GapRatio:
    """``ratio`` is None where it means nothing; ``verdict`` says which of the cases it is."""

    ratio: float | None  # (measured - 1) / (predicted - 1), no unit
    verdict: str  # "fine" | "weak or shifted" | "wiring fault" | "not enough rounds" | "nothing predicted"


def gap_ratio(measured: float, predicted: float, rounds: int) -> GapRatio:
    """Does serving deliver what the greedy walk predicted?

    (measured - 1) / (predicted - 1), both accept lengths over the same prompts, responses and k; the subtraction
    removes the floor of one token per round that needs no draft.  Under 0.3 the states or weights are wired wrongly,
    up to 0.8 the draft is weak or the traffic shifted, above it is fine.  ``rounds`` = complete rounds measured.
    """
    if rounds < ENOUGH_ROUNDS:
        ratio = (measured - 1) / (predicted - 1) if predicted > NOTHING else None
        return GapRatio(ratio, "not enough rounds")
    if predicted <= NOTHING:
        return GapRatio(None, "nothing predicted")
    ratio = (measured - 1) / (predicted - 1)
    if ratio < 0.3:
        return GapRatio(ratio, "wiring fault")
    return GapRatio(ratio, "weak or shifted" if ratio < 0.8 else "fine")


@dataclass(frozen=True)
class StepTime:
    """Time of one decode step (plain) or one round (speculative) over a steady window, prefill excluded."""

    seconds: float  # wall time of a step or round
    running: float  # mean requests in decode during the window
    concurrency: int  # requests the client kept open

    @property
    def capped(self) -> bool:
        """The server ran fewer requests than asked (its own limit, or the client): no evidence about this batch."""
        return self.running < CAPPED * self.concurrency


@dataclass(frozen=True)
class StepCost:
    """``r`` is None unless ``verdict`` is "fine"."""

    r: float | None  # round time / plain step time, no unit
    verdict: str  # "fine" | "capped" | "unequal batch"


def step_cost_ratio(plain: StepTime, speculative: StepTime) -> StepCost:
    """r = time of a speculative round / time of a plain decode step at equal running batch.

    A capped row never gives r, nor do rows whose running batches differ by more than 10 %.
    Raises UsageError for a step time that is not positive.
    """
    if plain.seconds <= 0 or speculative.seconds <= 0:
        raise UsageError("a step time must be positive", where="step-cost ratio")
    if plain.capped or speculative.capped:
        return StepCost(None, "capped")
    if abs(plain.running - speculative.running) > EQUAL_BATCH * max(plain.running, speculative.running):
        return StepCost(None, "unequal batch")
    return StepCost(speculative.seconds / plain.seconds, "fine")


def break_even(r: float) -> float:
    """Accept length (tokens per round) at which speculation is as fast as none: r itself."""
    return r


def speedup(accept_length: float, r: float) -> float:
    """Accept length / r, no unit: above 1 speculation is faster."""
    if r <= 0:
        raise UsageError(f"step-cost ratio {r}, expected above 0", where="speed-up")
    return accept_length / r


def expected_accept_length(conditional: list[float]) -> float:
    """1 + sum of the running products of c_1 .. c_k (tokens per round) for a chain.

    Example: conditional accuracies .745, .649, .573 give 2.506.
    """
    survival, length = 1.0, 1.0
    for c in conditional:
        survival *= c
        length += survival
    return length


@dataclass(frozen=True)
class OldRate:
    """What an old "accept rate" meant."""

    accept_length: float  # tokens per round
    accept_rate: float  # accepted / proposed draft tokens


def convert_old_accept_rate(rate: float, draft_tokens: int) -> OldRate:
    """Translate the rate that SGLang printed before sgl-project/sglang #23530 (April 2026).

    It was accept length / ``draft_tokens``, where ``draft_tokens`` counts the verified row (k + 1 for a chain), so
    it never fell below 1 / draft_tokens: 0.25 with 4 means accept length 1.00 and nothing accepted.
    Raises UsageError when the rate lies outside 1 / draft_tokens .. 1 (allowing for rounding to two digits).
    """
    if draft_tokens < 2 or not 1 / draft_tokens - 0.005 <= rate <= 1.005:
        raise UsageError(
            f"{rate} is no old accept rate with {draft_tokens} draft tokens",
            where="accept rate",
            remedy=f"it lies between 1/{draft_tokens} and 1; a lower value is a rate of the new definition",
        )
    length = min(max(rate * draft_tokens, 1.0), float(draft_tokens))
    return OldRate(length, (length - 1) / (draft_tokens - 1))
