"""A small target, samples and a vocabulary, as the steps before packaging leave them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from k25stack.draft.spec import DraftSpec
from k25stack.draft.vocab import program as vocab_program
from k25stack.worker import Spec

VOCAB, HIDDEN, LAYERS = 120, 24, 8
EOS = 7
SPEC = DraftSpec(HIDDEN, 6, 2, 8, 40, draft_vocab=32, target_vocab=VOCAB, max_position=512)


def write_target(directory: Path, **changes: Any) -> Path:
    """config.json and target.json of a Llama-like target: all that the light parts of the draft room read."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "eos_token_id": EOS,
        "bos_token_id": 1,
        **changes,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "target.json").write_text(json.dumps({"name": "small", "revision": "r1", "family": "llama"}))
    return directory


def row(split: str, domain: str, prompt: list[int], response: list[int]) -> dict[str, Any]:
    return {"doc_id": "d", "turn": 0, "split": split, "domain": domain, "prompt_ids": prompt, "response_ids": response}


def write_samples(directory: Path, rows: list[dict[str, Any]]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return directory


def random_rows(seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        row(split, domain, rng.choices(range(60), k=5), [*rng.choices(range(0, VOCAB, 2), k=20), EOS])
        for split in ("train", "train", "validation", "held_out")
        for domain in ("chat", "code")
    ]


def make_vocab(root: Path, target: Path, rows: list[dict[str, Any]], size: int = SPEC.draft_vocab) -> Path:
    out = root / "vocab" / "out"
    out.mkdir(parents=True, exist_ok=True)
    samples = write_samples(root / "samples", rows)
    vocab_program(Spec({"size": size}, {"target": target, "samples": samples}, out, 1))
    return out
