"""The benchmark protocol, the gates, and results from elsewhere with what makes them hard to compare."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from k25stack.stack.base import Count, Name, NonNegativeFloat, Positive, PositiveFloat, Scalar, Section, Share, Text


class Prompts(Section):
    """Which prompts the load generator sends."""

    split: Literal["held_out", "validation", "train"] = "held_out"
    domains: tuple[Name, ...] = ()  # empty: all
    take: Positive | None = None  # null: all


class ProfileBench(Section):
    """What one profile's measurement has otherwise than the rest; null: as the rest."""

    concurrency: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    repeats: Positive | None = None
    requests_per_slot: Positive | None = None
    min_seconds: NonNegativeFloat | None = None
    min_rounds: Count | None = None


class Bench(Section):
    """Repeats run on the same server after a warm-up; the decode mode is the one of ``data.decode``."""

    profiles: tuple[Name, ...] = ()  # rows in this order; empty: every profile
    concurrency: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    repeats: Positive = 3
    max_tokens: Positive | None = None  # of one reply; null: as many as the recorded answer had
    ignore_eos: bool = False
    prompts: Prompts = Field(default_factory=Prompts)
    warmup: Count = 16  # requests before each concurrency, at least the concurrency itself
    requests_per_slot: Positive = 10  # requests of a repeat = this times the concurrency ...
    min_seconds: NonNegativeFloat = 60  # ... and at least so long
    min_rounds: Count = 0  # ... and on through prompts not sent yet until so many speculative rounds are complete
    steady_share: Share = 0.8  # the steady window holds at least this share of the peak number running
    request_timeout_s: PositiveFloat = 600
    stall_timeout_s: PositiveFloat = 120  # without a byte
    seed: Count = 0
    overrides: dict[Name, ProfileBench] = Field(default_factory=dict)  # by profile

    def of(self, profile: str) -> Bench:
        """The protocol of one profile."""
        own = self.overrides.get(profile)
        changes = {} if own is None else own.model_dump(exclude_none=True)
        return self.model_copy(update={**changes, "overrides": {}})


class Gates(Section):
    """Measured limits; null: not judged."""

    min_accept_length: PositiveFloat | None = None
    max_random_control: PositiveFloat | None = None  # accept length of the random draft
    min_gap_ratio: NonNegativeFloat | None = None  # (measured - 1) / (predicted - 1)
    max_prediction_gap: NonNegativeFloat | None = None  # |measured - predicted| unless the interval holds it
    min_rounds: Positive = 1500  # fewer: "not enough rounds" is the verdict
    max_faults: Count = 0  # lossless: ties are counted, faults are not allowed
    min_coverage: Share | None = None  # held-out tokens inside the draft vocabulary


class ReferenceResult(Section):
    """A figure from elsewhere.  It stands beside ours only while no confounder is left."""

    profile: Name | None = None  # the profile whose row it belongs to
    metric: Literal["single_stream", "throughput", "accept_length", "accept_rate_old"]
    value: PositiveFloat
    unit: Literal["tok/s", "tokens", "share"]
    concurrency: Positive | None = None
    conditions: dict[str, Scalar] = Field(default_factory=dict)
    origin: Text
    confounders: tuple[Text, ...] = ()

    @property
    def comparable(self) -> bool:
        return not self.confounders
