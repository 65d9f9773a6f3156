"""Small samples and states of width 8, written as real shards."""

from __future__ import annotations

from pathlib import Path

import torch
from sample_row import Row

from k25stack.states.document import Document
from k25stack.states.manifest import ShardPlan, StatesMeta, bytes_per_token, plan_shards
from k25stack.states.writer import ShardWriter

HIDDEN = 8


def meta(dtype: str = "bfloat16", hidden: int = HIDDEN) -> StatesMeta:
    return StatesMeta(
        engine="k25stack-reference",
        engine_version="0.1.0",
        layers=(2, 3, 5),
        hidden=hidden,
        template_hash="t" * 64,
        target_revision="r" * 64,
        dtype=dtype,
        decode={"kind": "greedy", "max_new_tokens": 8},
    )


def rows(lengths: list[tuple[int, int]], split: str = "train") -> list[Row]:
    return [
        Row(f"{split}{i:04d}", i % 2, f"domain{i % 3}", split, [i] * p, [i + 1] * r) for i, (p, r) in enumerate(lengths)
    ]


def document(row: Row, hidden: int = HIDDEN, seed: int = 0) -> Document:
    """States that depend on the row alone, with norms that differ by layer as real ones do."""
    tokens = len(row.prompt_ids) + len(row.response_ids)
    generator = torch.Generator().manual_seed(seed + 7919 * sum(map(ord, row.doc_id)) + row.turn)
    aux = torch.randn(tokens, 3 * hidden, generator=generator) * torch.tensor([1.0, 4.0, 30.0]).repeat_interleave(
        hidden
    )
    last = torch.randn(tokens, hidden, generator=generator)
    argmax = torch.randint(0, 99, (tokens,), generator=generator, dtype=torch.int32)
    return Document.from_sample(row, aux.to(torch.bfloat16), last.to(torch.bfloat16), argmax)


def write(out: Path, samples: list[Row], dtype: str = "bfloat16", tokens_per_shard: int = 20) -> list[ShardPlan]:
    """Extract as a step program would: only what is missing."""
    plans = plan_shards(samples, meta(dtype), tokens_per_shard * bytes_per_token(HIDDEN, dtype))
    writer = ShardWriter(out, meta(dtype))
    for plan in writer.missing(plans):
        with writer.open(plan) as shard:
            for position in plan.members:
                shard.add(document(samples[position]))
    writer.finish(plans)
    return plans
