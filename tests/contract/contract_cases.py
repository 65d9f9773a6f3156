"""Small packaged drafts for the checks, and ways to break them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from k25stack.draft.config import config_json
from k25stack.draft.model import random_tensor
from k25stack.draft.package import bfloat16_part, write_draft
from k25stack.draft.provenance import provenance
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.draft.vocab import maps, vocab_hash
from k25stack.draft.weightfile import bool_part, int64_part

ENGINES = ["reference", "sglang@0.5.20", "vllm@0.31.0"]
ALL_ENGINES = [*ENGINES, "sglang@0.5.9", "sglang@0.5.16", "sglang@0.5.23", "vllm@0.32.0", "vllm@0.33.0"]


@dataclass(frozen=True)
class Case:
    """A draft to be: its sizes, target and layers."""

    spec: DraftSpec
    target: TargetFacts
    layers: list[int]
    seed: int = 0


def llama_case(seed: int = 0, **changes: Any) -> Case:
    """Sizes among which no two dimensions of a matrix are equal, so that a transposed one cannot pass."""
    spec = DraftSpec(24, 6, 2, 10, 36, 16, 64, max_position=512)
    spec = DraftSpec(**{**spec.as_dict(), **changes})
    return Case(spec, TargetFacts("llama", "llama", spec.hidden, 14, spec.target_vocab, 512, (2,), 1), [2, 6, 9], seed)


def kimi_case(seed: int = 0, layers: list[int] | None = None) -> Case:
    spec = DraftSpec(24, 6, 2, 10, 36, 16, 64, max_position=512)
    return Case(spec, TargetFacts("kimi_k25", "deepseek", 24, 61, 64, 512, (2,)), layers or [2, 30, 58], seed)


def write_case(directory: Path, case: Case, record: bool = True) -> Path:
    """Package a draft with random weights and a random vocabulary."""
    spec, rng = case.spec, random.Random(case.seed)
    ids = sorted(rng.sample(range(spec.target_vocab), spec.draft_vocab))
    d2t, t2d = maps(ids, spec.target_vocab)
    parts = [
        bfloat16_part(name, shape, lambda name=name, shape=shape: random_tensor(case.seed, name, shape))
        for name, shape in spec.weights().items()
    ]
    if not spec.full_vocab:
        parts += [int64_part("d2t", d2t), bool_part("t2d", t2d)]
    told = provenance(
        spec,
        case.target,
        case.layers,
        3,
        random=False,
        target_record={"name": "small", "revision": "r1"},
        meta={"engine": "sglang", "engine_version": "0.5.20"},
        coverage={},
        ids_hash=vocab_hash(ids),
        train=None,
    )
    write_draft(directory, config_json(spec, case.target, case.layers), parts, told)
    if not record:
        (directory / "k25stack.json").unlink()
    return directory


def edit_config(directory: Path, **changes: Any) -> None:
    """Set keys of config.json; ``None`` writes null, ``...`` takes the key out."""
    config = json.loads((directory / "config.json").read_text())
    for name, value in changes.items():
        if value is ...:
            config.pop(name, None)
        else:
            config[name] = value
    (directory / "config.json").write_text(json.dumps(config))


def tensors_of(directory: Path) -> dict[str, Any]:
    return load_file(directory / "model.safetensors")


def put_tensors(directory: Path, tensors: dict[str, Any]) -> None:
    save_file({name: t.contiguous() for name, t in tensors.items()}, directory / "model.safetensors", {"format": "pt"})
