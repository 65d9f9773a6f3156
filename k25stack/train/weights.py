"""The trained tensors as the trainer holds them, and their way to and from the portable names.

Matrices that share an input are one matrix here, since one product is faster than three and Muon sees one map:

    fc          [H, aux*H]        its input is divided by the channel's rms over the training set
    qkv_embed   [(n+2g)*d, H]     the halves of q, k and v that read the embedding ...
    qkv_state   [(n+2g)*d, H]     ... and the state
    o           [H, n*d]
    gate_up     [2I, H]
    down        [H, I]
    head        [D, H]
    norm_embed, norm_state, norm_mlp, norm_out   [H]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from k25stack.draft.spec import DraftSpec

MATRICES = ("fc", "qkv_embed", "qkv_state", "o", "gate_up", "down")
NORMS = {
    "norm_embed": "midlayer.input_layernorm.weight",
    "norm_state": "midlayer.hidden_norm.weight",
    "norm_mlp": "midlayer.post_attention_layernorm.weight",
    "norm_out": "norm.weight",
}
HEAD = "head"


def shapes(spec: DraftSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every trained tensor, matrices first."""
    rows = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    return {
        "fc": (spec.hidden, spec.aux_width),
        "qkv_embed": (rows, spec.hidden),
        "qkv_state": (rows, spec.hidden),
        "o": (spec.hidden, spec.heads * spec.head_dim),
        "gate_up": (2 * spec.intermediate, spec.hidden),
        "down": (spec.hidden, spec.intermediate),
        HEAD: (spec.draft_vocab, spec.hidden),
        **dict.fromkeys(NORMS, (spec.hidden,)),
    }


def to_portable(spec: DraftSpec, weights: Mapping[str, Tensor], channel_rms: Tensor) -> dict[str, Tensor]:
    """The 13 tensors of ``DraftSpec.weights`` with the channel scale folded into fc, in the given precision."""
    sizes = [spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.head_dim]
    portable = {"fc.weight": weights["fc"] / channel_rms}
    halves = zip("qkv", torch.split(weights["qkv_embed"], sizes), torch.split(weights["qkv_state"], sizes), strict=True)
    for letter, embed, state in halves:
        portable[f"midlayer.self_attn.{letter}_proj.weight"] = torch.cat((embed, state), dim=1)  # [rows, 2H]
    gate, up = weights["gate_up"].chunk(2)
    portable |= {
        "midlayer.self_attn.o_proj.weight": weights["o"],
        "midlayer.mlp.gate_proj.weight": gate,
        "midlayer.mlp.up_proj.weight": up,
        "midlayer.mlp.down_proj.weight": weights["down"],
        "lm_head.weight": weights[HEAD],
    }
    portable |= {name: weights[short] for short, name in NORMS.items()}
    return {name: portable[name].contiguous() for name in spec.weights()}


def from_portable(portable: Mapping[str, Tensor], channel_rms: Tensor) -> dict[str, Tensor]:
    """The inverse of `to_portable`."""
    qkv = [portable[f"midlayer.self_attn.{letter}_proj.weight"].chunk(2, dim=1) for letter in "qkv"]
    gate_up = [portable[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    return {
        "fc": portable["fc.weight"] * channel_rms,
        "qkv_embed": torch.cat([embed for embed, _ in qkv]),
        "qkv_state": torch.cat([state for _, state in qkv]),
        "o": portable["midlayer.self_attn.o_proj.weight"],
        "gate_up": torch.cat(gate_up),
        "down": portable["midlayer.mlp.down_proj.weight"],
        HEAD: portable["lm_head.weight"],
        **{short: portable[name] for short, name in NORMS.items()},
    }


@dataclass(frozen=True)
class Frozen:
    """What training reads and never changes, in compute precision."""

    embed: Tensor  # [V, H], the target's embedding
    teacher: Tensor  # [D, H], the target's output rows of the draft vocabulary
    target_ids: Tensor  # int64 [D], target id of each draft id, rising
    draft_ids: Tensor  # int64 [V], draft id of each target id, -1 outside the draft vocabulary
    channel_rms: Tensor  # float32 [aux*H]
    final_norm: Tensor | None = None  # float32 [H], the target's, where the states were taken before it
    final_eps: float = 0.0

    @property
    def t2d(self) -> Tensor:
        return self.draft_ids >= 0

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Frozen:
        return Frozen(
            self.embed.to(device, dtype),
            self.teacher.to(device, dtype),
            self.target_ids.to(device),
            self.draft_ids.to(device),
            self.channel_rms.to(device),
            None if self.final_norm is None else self.final_norm.to(device),
            self.final_eps,
        )


def draft_ids(target_ids: Tensor, target_vocab: int) -> Tensor:
    """int64 [V]: the place of each target id among the rising ``target_ids``, -1 where it is not one of them."""
    result = torch.full((target_vocab,), -1, dtype=torch.int64)
    result[target_ids] = torch.arange(len(target_ids))
    return result
