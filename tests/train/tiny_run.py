"""A whole training input in miniature: shards over the tiny target, a vocabulary, and a spec that trains in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sample_row import Row
from torch import Tensor

from k25stack.states.document import Document
from k25stack.states.manifest import StatesMeta, plan_shards
from k25stack.states.writer import ShardWriter

HIDDEN, VOCAB, DRAFT_VOCAB, LAYERS = 64, 512, 48, (2, 4, 5)

SPEC = {
    "hidden": HIDDEN,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "intermediate": 96,
    "draft_vocab": DRAFT_VOCAB,
    "target_vocab": VOCAB,
    "rope_theta": 10000.0,
}


def language(seed: int = 5) -> Tensor:
    """The next token of every token: a fixed map, so that a text can be predicted from its own token states."""
    return torch.randint(60, (VOCAB,), generator=torch.Generator().manual_seed(seed))


def write_inputs(
    directory: Path, target: Path, counts: dict[str, int] | None = None, dtype: str = "bfloat16"
) -> dict[str, str]:
    """States and vocabulary under ``directory``; returns the step's inputs."""
    counts = counts or {"train": 24, "validation": 6, "held_out": 6}
    generator = torch.Generator().manual_seed(0)
    embed = load_file(target / "model.safetensors")["model.embed_tokens.weight"].float()
    follow, mix = language(), torch.randn(3, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5
    meta = StatesMeta("test", "1", LAYERS, HIDDEN, "t" * 64, "0" * 64, dtype=dtype)
    samples, documents = [], {}
    for split, count in counts.items():
        for number in range(count):
            prompt, response = (int(torch.randint(4, n, (1,), generator=generator)) for n in (12, 24))
            ids = [int(torch.randint(VOCAB, (1,), generator=generator))]
            while len(ids) < prompt + response:
                chance = float(torch.rand(1, generator=generator)) < 0.1
                ids.append(int(torch.randint(VOCAB, (1,), generator=generator)) if chance else int(follow[ids[-1]]))
            domain = ("code", "talk")[number % 2]
            sample = Row(f"{split}{number:04d}", 1, domain, split, ids[:prompt], ids[prompt:])
            tokens = torch.tensor(ids)
            noise = torch.randn(len(ids), 3, HIDDEN, generator=generator) * 0.1
            states = torch.einsum("th,lhg->tlg", embed[tokens], mix) + noise
            last = embed[follow[tokens]] * 0.3
            argmax = (last @ embed.T).argmax(-1).to(torch.int32)
            sizes = torch.tensor([0.1, 1.0, 4.0])[:, None]  # early layers are smaller
            aux = (states * sizes).flatten(1).to(torch.bfloat16)
            samples.append(sample)
            documents[sample.doc_id] = Document.from_sample(sample, aux, last.to(torch.bfloat16), argmax)
    writer, plans = ShardWriter(directory / "states", meta), plan_shards(samples, meta, 100_000)
    for plan in plans:
        with writer.open(plan) as shard:
            for position in plan.members:
                shard.add(documents[samples[position].doc_id])
    writer.finish(plans)
    write_vocabulary(directory / "vocab", torch.arange(DRAFT_VOCAB))
    return {"target": str(target), "states": str(directory / "states"), "vocab": str(directory / "vocab")}


def write_vocabulary(directory: Path, ids: Tensor) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    held = torch.zeros(VOCAB, dtype=torch.bool)
    held[ids] = True
    save_file({"d2t": ids - torch.arange(len(ids)), "t2d": held}, directory / "vocab.safetensors")


def params(**changes: Any) -> dict[str, Any]:
    """Params of the step: three epochs of a few steps."""
    base: dict[str, Any] = {
        "spec": SPEC,
        "optimizer": {"kind": "muon", "lr": 0.03, "adamw_lr": 0.003, "warmup_steps": 2},
        "batch_tokens": 160,
        "epochs": 3,
        "seed": 1,
    }
    return {**base, **changes}


def write_spec(path: Path, inputs: dict[str, str], out: Path, threads: int = 1, **changes: Any) -> Path:
    """A spec.json for ``python -m k25stack.train.main``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    spec = {"params": params(**changes), "inputs": inputs, "out": str(out), "threads": threads}
    path.write_text(json.dumps(spec))
    return path
