"""Answer many prompts at once: a batch of slots, refilled as responses end.

* Sequences lie on shelves by their length (`shelves`), so that attention reads no more keys than it must and no idle
  row is computed.
* As many sequences run as `CACHE_BYTES` has room for, and at most ``slots``.
* Free slots are refilled in groups of `REFILL`, prompts packed without padding.  What all prompts begin with (a system
  turn) is computed once and copied.
* A conversation goes on with the keys, values and states it has: of a further turn only what is new is computed.
* With `layers`, the states of every token are kept as they are computed.  A finished sequence stays for one more step,
  which feeds its last token, so that rows = tokens.

The result depends on the asks, their order, when they are added and the number of slots, and on nothing else; where
`exact.shape_exact` holds, on the asks alone.
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

from k25stack.reference.attention import Ragged, Span
from k25stack.reference.recording import Recorder, Recording
from k25stack.reference.sampling import Sampling, draw, probabilities
from k25stack.reference.shelves import Place, Shelves
from k25stack.reference.target import ForwardOut, Prefix, Target, common_prefix, top_ids

REFILL = 8  # free slots that are worth a prefill
PACK_TOKENS = 512  # prompt tokens of one prefill forward
CACHE_BYTES = 1_000_000_000  # keys and values of a batch, if every answer became as long as it may
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


Follow = Callable[[int, list[Answer]], Ask | None]
"""Place of an ask in its list and its answers so far -> what is asked next in the same conversation, None: nothing."""


@dataclass(frozen=True)
class Talk:
    """One conversation."""

    index: int  # in the list of asks
    follow: Follow
    answers: list[Answer] = field(default_factory=list)


@dataclass(frozen=True)
class Waiting:
    """An ask that no slot has taken yet, and what is known of the beginning of its prompt."""

    talk: Talk
    ask: Ask
    prefix: Prefix | None = None

    @property
    def fresh(self) -> int:
        """Prompt tokens to be computed."""
        return len(self.ask.prompt) - (0 if self.prefix is None else self.prefix.length)


@dataclass(kw_only=True, eq=False)
class Running(Place):
    """A sequence in a slot.  ``cached`` positions have keys and values; while decoding, all but the newest token."""

    talk: Talk
    ask: Ask
    row: int  # of the recorder
    rng: random.Random
    tokens: list[int] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.ask.prompt) + len(self.tokens)


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
    found = converse(
        target, asks, lambda index, answers: None, slots=slots, stop_ids=stop_ids, layers=layers, done=done
    )
    return [answers[0] for answers in found]


def converse(
    target: Target,
    asks: Sequence[Ask],
    follow: Follow,
    *,
    slots: int,
    stop_ids: Sequence[int],
    layers: Sequence[int] | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> list[list[Answer]]:
    """The same with further turns: whatever ``follow`` returns after an answer is asked next, before others."""
    batch = Batch(target, min(slots, len(asks)), stop_ids, layers)
    talks = batch.add(asks, follow)
    while batch.waiting or batch.running:
        batch.refill()
        finished = batch.step()
        if finished:
            done(finished)
    return [talk.answers for talk in talks]


class Batch:
    """The slots, what runs in them, and what waits."""

    def __init__(self, target: Target, slots: int, stop_ids: Sequence[int], layers: Sequence[int] | None) -> None:
        self.target = target
        self.slots = slots
        self.stop_ids = frozenset(stop_ids)
        self.waiting: deque[Waiting] = deque()
        self.running: list[Running] = []
        self.positions = CACHE_BYTES // target.position_bytes
        self.shelves = Shelves(target, slots)
        self.layers = tuple(layers or ())
        self.recorder: Recorder | None = None
        if layers is not None:
            self.recorder = Recorder(target.config.hidden, len(self.layers))

    def add(self, asks: Sequence[Ask], follow: Follow = lambda index, answers: None) -> list[Talk]:
        """Let asks wait behind the others; what they all begin with is computed now."""
        prefix: Prefix | None = None
        shared = common_prefix([ask.prompt for ask in asks])
        if len(asks) > 1 and shared >= PREFIX_TOKENS:
            prefix = self.target.prefix(torch.tensor(asks[0].prompt[:shared]), self.layers)
        talks = [Talk(index, follow) for index in range(len(asks))]
        self.waiting.extend(Waiting(talk, ask, prefix) for talk, ask in zip(talks, asks, strict=True))
        return talks

    # -- prefill ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
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
        for waiting in islice(self.waiting, free):
            room -= waiting.ask.longest
            if room < 0:
                break
            count += 1
        return count if count or self.running else min(1, len(self.waiting))

    def _packs(self, count: int) -> Iterator[list[Waiting]]:
        """The next ``count`` waiting asks in groups of about `PACK_TOKENS`."""
        group: list[Waiting] = []
        tokens = 0
        for _ in range(count):
            group.append(self.waiting.popleft())
            tokens += group[-1].fresh
            if tokens >= PACK_TOKENS:
                yield group
                group, tokens = [], 0
        if group:
            yield group

    def _prefill(self, group: list[Waiting]) -> None:
        joining = [self._begin(waiting) for waiting in group]
        spans, at = [], 0
        for sequence in joining:
            fresh = len(sequence.ask.prompt) - sequence.cached
            cache = self.shelves.shelves[sequence.shelf].cache
            spans.append(Span(at, at + fresh, sequence.slot, sequence.cached, cache))
            at += fresh
        ids = torch.tensor([token for sequence in joining for token in sequence.ask.prompt[sequence.cached :]])
        positions = torch.cat([torch.arange(sequence.cached, len(sequence.ask.prompt)) for sequence in joining])
        attend = Ragged(self.shelves.shelves[joining[0].shelf].cache, spans)
        out = self.target.run(ids, positions, attend, self.layers)
        for sequence, span in zip(joining, spans, strict=True):
            if self.recorder is not None:
                rows = slice(span.begin, span.end)
                self.recorder.put_span(sequence.row, sequence.cached, out.aux[rows], out.last[rows])
            sequence.cached = len(sequence.ask.prompt)
        self.running += joining
        self._choose(joining, out.last[[span.end - 1 for span in spans]])

    def _begin(self, waiting: Waiting) -> Running:
        """Give an ask a place that holds its prompt, and what is known of it."""
        ask, prefix = waiting.ask, waiting.prefix
        row = -1 if self.recorder is None else self.recorder.begin(ask.longest)
        rng = random.Random(ask.seed)
        sequence = Running(talk=waiting.talk, ask=ask, row=row, rng=rng)
        cache = self.shelves.put(sequence, len(ask.prompt) + 1)
        if prefix is not None:
            cache.k[:, sequence.slot, :, : prefix.length] = prefix.keys
            cache.v[:, sequence.slot, :, : prefix.length] = prefix.values
            sequence.cached = prefix.length
            if self.recorder is not None:
                self.recorder.put_span(row, 0, prefix.states.aux, prefix.states.last)
        return sequence

    # -- decode -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> int:
        """One token for every running sequence; returns how many became complete."""
        complete = self._release()
        if not self.running:
            return complete
        self.shelves.grow()
        self.running = [place for place in self.shelves.rows() if isinstance(place, Running)]
        ids = torch.tensor([sequence.tokens[-1] for sequence in self.running])
        positions = torch.tensor([sequence.cached for sequence in self.running])
        out = self.target.run(ids, positions, self.shelves.attention(), self.layers)
        if self.recorder is not None:
            rows = [sequence.row for sequence in self.running]
            self.recorder.put(rows, [sequence.cached for sequence in self.running], out.aux, out.last)
        for sequence in self.running:
            sequence.cached += 1
        live = [row for row, sequence in enumerate(self.running) if sequence.finish is None]
        if live:
            last = out.last if len(live) == len(self.running) else out.last[live]
            self._choose([self.running[row] for row in live], last)
        return complete + self._release()

    def _choose(self, sequences: list[Running], last: Tensor) -> None:
        """Append the next token of ``sequences`` from their states ``last`` [R, H]."""
        sampled = [row for row, sequence in enumerate(sequences) if not sequence.ask.sampling.greedy]
        if sampled:
            logits = self.target.logits(last)  # [R, V]
            greedy = top_ids(logits)  # [R]
        else:
            greedy = self.target.argmax(last)
        tokens = greedy.tolist()
        if self.recorder is not None:
            self.recorder.choose([s.row for s in sequences], [s.cached - 1 for s in sequences], tokens)
        for row in sampled:
            sequence = sequences[row]
            tokens[row] = draw(probabilities(logits[row], sequence.ask.sampling), sequence.rng.random())
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.tokens.append(token)
            if token in self.stop_ids:
                sequence.finish = "stop"
            elif len(sequence.tokens) == sequence.ask.max_new:
                sequence.finish = "length"

    def _release(self) -> int:
        """Take complete sequences out; a conversation that goes on waits for its next turn.  Returns their number."""
        recorded = self.recorder is not None
        complete = [s for s in self.running if s.finish and (not recorded or s.cached == s.length)]
        for sequence in complete:
            recording = self.recorder.take(sequence.row, sequence.length) if self.recorder is not None else None
            assert sequence.finish is not None
            talk = sequence.talk
            talk.answers.append(Answer(tuple(sequence.tokens), sequence.finish, recording))
            following = talk.follow(talk.index, talk.answers)
            if following is not None:
                prefix = self._known(sequence, following, recording)
                self.waiting.appendleft(Waiting(talk, following, prefix))
            self.shelves.remove(sequence)
        if complete:
            gone = {id(sequence) for sequence in complete}
            self.running = [sequence for sequence in self.running if id(sequence) not in gone]
        return len(complete)

    def _known(self, sequence: Running, following: Ask, recording: Recording | None) -> Prefix | None:
        """What of the next turn's prompt the sequence has computed already."""
        text = (*sequence.ask.prompt, *sequence.tokens)[: sequence.cached]
        length = common_prefix([(*text, -1), following.prompt])
        if length < PREFIX_TOKENS:
            return None
        cache = self.shelves.shelves[sequence.shelf].cache
        keys, values = (c[:, sequence.slot, :, :length].clone() for c in (cache.k, cache.v))
        if recording is None:
            empty = keys.new_empty(length, 0)
            return Prefix(length, keys, values, ForwardOut(empty, empty))
        return Prefix(length, keys, values, ForwardOut(recording.last[:length], recording.aux[:length]))
