"""Answer many prompts at once: a static batch of slots, refilled as responses end.

* Running sequences always hold slots 0 to A-1: when one ends, the last one moves into its slot, so that attention reads
  the cache in place and no idle row is computed.
* As many sequences run as `CACHE_BYTES` has room for, and at most ``slots``.
* Free slots are refilled in groups of `REFILL`, prompts packed without padding.  What all prompts begin with (a system
  turn) is computed once and copied.
* With `layers`, the states of every token are kept as they are computed.  A finished sequence stays for one more step,
  which feeds its last token, so that rows = tokens.

The result depends on the asks, their order and the number of slots, and on nothing else.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from k25stack.reference.recording import Recorder, Recording
from k25stack.reference.sampling import Sampling, draw, probabilities
from k25stack.reference.target import Prefix, Target, common_prefix, top_ids

REFILL = 8  # free slots that are worth a prefill
PACK_TOKENS = 512  # prompt tokens of one prefill forward
CACHE_BYTES = 1_400_000_000  # keys and values of a batch, if every answer became as long as it may
GREEDY = Sampling()
PREFIX_TOKENS = 8  # a shared beginning of fewer tokens is not worth a copy


@dataclass(frozen=True)
class Ask:
    """A prompt to be answered with at most ``max_new`` tokens; sampling draws from its own ``seed``."""

    prompt: tuple[int, ...]
    max_new: int
    sampling: Sampling = GREEDY
    seed: int = 0

    @property
    def longest(self) -> int:
        """Positions that prompt and answer take at most."""
        return len(self.prompt) + self.max_new


@dataclass(frozen=True)
class Answer:
    """Response tokens, the end-of-sequence token included, and with recording the states of prompt and response."""

    tokens: tuple[int, ...]
    finish: Literal["stop", "length"]
    recording: Recording | None = None


@dataclass
class Running:
    """A sequence in a slot.  ``cached`` positions have keys and values; while decoding, all but the newest token."""

    index: int  # in the list of asks
    ask: Ask
    rng: random.Random
    cached: int
    tokens: list[int] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None


def answer(
    target: Target,
    asks: Sequence[Ask],
    *,
    slots: int,
    stop_ids: Sequence[int],
    layers: Sequence[int] | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> list[Answer]:
    """Answer all asks, ``slots`` at a time; give prompts of similar length together and long ones first.

    ``layers``: canonical ids of the states to record, None for none.  ``done`` is told of finished responses.
    """
    batch = Batch(target, asks, slots, stop_ids, layers)
    answers: dict[int, Answer] = {}
    with torch.inference_mode():
        while batch.waiting or batch.running:
            batch.refill()
            finished = dict(batch.step())
            answers |= finished
            if finished:
                done(len(finished))
    return [answers[index] for index in range(len(asks))]


class Batch:
    """The slots, what runs in them, and what waits."""

    def __init__(
        self, target: Target, asks: Sequence[Ask], slots: int, stop_ids: Sequence[int], layers: Sequence[int] | None
    ) -> None:
        self.target = target
        self.asks = asks
        self.stop_ids = frozenset(stop_ids)
        self.waiting = deque(range(len(asks)))
        self.running: list[Running] = []  # by slot
        longest = max(ask.longest for ask in asks)
        self.slots = min(slots, len(asks))
        self.positions = CACHE_BYTES // target.position_bytes
        self.cache = target.new_cache(self.slots, longest)
        self.layers = tuple(layers or ())
        self.recorder: Recorder | None = None
        if layers is not None:
            self.recorder = Recorder(self.slots, longest, target.config.hidden, len(self.layers))
        self.prefix: Prefix | None = None
        shared = common_prefix([ask.prompt for ask in asks])
        if len(asks) > 1 and shared >= PREFIX_TOKENS:
            self.prefix = target.prefix(torch.tensor(asks[0].prompt[:shared]), self.layers)

    # -- prefill ----------------------------------------------------------------------------------------------------

    def refill(self) -> None:
        """Prefill waiting prompts when enough of them fit."""
        count = self._fitting()
        if count and (count >= min(REFILL, len(self.waiting)) or not self.running):
            for group in self._packs(count):
                self._prefill(group)

    def _fitting(self) -> int:
        """How many of the next asks there are slots and positions for; at least one when nothing runs."""
        free = self.slots - len(self.running)
        room = self.positions - sum(sequence.ask.longest for sequence in self.running)
        count = 0
        for index in islice(self.waiting, free):
            room -= self.asks[index].longest
            if room < 0:
                break
            count += 1
        return count if count or self.running else min(1, len(self.waiting))

    def _packs(self, count: int) -> Iterator[list[int]]:
        """The next ``count`` waiting asks in groups of about `PACK_TOKENS`."""
        group: list[int] = []
        tokens = 0
        for _ in range(count):
            group.append(self.waiting.popleft())
            tokens += len(self.asks[group[-1]].prompt) - (self.prefix.length if self.prefix else 0)
            if tokens >= PACK_TOKENS:
                yield group
                group, tokens = [], 0
        if group:
            yield group

    def _prefill(self, group: list[int]) -> None:
        first, shared = len(self.running), self.prefix
        slots = range(first, first + len(group))
        prefix = 0 if shared is None else shared.length
        texts = [self.asks[index].prompt for index in group]
        offsets = torch.tensor([0, *(len(text) - prefix for text in texts)]).cumsum(0)
        ids = torch.tensor([token for text in texts for token in text[prefix:]])
        out = self.target.prefill_packed(ids, offsets, self.layers, self.cache, slots, shared)
        bounds = offsets.tolist()
        for slot, index, begin, end in zip(slots, group, bounds, bounds[1:], strict=False):
            ask = self.asks[index]
            self.running.append(Running(index, ask, random.Random(ask.seed), len(ask.prompt)))
            if self.recorder is not None:
                self.recorder.begin(slot)
                if shared is not None:
                    self.recorder.put_span(slot, 0, shared.states.aux, shared.states.last)
                self.recorder.put_span(slot, prefix, out.aux[begin:end], out.last[begin:end])
        self._choose(list(slots), out.last[offsets[1:] - 1])

    # -- decode -----------------------------------------------------------------------------------------------------

    def step(self) -> Iterator[tuple[int, Answer]]:
        """One token for every running sequence; yields those that are complete."""
        yield from self._release()
        if not self.running:
            return
        starts = [sequence.cached for sequence in self.running]
        ids = torch.tensor([[sequence.tokens[-1]] for sequence in self.running])
        slots, positions = torch.arange(len(self.running)), torch.tensor(starts)
        out = self.target.forward(ids, self.cache, slots, positions, self.layers)
        if self.recorder is not None:
            self.recorder.put(slots, positions, out.aux[:, 0], out.last[:, 0])
        for sequence in self.running:
            sequence.cached += 1
        live = [slot for slot, sequence in enumerate(self.running) if sequence.finish is None]
        if live:
            rows = out.last[:, 0] if len(live) == len(self.running) else out.last[live, 0]
            self._choose(live, rows)
        yield from self._release()

    def _choose(self, slots: list[int], last: Tensor) -> None:
        """Append the next token of the sequences in ``slots`` from their states ``last`` [R, H]."""
        sequences = [self.running[slot] for slot in slots]
        sampled = [row for row, sequence in enumerate(sequences) if not sequence.ask.sampling.greedy]
        if sampled:
            logits = self.target.logits(last)  # [R, V]
            greedy = top_ids(logits)  # [R]
        else:
            greedy = self.target.argmax(last)
        tokens = greedy.tolist()
        for row in sampled:
            sequence = sequences[row]
            tokens[row] = draw(probabilities(logits[row], sequence.ask.sampling), sequence.rng.random())
        if self.recorder is not None:
            at = torch.tensor([sequence.cached - 1 for sequence in sequences])
            self.recorder.argmax[torch.tensor(slots), at] = greedy.to(torch.int32)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.tokens.append(token)
            if token in self.stop_ids:
                sequence.finish = "stop"
            elif len(sequence.tokens) == sequence.ask.max_new:
                sequence.finish = "length"

    def _release(self) -> Iterator[tuple[int, Answer]]:
        """Take complete sequences out, each replaced by the last running one."""
        for slot in reversed(range(len(self.running))):
            sequence = self.running[slot]
            length = len(sequence.ask.prompt) + len(sequence.tokens)
            if sequence.finish is None or (self.recorder is not None and sequence.cached < length):
                continue
            recording = self.recorder.take(slot, length) if self.recorder is not None else None
            yield sequence.index, Answer(tuple(sequence.tokens), sequence.finish, recording)
            last = self.running.pop()
            if last is not sequence:
                self.running[slot] = last
                self.cache.move(len(self.running), slot, last.cached)
                if self.recorder is not None:
                    self.recorder.move(len(self.running), slot, last.cached)
