"""What a measurement is told: the parameters of one profile's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from k25stack.errors import UsageError

WARMUP_TOKENS = 32
"""Tokens per warm-up request at most: enough to touch every shape, not worth more time."""


@dataclass(frozen=True)
class PromptFilter:
    """Which recorded rows are replayed."""

    split: str = "held_out"
    domains: tuple[str, ...] = ()  # empty: all
    take: int | None = None  # None: all


@dataclass(frozen=True)
class Protocol:
    """Everything that decides a row, apart from the server.  Field names are the parameters' keys."""

    profile: str
    engine: str  # name in k25stack.engines
    concurrency: tuple[int, ...] = (1,)
    max_tokens: int | None = None  # None: that of the recorded answers
    repeats: int = 1
    warmup: int = 16  # requests before each concurrency; at least the concurrency
    requests_per_slot: int = 10  # a repeat sends this times the concurrency ...
    min_seconds: float = 0.0  # ... and takes at least so long
    min_rounds: int = (
        0  # ... and, at the highest concurrency, goes on through unsent prompts until so many are complete
    )
    steady_share: float = 0.8
    request_timeout_s: float = 600.0
    stall_timeout_s: float = 120.0
    ignore_eos: bool = False
    seed: int = 0  # order of the prompts, bootstrap
    prompts: PromptFilter = field(default_factory=PromptFilter)
    decode: dict[str, Any] = field(default_factory=dict)  # empty: that of the recorded answers
    k: int | None = None  # draft tokens per round; None: no speculation
    verify_rule: str | None = None
    lossless_prompts: int | None = None  # outputs compared with the baseline's at most; None: all
    role: str = "none"  # baseline | control | draft | none
    draft: str | None = None
    engine_version: str | None = None

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> Protocol:
        """From a step's ``params``.  Raises UsageError for an unknown name or a value that cannot be."""
        known = [entry.name for entry in fields(cls)]
        for name in params:
            if name not in known:
                near = get_close_matches(name, known, 1)
                remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise UsageError(f"unknown parameter {name!r}", where="bench", remedy=remedy)
        values = dict(params)
        values["concurrency"] = tuple(values.get("concurrency") or (1,))
        chosen = values.get("prompts") or {}
        values["prompts"] = PromptFilter(
            split=chosen.get("split", "held_out"), domains=tuple(chosen.get("domains") or ()), take=chosen.get("take")
        )
        try:
            protocol = cls(**values)
        except TypeError as error:
            raise UsageError(f"parameters do not fit: {error}", where="bench") from None
        protocol._check()
        return protocol

    def rounds_at(self, concurrency: int) -> int:
        """Complete rounds to reach: asked of the highest concurrency only, where they cost least time."""
        return self.min_rounds if concurrency == max(self.concurrency) else 0

    def _check(self) -> None:
        positive = {
            "concurrency": min(self.concurrency),
            "repeats": self.repeats,
            "requests_per_slot": self.requests_per_slot,
            "max_tokens": 1 if self.max_tokens is None else self.max_tokens,
        }
        for name, value in positive.items():
            if value < 1:
                raise UsageError(f"{name} is {value}, expected at least 1", where="bench")
        if not 0 < self.steady_share <= 1:
            raise UsageError(f"steady_share is {self.steady_share}, expected 0..1", where="bench")
