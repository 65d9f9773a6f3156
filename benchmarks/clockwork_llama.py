"""A small Llama whose text is known beforehand and the portable draft that foresees it (`clockwork`): engines of any
kind start with it in the shortest time that they have."""

from __future__ import annotations

from pathlib import Path

import torch
from clockwork import Clock, cycle_ids, draft_tensors, prompts, write_target, write_tokenizer
from safetensors.torch import save_file

from k25stack.draft.config import config_json
from k25stack.draft.package import bfloat16_part, map_parts, write_draft
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.draft.weightfile import WeightFile
from k25stack.files import write_text

HIDDEN, VOCAB, DEPTH, CONTEXT, K = 512, 2048, 6, 2048, 3
LAYERS = (2, 3, 5)  # canonical, and not the engines' default (2, 3, 3)
CLOCK = Clock(HIDDEN, VOCAB)
SPEC = DraftSpec(HIDDEN, 8, 2, 64, 1024, 1024, VOCAB, rms_eps=1e-6, rope_theta=10000.0, max_position=CONTEXT)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": HIDDEN,
    "intermediate_size": 1024, "num_hidden_layers": DEPTH, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def write_llama(directory: Path) -> Path:
    """The target: config, weights (22 MB) and a tokenizer of words."""
    write_target(directory, CONFIG, CLOCK)
    write_tokenizer(directory, CLOCK, CONTEXT)
    return directory


def write_foreseeing(directory: Path, target: Path) -> Path:
    """Its draft, by the package's own writer: all that the target says lies in its vocabulary and is foreseen."""
    ids = cycle_ids(CLOCK, SPEC.draft_vocab)
    held = torch.zeros(SPEC.target_vocab, dtype=torch.bool).index_fill_(0, ids, True)
    vocab = directory.with_name(directory.name + "-vocab.safetensors")
    save_file({"d2t": ids - torch.arange(len(ids)), "t2d": held}, vocab)
    shapes = SPEC.weights()
    parts = [bfloat16_part(name, shapes[name], make) for name, make in draft_tensors(shapes, CLOCK, ids).items()]
    parts += map_parts(SPEC, WeightFile.open(vocab))
    write_draft(directory, config_json(SPEC, TargetFacts.read(target), LAYERS), parts,
                {"canonical_layers": list(LAYERS), "k": K})  # fmt: skip
    return directory


def write_samples(path: Path, count: int, tokens: int) -> Path:
    """``count`` held-out rows of random prompts, to be answered with ``tokens`` tokens each."""
    import json

    decode = {"kind": "greedy", "temperature": 0.0, "max_new_tokens": tokens}
    rows = [{"doc_id": f"d{number}", "turn": 1, "domain": "ids", "split": "held_out", "prompt_ids": ids,
             "decode": decode} for number, ids in enumerate(prompts(CLOCK, count, 64))]  # fmt: skip
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path
