"""Hidden states of the tiny target's greedy answers, written as real shards and damaged on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sample_row import Row

from k25stack.contract.finding import Check, Result
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.request import Request
from k25stack.reference.target import Target
from k25stack.states.document import Document
from k25stack.states.manifest import StatesMeta, plan_shards
from k25stack.states.writer import ShardWriter

LAYERS = (2, 3, 5)
DECODE = {"kind": "greedy", "temperature": 0.0, "max_new_tokens": 40}


Change = Callable[[Document], Document]


def meta(**changes: Any) -> StatesMeta:
    return replace(StatesMeta("k25stack-reference", "0.1.0", LAYERS, 64, "t" * 64, "0" * 64, decode=DECODE), **changes)


Answered = tuple[Row, torch.Tensor, torch.Tensor, torch.Tensor]


def answered(directory: Path) -> list[Answered]:
    """Greedy answers of the tiny target with their states: (sample, aux, residual stream before the norm, last)."""
    target = Target.load(directory)
    generator = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(4, 500, (6,), generator=generator).tolist()) for _ in range(24)]
    engine = Engine(target, config=EngineConfig(slots=24, max_len=128))
    done = engine.generate(Request(str(i), prompt, 40) for i, prompt in enumerate(prompts))
    found = []
    for number, prompt in enumerate(prompts):
        split = "train" if number < 16 else "held_out"
        sample = Row(f"d{number:02d}", 1, "bytes", split, list(prompt), list(done[str(number)].tokens))
        ids = torch.tensor(sample.prompt_ids + sample.response_ids)
        out = target.prefill_packed(ids, torch.tensor([0, len(ids)]), (*LAYERS, 6))
        found.append((sample, out.aux[:, : 3 * 64], out.aux[:, 3 * 64 :], out.last))
    return found


def write(
    directory: Path,
    target: Path,
    samples: list[Any],
    record: StatesMeta,
    pre: bool = False,
    change: Change | None = None,
) -> Path:
    loaded = Target.load(target)
    plans = plan_shards([sample for sample, *_ in samples], record, 200_000)
    writer = ShardWriter(directory, record)
    for plan in plans:
        with writer.open(plan) as shard:
            for place in plan.members:
                sample, aux, stream, last = samples[place]
                choices = loaded.argmax(last).to(torch.int32)
                choices[: len(sample.prompt_ids) - 1] = choices[-1] = -1  # not asked, as our own extraction leaves them
                document = Document.from_sample(sample, aux, stream if pre else last, choices)
                shard.add(change(document) if change else document)
    writer.finish(plans)
    return directory


def checks(result: Result) -> dict[str, Check]:
    """The worst check of every id."""
    return {one.id: one for one in sorted(result.checks, key=lambda one: one.verdict.rank)}
