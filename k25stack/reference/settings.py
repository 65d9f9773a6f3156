"""Sizes and modes of the engine, its counters, and whether target, draft and sizes belong together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from k25stack.draft.model import DraftModel
from k25stack.errors import UsageError
from k25stack.reference.request import FINISHES
from k25stack.reference.target import Target
from k25stack.speculation.rounds import RoundCounts

SampleRule = Literal["rejection", "target_only"]


@dataclass(frozen=True)
class EngineConfig:
    """Sizes and modes.  ``max_len``: prompt + response tokens per request."""

    slots: int = 16
    max_len: int = 2048
    k: int = 3  # draft tokens per round; without a draft used only by same_rows
    same_rows: bool = False
    sample_rule: SampleRule = "rejection"  # verify rule of requests that sample
    prefill_tokens: int = 1024  # prompt tokens of one prefill forward
    prefill_chunk: int = 512  # prompt tokens per request and prefill forward
    seed: int = 0  # of requests that bring none

    def __post_init__(self) -> None:
        for name in ("slots", "max_len", "k", "prefill_tokens", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, expected at least 1", where="engine")


@dataclass
class Totals:
    """Counters since the start; times in seconds."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    histogram: list[int] = field(default_factory=list)  # uncut rounds by accepted tokens
    cut: int = 0
    prefill_steps: int = 0
    prefill_seconds: float = 0.0
    decode_steps: int = 0  # engine rounds, of all running requests at once
    decode_seconds: float = 0.0
    decode_requests: int = 0  # sum over decode steps of the requests that took part
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHES, 0))

    def rounds(self) -> RoundCounts:
        return RoundCounts.from_histogram(tuple(self.histogram), self.cut) if self.histogram else RoundCounts(0, 0, 0)


def longest(context: int, k: int) -> int:
    """The greatest ``max_len``: a verify forward at the end writes up to k - 1 rows behind the last token ever fed."""
    return context - max(0, k - 1)


def check_fit(target: Target, draft: DraftModel | None, layers: tuple[int, ...], config: EngineConfig) -> None:
    """Raises UsageError when draft, target and sizes do not belong together."""
    shape = target.config
    most = longest(shape.context, config.k if draft is not None or config.same_rows else 0)
    if config.max_len > most:
        what = f"max-len {config.max_len} exceeds the target's context of {shape.context}"
        raise UsageError(what, where="engine", remedy=f"use at most {most}")
    if draft is None:
        return
    spec = draft.spec
    for name, mine, theirs in (
        ("hidden size", spec.hidden, shape.hidden),
        ("target vocabulary", spec.target_vocab, shape.vocab),
        ("number of captured layers", spec.aux, len(layers)),
    ):
        if mine != theirs:
            raise UsageError(
                f"the draft's {name} is {mine}, here it is {theirs}", where="draft", remedy="use a draft of this target"
            )
    if not all(0 <= layer <= shape.layers for layer in layers) or sorted(set(layers)) != list(layers):
        raise UsageError(f"layer ids {list(layers)} are not ascending within 0..{shape.layers}", where="draft")
