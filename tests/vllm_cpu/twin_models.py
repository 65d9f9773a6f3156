"""Small models that the real engine takes: a Llama target with a draft that has learnt it, and MLA + MoE targets.

What the draft proposes must come from the captured states, or a wrong wiring would go unseen.  So the target's layers
are strong (its streams differ from layer to layer), its head is its own (the text does not repeat one token), and the
draft's norm on the embedding half is zero.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from clockwork import Clock, cycle_ids, draft_tensors, write_target
from safetensors.torch import save_file

from k25stack.draft.config import config_json
from k25stack.draft.mathematics import Mathematics
from k25stack.draft.model import DraftModel, causal_attend
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.request import Request
from k25stack.reference.target import Target

VOCAB, HIDDEN, HEADS, KV, HEAD_DIM, FFN, DEPTH, CONTEXT = 512, 128, 4, 2, 32, 256, 8, 512
LAYERS = (1, 4, 6)  # canonical, and not the engines' default (2, 4, 5)
K, TOKENS = 3, 64
SPEC = DraftSpec(HIDDEN, HEADS, KV, HEAD_DIM, 256, 384, VOCAB, rms_eps=1e-5, rope_theta=10000.0, max_position=CONTEXT)
FACTS = TargetFacts("llama", "llama", HIDDEN, DEPTH, VOCAB, CONTEXT, (2,), 1)


def write_llama(directory: Path, write_tokenizer: Any) -> Path:
    """A random Llama of 8 layers, head size 32 (the smallest that the engine's CPU attention has), peaked logits."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, std: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * std).to(torch.bfloat16)

    tensors = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN, std=1.0), "model.norm.weight": ones(HIDDEN)}
    tensors["lm_head.weight"] = normal(VOCAB, HIDDEN, std=1.0)
    for layer in range(DEPTH):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": ones(HIDDEN),
            name + "post_attention_layernorm.weight": ones(HIDDEN),
        }
        for letter, rows in (("q", HIDDEN), ("k", KV * HEAD_DIM), ("v", KV * HEAD_DIM), ("o", HIDDEN)):
            tensors[f"{name}self_attn.{letter}_proj.weight"] = normal(rows, HIDDEN, std=0.02)
        for part, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
            tensors[f"{name}mlp.{part}_proj.weight"] = normal(*shape, std=0.15 * (4**layer if part == "down" else 1))
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    write_tokenizer(directory)
    return directory


def ones(width: int) -> torch.Tensor:
    return torch.ones(width, dtype=torch.bfloat16)


def prompts(count: int, seed: int = 1) -> list[tuple[int, ...]]:
    """Random byte tokens, 3 to 8 of them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    return [tuple(torch.randint(4, 260, (length,), generator=generator).tolist()) for length in lengths]


def train(target: Target, steps: int = 80) -> DraftModel:
    """A draft that knows the target's text after ``prompts(64)``: cross-entropy of the first chain step, float32."""
    asked = prompts(64)
    engine = Engine(target, config=EngineConfig(slots=32, max_len=128))
    results = engine.generate(Request(str(i), prompt, TOKENS) for i, prompt in enumerate(asked))
    ids = torch.tensor([(prompt + results[str(i)].tokens)[:TOKENS] for i, prompt in enumerate(asked)])  # [B, T]
    held = torch.bincount(ids.flatten(), minlength=VOCAB).argsort(descending=True, stable=True)[: SPEC.draft_vocab]
    held = held.sort().values
    draft = DraftModel(SPEC).init_random(0)
    draft.d2t = held - torch.arange(SPEC.draft_vocab)
    draft.t2d = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, held, True)
    local = torch.full((VOCAB,), -100).index_copy_(0, held, torch.arange(SPEC.draft_vocab))
    aux = target.prefill_packed(ids.flatten(), torch.arange(0, ids.numel() + 1, TOKENS), LAYERS).aux
    aux, embeds = aux.view(*ids.shape, -1).clone(), target.embed[ids]
    scale = aux.flatten(0, 1).std(0)  # later streams are larger; folded into fc at the end
    aux = aux / scale
    draft.midlayer.input_layernorm.weight.data.zero_()
    draft.midlayer.input_layernorm.weight.requires_grad_(False)
    torch.nn.init.normal_(draft.fc.weight, std=SPEC.aux_width**-0.5, generator=torch.Generator().manual_seed(1))
    learnt = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=1e-2, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10) * (1 - step / steps))
    for _ in range(steps):
        stream = draft.step(draft.fuse(aux[:, :-2]), embeds[:, 1:-1], torch.arange(TOKENS - 2), causal_attend)
        loss = F.cross_entropy(draft.logits(stream).flatten(0, 1), local[ids[:, 2:]].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    draft.requires_grad_(False)
    draft.fc.weight /= scale
    return draft


def write_draft(draft: DraftModel, directory: Path) -> Path:
    """As the package step lays it out, with a record."""
    from k25stack.draft.weights import save_portable

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config_json(SPEC, FACTS, LAYERS)))
    save_portable(directory / "model.safetensors", SPEC, draft.state_dict(), {"format": "pt"})
    record = {"schema": 1, "canonical_layers": list(LAYERS), "k": K, "target": {"name": "twin", "family": "llama"}}
    (directory / "k25stack.json").write_text(json.dumps(record))
    return directory


def write_mla(directory: Path, write_tokenizer: Any) -> Path:
    """A tiny random DeepSeek-V3 with the real head sizes (CPU kernels take no others): 1 dense and 3 MoE layers."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=256, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=DEPTH,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
        n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=64, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(directory)
    written = json.loads((directory / "config.json").read_text())
    # transformers leaves out what engines look for.
    written |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
    (directory / "config.json").write_text(json.dumps(written))
    write_tokenizer(directory)
    return directory


MLA_FACTS = replace(FACTS, model_type="deepseek_v3", family="deepseek", hidden=256)
MLA_LAYERS = (2, 4, 6)
MLA_SPEC = DraftSpec(256, 4, 4, 64, 256, 256, VOCAB, rms_eps=1e-6, max_position=CONTEXT)
MLA_RANKS = {"q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
CLOCK = Clock(256, VOCAB)


def write_clock(directory: Path, write_tokenizer: Any) -> Path:
    """The MLA + MoE shape again, with weights that say a text known beforehand (see benchmarks/clockwork.py)."""
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
        "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": DEPTH,
        "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5, "attention_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "num_nextn_predict_layers": 0, **MLA_RANKS,
    }  # fmt: skip
    write_target(directory, config, CLOCK)
    write_tokenizer(directory)
    return directory


def mla_source(directory: Path, weights: dict[str, torch.Tensor], d2t: torch.Tensor) -> Path:
    """A draft with latent attention as Model-Optimizer saves it; ``weights`` under portable names."""
    ids = "eagle_aux_hidden_state_layer_ids"
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 256,
        "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None,
        "max_position_embeddings": CONTEXT, "vocab_size": VOCAB, "draft_vocab_size": 256, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", **MLA_RANKS,
        "eagle_config": {ids: [1, 3, 5], "use_aux_hidden_state": True, "next_layer_regular": True},
    }  # fmt: skip
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {name.replace("midlayer.", "layers.0."): tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save_file({**tensors, "d2t": d2t}, directory / "model.safetensors")
    return directory


def random_mla(directory: Path) -> Path:
    """Untrained."""
    generator = torch.Generator().manual_seed(3)
    shapes = Mathematics(MLA_SPEC, mla=MLA_RANKS).tensors()
    weights = {
        name: torch.randn(shape, generator=generator) * 0.02
        for name, shape in shapes.items()
        if name not in ("d2t", "t2d")
    }
    return mla_source(directory, weights, torch.arange(256))


def foreseeing_mla(directory: Path) -> Path:
    """The one that foresees all that the ``clock`` target says."""
    ids = cycle_ids(CLOCK, MLA_SPEC.draft_vocab)
    shapes = Mathematics(MLA_SPEC, mla=MLA_RANKS).tensors()
    weights = {name: make() for name, make in draft_tensors(shapes, CLOCK, ids).items()}
    return mla_source(directory, weights, ids - torch.arange(len(ids)))
