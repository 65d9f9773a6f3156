"""What a child of the extraction does: fill one shard after the other, from recordings or by prefill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k25stack.reference.recording import Recorded, Recording
from k25stack.reference.target import Prefix, Target, common_prefix
from k25stack.states.document import Document
from k25stack.states.manifest import ShardPlan, StatesMeta
from k25stack.states.reader import open_states
from k25stack.states.writer import ShardWriter
from k25stack.train.memory import keep_freed_memory
from k25stack.train.samples import Sample

PREFIX_TOKENS = 8  # a shared beginning of fewer tokens is not worth the trouble


@dataclass(frozen=True)
class ShardSetup:
    """What all shards of an extraction share."""

    target: Path
    out: Path
    meta: StatesMeta
    samples: tuple[Sample, ...]
    packed_tokens: int  # of one prefill forward
    recorded: Path | None  # output directory of the regeneration whose recordings are used


def make_worker(setup: ShardSetup) -> Callable[[ShardPlan, Callable[[int], None]], int]:
    """The result fills a shard and returns how many of its tokens were prefilled."""
    torch.set_num_threads(1)
    keep_freed_memory()
    worker = ShardWorker(setup)
    return worker.run


class ShardWorker:
    """Reads recordings if there are any; loads the target when the first document needs it."""

    def __init__(self, setup: ShardSetup) -> None:
        self.setup = setup
        self.writer = ShardWriter(setup.out, setup.meta)
        self.recorded: Recorded | None = None
        if setup.recorded is not None:
            found = Recorded.open(setup.recorded)
            if found.layers == setup.meta.layers:
                self.recorded = found.intact()

    @cached_property
    def target(self) -> Target:
        return Target.load(self.setup.target)

    @torch.inference_mode()
    def run(self, plan: ShardPlan, progress: Callable[[int], None]) -> int:
        """Write one shard; returns how many tokens were prefilled."""
        samples = [self.setup.samples[position] for position in plan.members]
        wanted = [sample for sample in samples if self.recorded is None or sample.name not in self.recorded]
        states = self._prefill(wanted)
        with self.writer.open(plan) as shard:
            for sample in samples:
                if self.recorded is not None and sample.name in self.recorded:
                    rows = self.recorded.get(sample.name)
                else:
                    rows = next(states)
                shard.add(Document.from_sample(sample, rows.aux, rows.last, rows.argmax))
                progress(sample.tokens)
        return sum(sample.tokens for sample in wanted)

    def _prefill(self, samples: list[Sample]) -> Iterator[Recording]:
        """States of the samples in order, packed into forwards of about ``packed_tokens`` tokens.

        What all prompts of the shard begin with (a system turn) is computed once.
        """
        texts = [(*sample.prompt_ids, *sample.response_ids) for sample in samples]
        shared = common_prefix([sample.prompt_ids for sample in samples]) if len(samples) > 1 else 0
        prefix: Prefix | None = None
        if shared >= PREFIX_TOKENS:
            prefix = self.target.prefix(torch.tensor(texts[0][:shared]), self.setup.meta.layers)
        skip = 0 if prefix is None else prefix.length
        begin = 0
        while begin < len(texts):
            end, tokens = begin + 1, len(texts[begin]) - skip
            while end < len(texts) and tokens + len(texts[end]) - skip <= self.setup.packed_tokens:
                tokens += len(texts[end]) - skip
                end += 1
            yield from self._forward(samples[begin:end], texts[begin:end], prefix)
            begin = end

    def _forward(
        self, samples: list[Sample], texts: list[tuple[int, ...]], prefix: Prefix | None
    ) -> Iterator[Recording]:
        """One packed forward, cut into documents again."""
        skip = 0 if prefix is None else prefix.length
        ids = torch.tensor([token for text in texts for token in text[skip:]])
        offsets = torch.tensor([0, *(len(text) - skip for text in texts)]).cumsum(0)
        out = self.target.prefill_packed(ids, offsets, self.setup.meta.layers, prefix=prefix)
        choices = self._choices(samples, offsets, out.last, skip)
        for sample, begin, end in zip(samples, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            aux, last = out.aux[begin:end], out.last[begin:end]
            if prefix is not None:
                aux, last = torch.cat([prefix.states.aux, aux]), torch.cat([prefix.states.last, last])
            argmax = torch.full((sample.tokens,), -1, dtype=torch.int32)
            argmax[skip:] = choices[begin:end]
            yield Recording(aux, last, argmax)

    def _choices(self, samples: list[Sample], offsets: Tensor, last: Tensor, skip: int) -> Tensor:
        """Full-vocabulary greedy choice int32 [T] of the rows whose next token is a response token, -1 elsewhere."""
        choices = torch.full((len(last),), -1, dtype=torch.int32)
        rows = torch.cat(
            [
                torch.arange(begin + len(sample.prompt_ids) - 1 - skip, begin + sample.tokens - 1 - skip)
                for sample, begin in zip(samples, offsets.tolist(), strict=False)
            ]
        )
        choices[rows] = self.target.argmax(last[rows]).to(torch.int32)
        return choices


@torch.inference_mode()
def distance(directory: Path, names: Sequence[str], target: Path) -> dict[str, Any]:
    """How far the states of some documents of a directory are from those of a prefill of each document alone.

    ``relative_error``: norm of the difference over norm, for each captured layer and the last;
    ``argmax_agreement``: share of the rows that have one.
    """
    torch.set_num_threads(1)
    model, states = Target.load(target), open_states(directory)
    layers, hidden = states.meta.layers, states.meta.hidden
    squares = torch.zeros(2, len(layers) + 1, dtype=torch.float64)  # of the differences, of the states
    rows = agreeing = tokens = 0
    for document in (states.load(ref) for ref in states.refs() if f"{ref.doc_id}/{ref.turn}" in names):
        out = model.prefill_packed(document.token_ids, torch.tensor([0, len(document)]), layers)
        mine, theirs = (torch.cat(pair, -1).double() for pair in ((document.aux, document.last), (out.aux, out.last)))
        for line, values in enumerate((mine - theirs, theirs)):
            squares[line] += values.view(len(document), -1, hidden).square().sum((0, 2))
        asked = document.argmax >= 0
        rows += int(asked.sum())
        agreeing += int((model.argmax(out.last[asked]) == document.argmax[asked]).sum())
        tokens += len(document)
    return {
        "documents": len(names),
        "tokens": tokens,
        "relative_error": (squares[0] / squares[1]).sqrt().tolist(),
        "argmax_agreement": agreeing / rows if rows else None,
    }
