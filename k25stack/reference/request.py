"""What the engine is asked for, what it reports back, and the state of a request between (no torch)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from k25stack.errors import UsageError
from k25stack.reference.sampling import GREEDY, Sampling
from k25stack.speculation.rounds import RoundCounts

Finish = Literal["stop", "length", "abort", "error"]
FINISHES: tuple[Finish, ...] = ("stop", "length", "abort", "error")


class TokenWatch(Protocol):
    """Looks at each token as it is committed; the server's watch decodes text and knows the stop strings."""

    def feed(self, token: int) -> bool:
        """Take one token; True ends the response with it (finish reason "stop")."""


@dataclass(frozen=True)
class Event:
    """News of one request after one engine step: the tokens it committed, and how it ended if it did."""

    request_id: str
    tokens: tuple[int, ...]
    finish: Finish | None = None
    counts: RoundCounts | None = None  # with the last event, when a draft is loaded


@dataclass(frozen=True)
class Request:
    """One prompt to continue.  ``on_event`` is called in the thread that steps the engine."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = GREEDY
    stop_ids: tuple[int, ...] = ()  # ids that end the response; they are part of it
    watch: TokenWatch | None = None
    on_event: Callable[[Event], None] | None = None

    def check(self, vocab: int, max_len: int) -> None:
        """Raises UsageError when the request cannot be served: empty, unknown ids, or longer than the context."""
        where = f"request {self.id}"
        if not self.prompt:
            raise UsageError("the prompt is empty", where=where, remedy="give at least one token")
        if not all(0 <= token < vocab for token in self.prompt):
            raise UsageError(f"a prompt token lies outside 0..{vocab - 1}", where=where)
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}, expected at least 1", where=where)
        if len(self.prompt) + self.max_tokens > max_len:
            raise UsageError(
                f"the context holds {max_len} tokens, the prompt has {len(self.prompt)} "
                f"and {self.max_tokens} more are asked for",
                where=where,
                remedy="shorten the prompt or lower max_tokens",
            )


@dataclass
class Active:
    """A request that holds a slot.

    ``cached`` positions of prompt + output have keys and values in the target's cache.  While decoding that is all
    but the newest token.  ``pending`` of them, the last ones, still lack their row in the draft's cache.
    """

    request: Request
    slot: int
    rng: random.Random
    output: list[int] = field(default_factory=list)
    cached: int = 0
    pending: int = 0
    histogram: list[int] = field(default_factory=list)
    cut: int = 0
    finish: Finish | None = None
    submitted: float = field(default_factory=time.monotonic)

    @property
    def prefilled(self) -> bool:
        return bool(self.output)

    @property
    def remaining_prompt(self) -> int:
        """Prompt tokens still to be prefilled."""
        return len(self.request.prompt) - self.cached

    def token(self, position: int) -> int:
        """Id at a position of prompt + output."""
        prompt = self.request.prompt
        return prompt[position] if position < len(prompt) else self.output[position - len(prompt)]

    def commit(self, tokens: list[int]) -> tuple[int, ...]:
        """Append tokens until the response ends; returns those that were taken and sets ``finish``."""
        request = self.request
        for count, token in enumerate(tokens, start=1):
            self.output.append(token)
            stopped = token in request.stop_ids
            if request.watch is not None:
                stopped = request.watch.feed(token) or stopped
            if stopped or len(self.output) >= request.max_tokens:
                self.finish = "stop" if stopped else "length"
                return tuple(tokens[:count])
        return tuple(tokens)

    def note_round(self, accepted: int, committed: int) -> bool:
        """Count a verify round; False when it committed fewer than accepted + 1 tokens: the response's end cut it."""
        complete = committed == accepted + 1
        if complete:
            self.histogram[accepted] += 1
        else:
            self.cut += 1
        return complete

    def counts(self) -> RoundCounts | None:
        return RoundCounts.from_histogram(tuple(self.histogram), self.cut) if self.histogram else None
