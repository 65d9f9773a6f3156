"""Hugging Face's own Llama, as the judge of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def hf_model(directory: Path, dtype: torch.dtype) -> Any:
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return LlamaForCausalLM.from_pretrained(directory, dtype=dtype).eval()


@torch.inference_mode()
def hf_states(directory: Path, ids: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """hidden_states as [T, H] each, the last one after the final norm, and logits [T, V]."""
    out = hf_model(directory, dtype)(ids[None], output_hidden_states=True)
    return [state[0] for state in out.hidden_states], out.logits[0]


def write_llama(directory: Path, changes: dict[str, Any]) -> None:
    """A random two-layer Llama with some config values changed (None: left out)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    merged = {key: value for key, value in {**values, **changes}.items() if value is not None}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**merged))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0 if parameter.ndim > 1 else 1.0)
    model.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps(merged))
