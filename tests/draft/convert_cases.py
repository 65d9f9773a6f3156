"""Drafts as each trainer saves them: their own names, configs and left-out keys, written by hand from their sources."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from k25stack.draft.config import config_json
from k25stack.draft.mathematics import Mathematics
from k25stack.draft.package import bfloat16_part, write_draft
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.draft.vocab import maps, vocab_hash
from k25stack.draft.weightfile import bool_part, int64_part

IDS = "eagle_aux_hidden_state_layer_ids"
SPEC = DraftSpec(20, 6, 2, 8, 36, 16, 64, rms_eps=1e-6, rope_theta=10000.0, max_position=512)
LLAMA = TargetFacts("llama", "llama", 20, 14, 64, 512, (2,), 1)
KIMI = TargetFacts("kimi_k25", "deepseek", 20, 61, 64, 512, (2,))
LAYERS = [2, 6, 9]
KIMI_LAYERS = [2, 30, 58]
RANKS = {"q_lora_rank": 10, "kv_lora_rank": 6, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}


def weights(spec: DraftSpec, seed: int = 0, function: Mathematics | None = None) -> dict[str, torch.Tensor]:
    """Random tensors under their portable names, maps included."""
    generator = torch.Generator().manual_seed(seed)
    table = (function or Mathematics(spec)).tensors()
    tensors = {
        name: torch.randn(shape, generator=generator).to(torch.bfloat16)
        for name, shape in table.items()
        if name not in ("d2t", "t2d")
    }
    if not spec.full_vocab:
        ids = sorted(random.Random(seed).sample(range(spec.target_vocab), spec.draft_vocab))
        tensors["d2t"] = torch.tensor(ids) - torch.arange(spec.draft_vocab)
        tensors["t2d"] = torch.zeros(spec.target_vocab, dtype=torch.bool).index_fill_(0, torch.tensor(ids), True)
    return tensors


def put(directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: t.contiguous() for name, t in tensors.items()}, directory / "model.safetensors", {"format": "pt"})
    return directory


def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}


def base(spec: DraftSpec) -> dict[str, Any]:
    """A Llama config as transformers saves it."""
    return {
        "model_type": "llama", "hidden_size": spec.hidden, "intermediate_size": spec.intermediate,
        "num_hidden_layers": 1, "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim, "hidden_act": "silu", "rms_norm_eps": spec.rms_eps,
        "max_position_embeddings": spec.max_position, "vocab_size": spec.target_vocab, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def portable(directory: Path, spec: DraftSpec = SPEC, seed: int = 0, target: TargetFacts = LLAMA) -> Path:
    """A draft as the package step leaves it."""
    tensors = weights(spec, seed)
    parts = [bfloat16_part(name, shape, lambda name=name: tensors[name]) for name, shape in spec.weights().items()]
    ids = list(range(spec.target_vocab))
    if not spec.full_vocab:
        ids = (tensors["d2t"] + torch.arange(spec.draft_vocab)).tolist()
        d2t, t2d = maps(ids, spec.target_vocab)
        parts += [int64_part("d2t", d2t), bool_part("t2d", t2d)]
    layers = LAYERS if target.family == "llama" else KIMI_LAYERS
    record = {"schema": 1, "random": False, "canonical_layers": layers, "k": 3, "spec": spec.as_dict(),
              "target": {"name": "small", "revision": "r1", "family": target.family, "context": target.context},
              "engine": {"name": "sglang", "version": "0.5.20"}, "vocab_hash": vocab_hash(ids)}  # fmt: skip
    write_draft(directory, config_json(spec, target, layers), parts, record)
    return directory


def speculators(directory: Path, spec: DraftSpec = SPEC, seed: int = 0, **changes: Any) -> Path:
    """speculators 0.9: nested layer config without what equals the defaults, its copy of the embedding."""
    defaults = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
                "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
    layer = {name: value for name, value in base(spec).items() if name not in defaults}
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
        "draft_vocab_size": spec.draft_vocab, "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False,
        "norm_output": False, "embed_requires_grad": False, "target_hidden_size": None, IDS: LAYERS,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}],
            "verifier": {"name_or_path": "small", "architectures": ["LlamaForCausalLM"]},
        },
        **changes,
    }  # fmt: skip
    tensors = renamed(weights(spec, seed, function_of(spec, config)))
    tensors["embed_tokens.weight"] = torch.ones(spec.target_vocab, spec.hidden, dtype=torch.bfloat16)
    return put(directory, config, tensors)


def specforge(directory: Path, spec: DraftSpec = SPEC, seed: int = 0, **changes: Any) -> Path:
    """SpecForge 0.2: layer *outputs* in the nested list, transformers 5 rope, maps always saved."""
    rope = {"rope_type": "default", "rope_theta": spec.rope_theta}
    config = {**base(spec), "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": spec.draft_vocab,
              "dtype": "bfloat16", "rope_parameters": rope, "transformers_version": "5.8.1", "pretraining_tp": 1,
              "eagle_config": {IDS: [1, 5, 8], "use_aux_hidden_state": True}, **changes}  # fmt: skip
    tensors = weights(spec, seed)
    if spec.full_vocab:
        tensors["d2t"] = torch.zeros(spec.draft_vocab, dtype=torch.int64)
        tensors["t2d"] = torch.ones(spec.target_vocab, dtype=torch.bool)
    return put(directory, config, tensors)


def modelopt(directory: Path, spec: DraftSpec = SPEC, seed: int = 0, **changes: Any) -> Path:
    """Model-Optimizer 0.47: ``layers.0``, no t2d, its own switches in ``eagle_config``."""
    eagle = {IDS: [1, 5, 8], "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
             "use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True}  # fmt: skip
    config = {**base(spec), "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": spec.draft_vocab,
              "torch_dtype": "bfloat16", "rope_theta": spec.rope_theta, "rope_scaling": None, "eagle_config": eagle,
              **changes}  # fmt: skip
    tensors = renamed(weights(spec, seed))
    del tensors["t2d"]
    return put(directory, config, tensors)


def modelopt_mla(directory: Path, seed: int = 0) -> Path:
    """Model-Optimizer's Kimi draft: latent attention, and the model_type that vLLM does not take for it."""
    config = {**base(SPEC), **RANKS, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2",
              "draft_vocab_size": SPEC.draft_vocab, "torch_dtype": "bfloat16", "rope_theta": 5e4, "rope_scaling": None,
              "moe_layer_freq": 1, "eagle_config": {IDS: [1, 29, 57], "use_aux_hidden_state": True,
                                                    "next_layer_regular": True}}  # fmt: skip
    del config["head_dim"]
    function = Mathematics(DraftSpec(20, 6, 2, 12, 36, 16, 64), mla=RANKS)
    tensors = renamed(weights(SPEC, seed, function))
    del tensors["t2d"]
    return put(directory, config, tensors)


def function_of(spec: DraftSpec, config: dict[str, Any]) -> Mathematics:
    return Mathematics(spec, norm_before_fc=bool(config["norm_before_fc"]), fc_norm=bool(config["fc_norm"]))


WRITERS: dict[str, Callable[[Path], Path]] = {
    "portable": portable,
    "speculators": speculators,
    "specforge": specforge,
    "modelopt": modelopt,
}


def write_target(directory: Path, facts: TargetFacts = LLAMA) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = {"model_type": facts.model_type, "architectures": ["LlamaForCausalLM"], "hidden_size": facts.hidden,
              "num_hidden_layers": facts.layers, "vocab_size": facts.vocab, "max_position_embeddings": facts.context,
              "eos_token_id": 2, "bos_token_id": 1}  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory
