"""The memory plan of a twin: its stack is the slice's with other shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from k25stack.engines.memory import MemoryPlan, plan_memory
from k25stack.stack import load_stack
from k25stack.stack.serving import Profile, Speculative
from k25stack.stack.target import Mla, Moe, Shape

STACK = Path(__file__).resolve().parents[2] / "stacks" / "kimi-k2.5-slice-h200.yaml"
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB


def shape_of(directory: Path) -> Shape:
    config = json.loads((directory / "config.json").read_text())
    latent = "kv_lora_rank" in config
    return Shape(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["v_head_dim"] if latent else config["head_dim"],
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        rope_theta=10000.0,
        rms_eps=config["rms_norm_eps"],
        mla=Mla(**{name: config[name] for name in Mla.model_fields}) if latent else None,
        moe=Moe(
            experts=config["n_routed_experts"],
            experts_per_token=config["num_experts_per_tok"],
            shared_experts=config["n_shared_experts"],
            intermediate=config["moe_intermediate_size"],
            dense_layers=config["first_k_dense_replace"],
        )
        if latent
        else None,
    )


def plan_of(target: Path, draft: Path | None) -> MemoryPlan:
    """Of ``vllm`` on a CPU with the twins' environment."""
    stack = load_stack(STACK)
    model = stack.target.model_copy(update={"shape": shape_of(target)})
    speculative = Speculative(k=3, draft=str(draft)) if draft else None
    profile = Profile(engine="vllm", version="0.32.0", max_running=16, speculative=speculative, env=CACHE)
    return plan_memory(stack.model_copy(update={"target": model}), profile)


def reported_tokens(log: Iterable[str]) -> int:
    """Tokens of cache that the engine prints at its start."""
    found = re.findall(r"CPU KV cache size: ([\d,]+) tokens", "\n".join(log))
    assert len(found) == 1, found
    return int(found[0].replace(",", ""))
