"""How many bytes a target's weights and cache take, from its shapes alone (no torch, nothing is read).

Layers are those of DeepSeek-V3 and Kimi-K2.5 (latent attention, experts) or of Llama.  Under tensor parallelism a part
is either split between the cards or held whole by each: the first projections of latent attention, the router and the
norms are held whole.  A quantized weight of b bits in groups of g carries one 16-bit scale per group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k25stack.stack.target import Quantization, Shape, Target

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
SCALE_BYTES = 2
VISION = {"kimi_k25": 440_000_000}  # parameters of the image tower and its projector, about; not in the stack's shapes


@dataclass(frozen=True)
class Part:
    """Weights of one kind, all layers together."""

    name: str
    parameters: int
    bytes: int
    split: bool  # between the cards of a tensor-parallel group; else every card holds all of it

    def per_gpu(self, tensor_parallel: int) -> float:
        return self.bytes / tensor_parallel if self.split else float(self.bytes)


def weight_parts(target: Target) -> list[Part]:
    """The target's weights by kind."""
    shape, wide = target.shape, DTYPE_BYTES[target.dtype]
    counts = [*attention_counts(shape), *mlp_counts(shape)]
    counts += [("embedding", shape.vocab * shape.hidden, True)]
    if not shape.tied:
        counts += [("output head", shape.vocab * shape.hidden, True)]
    if target.family in VISION:
        counts += [("vision tower (about)", VISION[target.family], False)]
    return [
        Part(name, count, round(count * bytes_per_weight(name, target.quantization, wide)), split)
        for name, count, split in counts
        if count
    ]


def bytes_per_weight(name: str, quantization: Quantization | None, wide: int) -> float:
    """Of a part: only what the quantization's scope names is packed."""
    if quantization is None or quantization.scope not in (name, "all"):
        return float(wide)
    return quantization.bits / 8 + SCALE_BYTES / quantization.group


def attention_counts(shape: Shape) -> list[tuple[str, int, bool]]:
    """(name, parameters, split between cards) of all layers' attention and norms."""
    hidden, layers, norms = shape.hidden, shape.layers, 2 * shape.hidden
    if shape.mla is None:
        qkv = hidden * shape.head_dim * (shape.heads + 2 * shape.kv_heads)
        out = shape.heads * shape.head_dim * hidden
        return [("attention", layers * (qkv + out), True), ("norms", layers * norms + hidden, False)]
    mla = shape.mla
    first = hidden * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim)
    second = mla.q_lora_rank * shape.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    second += mla.kv_lora_rank * shape.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    out = shape.heads * mla.v_head_dim * hidden
    norms += mla.q_lora_rank + mla.kv_lora_rank
    return [
        ("attention", layers * (second + out), True),
        ("attention, first projections", layers * first, False),
        ("norms", layers * norms + hidden, False),
    ]


def mlp_counts(shape: Shape) -> list[tuple[str, int, bool]]:
    dense = 3 * shape.hidden * shape.intermediate
    if shape.moe is None:
        return [("MLP", shape.layers * dense, True)]
    moe = shape.moe
    sparse, expert = shape.layers - moe.dense_layers, 3 * shape.hidden * moe.intermediate
    return [
        ("routed experts", sparse * moe.experts * expert, True),
        ("shared experts", sparse * moe.shared_experts * expert, True),
        ("dense MLP", moe.dense_layers * dense, True),
        ("router", sparse * (moe.experts * shape.hidden + moe.experts), False),
    ]


def kv_bytes_per_token(shape: Shape, tensor_parallel: int = 1, bytes_per_value: int = 2) -> int:
    """Bytes of cache that one token costs on each card, all layers of the target together.

    Latent attention keeps one vector of ``kv_lora_rank + qk_rope_head_dim`` values per layer, and every card keeps all
    of it; plain attention splits its heads between the cards.
    """
    return shape.layers * kv_bytes_per_layer(shape, tensor_parallel, bytes_per_value)


def kv_bytes_per_layer(shape: Shape, tensor_parallel: int = 1, bytes_per_value: int = 2) -> int:
    if shape.mla is not None:
        return (shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim) * bytes_per_value
    return 2 * heads_per_gpu(shape.kv_heads, tensor_parallel) * shape.head_dim * bytes_per_value


def heads_per_gpu(kv_heads: int, tensor_parallel: int) -> int:
    """Key/value heads on each card; below one per card they are repeated."""
    return max(1, kv_heads // tensor_parallel)
