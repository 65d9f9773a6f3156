"""Shapes of an EAGLE-3 draft with multi-head latent attention, which this project checks but does not train.

Its layer differs from the Llama one only in the attention: queries and keys/values go through low-rank projections,
whose first halves read 2H.  Source: sglang 0.5.20 ``models/kimi_k25_eagle3.py``, vllm 0.31.0 ``deepseek_eagle3.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k25stack.draft.spec import LARGEST, DraftSpec
from k25stack.errors import UsageError

RANKS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def mla_tensors(spec: DraftSpec, config: Mapping[str, Any], where: str) -> dict[str, tuple[int, ...]]:
    """Portable name -> shape.  Raises UsageError when a rank or head size is missing or no whole number."""
    for name in RANKS:
        if type(config.get(name)) is not int or not 0 < config[name] <= LARGEST:
            raise UsageError(f"{name} is {config.get(name)!r}, not a whole number", where=where)
    q_rank, kv_rank, nope, rope, value = (config[name] for name in RANKS)
    wide, attention = 2 * spec.hidden, "midlayer.self_attn."
    shared = {name: shape for name, shape in spec.tensors().items() if not name.startswith(attention)}
    return {
        **shared,
        attention + "q_a_proj.weight": (q_rank, wide),
        attention + "q_a_layernorm.weight": (q_rank,),
        attention + "q_b_proj.weight": (spec.heads * (nope + rope), q_rank),
        attention + "kv_a_proj_with_mqa.weight": (kv_rank + rope, wide),
        attention + "kv_a_layernorm.weight": (kv_rank,),
        attention + "kv_b_proj.weight": (spec.heads * (nope + value), kv_rank),
        attention + "o_proj.weight": (spec.hidden, spec.heads * value),
    }
