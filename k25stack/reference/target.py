"""The target model on CPU: a Llama in bf16 over static caches, with its residual stream open to the outside.

Design choices:

* Two ways in: `Target.forward` over slots of a cache (prefill, decode, verify), `prefill_packed` over documents packed
  without padding; the head apart from both, since few rows need it.
* q, k and v are one product; weights are reordered once (`linear`); the softmax scale is folded into q.
* Rotary pairs are made neighbours by permuting the rows of q and k once, so that rotation is one complex product in
  float32.  The scores do not change: both sides are permuted alike.
* The residual stream is bf16, as in serving engines.  Canonical id i is the stream at the *input* of layer i.

Not here: other families, quantized weights, attention biases, rotary scaling; `TargetConfig.read` refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from k25stack.reference.attention import Attention, Batched, Ragged, Span
from k25stack.reference.config import TargetConfig
from k25stack.reference.kv import KVCache
from k25stack.reference.linear import Linear
from k25stack.reference.weights import Weights

__all__ = ["ForwardOut", "KVCache", "Prefix", "Target", "TargetConfig"]

BATCHED_TOKENS = 16  # up to so many tokens per row `forward` attends to all rows in one product
ARGMAX_BLOCK = 256  # vocabulary ids per block of the two-level argmax
ARGMAX_ROWS = 256  # rows of logits held at a time


@dataclass(frozen=True)
class ForwardOut:
    """``last``: states after the final norm [..., H]; ``aux``: captured residual streams side by side [..., C*H]."""

    last: Tensor
    aux: Tensor


@dataclass(frozen=True)
class Prefix:
    """What several texts begin with, computed once: keys and values [layers, KV, length, D], states [length, ...]."""

    length: int
    keys: Tensor
    values: Tensor
    states: ForwardOut


class Layer:
    """One decoder layer: weights, and everything but the attention itself."""

    def __init__(self, weights: Weights, index: int, config: TargetConfig) -> None:
        prefix = f"model.layers.{index}."
        dim, heads, kv = config.head_dim, config.heads, config.kv_heads
        q, k, v, o, gate, up, down = (
            weights.take(f"{prefix}{name}.weight", shape)
            for name, shape in (
                ("self_attn.q_proj", (heads * dim, config.hidden)),
                ("self_attn.k_proj", (kv * dim, config.hidden)),
                ("self_attn.v_proj", (kv * dim, config.hidden)),
                ("self_attn.o_proj", (config.hidden, heads * dim)),
                ("mlp.gate_proj", (config.intermediate, config.hidden)),
                ("mlp.up_proj", (config.intermediate, config.hidden)),
                ("mlp.down_proj", (config.hidden, config.intermediate)),
            )
        )
        self.config = config
        # A power of two changes no mantissa; any other scale is applied in float32 by `rotate`.
        self.late_scale = 0.0 if math.log2(config.scale).is_integer() else config.scale
        q = q if self.late_scale else q * config.scale
        self.qkv = Linear(torch.cat([neighbours(q, dim), neighbours(k, dim), v]))
        self.o, self.gate, self.up, self.down = Linear(o), Linear(gate), Linear(up), Linear(down)
        self.input_norm = weights.take(f"{prefix}input_layernorm.weight", (config.hidden,)).float()
        self.mlp_norm = weights.take(f"{prefix}post_attention_layernorm.weight", (config.hidden,)).float()

    def __call__(self, index: int, x: Tensor, rotation: Tensor, attend: Attention) -> Tensor:
        """Residual stream [T, H] at this layer's input -> at its output; ``rotation`` complex64 [T, 1, D/2]."""
        config = self.config
        qkv = self.qkv(rms_norm(x, self.input_norm, config.rms_eps))
        heads = qkv.view(-1, config.heads + 2 * config.kv_heads, config.head_dim)  # [T, heads + 2 KV, D]
        turned = self.rotate(heads[:, : -config.kv_heads], rotation)
        q, k = turned[:, : config.heads], turned[:, config.heads :]
        x = self.o.plus(attend(index, q, k, heads[:, -config.kv_heads :]), x)
        normed = rms_norm(x, self.mlp_norm, config.rms_eps)
        return self.down.plus(self.up.times(normed, self.gate.silu(normed)), x)

    def rotate(self, heads: Tensor, rotation: Tensor) -> Tensor:
        """Turn the neighbouring pairs of [T, heads + KV, D] in float32."""
        wide = heads.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        turned = torch.view_as_complex(wide.view(*heads.shape[:2], -1, 2)).mul_(rotation)  # [T, heads + KV, D/2]
        if self.late_scale:
            turned[:, : self.config.heads] *= self.late_scale
        return wide.to(heads.dtype)


class Target:
    """Weights of a target and its forward passes (no gradients).

    ``embed`` [V, H]; ``head`` [V, H], the same tensor when tied; ``final_norm`` [H].
    """

    def __init__(self, config: TargetConfig, weights: Weights) -> None:
        self.config = config
        self.embed = weights.take("model.embed_tokens.weight", (config.vocab, config.hidden))
        self.head = self.embed if config.tied else weights.take("lm_head.weight", (config.vocab, config.hidden))
        self.final_norm = weights.take("model.norm.weight", (config.hidden,))
        self.dtype = self.embed.dtype
        self.layers = [Layer(weights, index, config) for index in range(config.layers)]
        self._head = Linear(self.head)
        self._rotation = rotation_table(config)

    @classmethod
    def load(cls, directory: Path, dtype: torch.dtype = torch.bfloat16) -> Target:
        """Read a Hugging Face directory of a Llama (config.json, safetensors).

        Raises UsageError when it is no such directory or another architecture, DamageError when weights are missing,
        torn or of another shape.
        """
        return cls(TargetConfig.read(directory), Weights(directory, dtype))

    def new_cache(self, slots: int, max_len: int, *, whole: bool = False) -> KVCache:
        """Room for ``slots`` sequences of ``max_len`` positions; memory is touched as it is written.

        ``whole``: decode steps read all positions, used or not.  Then every step of as many rows has one shape, and a
        row's bits depend on nothing but its own sequence on any machine (see `exact` for when this is needed).
        """
        config = self.config
        return KVCache(config.layers, slots, max_len, config.kv_heads, config.head_dim, self.dtype, whole=whole)

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position, in bytes."""
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * self.dtype.itemsize

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, cache: KVCache, slots: Tensor, start: Tensor, capture: Sequence[int] = ()
    ) -> ForwardOut:
        """Run n new tokens of B sequences against the cache: prefill, decode or verify.

        ``ids`` int64 [B, n]; ``slots`` int64 [B], no slot twice; ``start`` int64 [B].  Token j of row b sits at
        position start[b] + j, its key and value are written there, and it sees positions 0 to start[b] + j of its
        slot.  Rolling back is a smaller start next time; padding behind a row is harmless, since it is overwritten
        before it is seen.
        Returns last [B, n, H] and aux [B, n, C*H].
        """
        batch, n = ids.shape
        positions = (start[:, None] + torch.arange(n)).flatten()  # [B*n]
        if n <= BATCHED_TOKENS:
            attend: Attention = Batched(cache, slots, start, n)
        else:
            begins = zip(slots.tolist(), start.tolist(), strict=True)
            attend = Ragged(cache, [Span(row * n, row * n + n, slot, at) for row, (slot, at) in enumerate(begins)])
        out = self.run(ids.flatten(), positions, attend, capture)
        return ForwardOut(out.last.view(batch, n, -1), out.aux.view(batch, n, -1))

    @torch.inference_mode()
    def prefill_packed(
        self,
        ids: Tensor,
        offsets: Tensor,
        capture: Sequence[int] = (),
        cache: KVCache | None = None,
        slots: Sequence[int] = (),
        prefix: Prefix | None = None,
    ) -> ForwardOut:
        """Run whole documents packed without padding; each sees only itself.

        ``ids`` int64 [T]; document d is ids[offsets[d]:offsets[d+1]].  With a ``cache``, document d is written to
        slot slots[d].  With a ``prefix``, every document begins with it, and ``ids`` hold only what comes after.
        Returns last [T, H] and aux [T, C*H].
        """
        bounds = list(pairwise(offsets.tolist()))
        start = 0 if prefix is None else prefix.length
        if cache is None:
            config, longest = self.config, start + max(end - begin for begin, end in bounds)
            scratch = KVCache(1, 1, longest, config.kv_heads, config.head_dim, self.dtype)
            spans = [Span(begin, end, 0, start) for begin, end in bounds]
            before = None if prefix is None else (prefix.keys, prefix.values)
            attend = Ragged(scratch, spans, scratch=True, prefix=before)
        else:
            spans = [Span(begin, end, slot, start) for (begin, end), slot in zip(bounds, slots, strict=True)]
            attend = Ragged(cache, spans)
            if prefix is not None:
                for slot in slots:
                    cache.k[:, slot, :, :start] = prefix.keys
                    cache.v[:, slot, :, :start] = prefix.values
        positions = torch.cat([torch.arange(start, start + end - begin) for begin, end in bounds])
        return self.run(ids, positions, attend, capture)

    def prefix(self, ids: Tensor, capture: Sequence[int] = ()) -> Prefix:
        """Compute a common beginning once: ``ids`` int64 [P]."""
        cache = self.new_cache(1, len(ids))
        states = self.prefill_packed(ids, torch.tensor([0, len(ids)]), capture, cache, [0])
        return Prefix(len(ids), cache.k[:, 0, :, : len(ids)], cache.v[:, 0, :, : len(ids)], states)

    @torch.inference_mode()
    def run(self, ids: Tensor, positions: Tensor, attend: Attention, capture: Sequence[int] = ()) -> ForwardOut:
        """Run tokens ``ids`` [T] at ``positions`` [T]; ``attend`` decides what each sees.

        Returns last [T, H] and aux [T, C*H].
        """
        rotation = self._rotation[positions].unsqueeze(1)  # [T, 1, D/2]
        x = self.embed[ids]  # [T, H]
        streams: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            if index in capture:
                streams[index] = x
            x = layer(index, x, rotation, attend)
        streams[len(self.layers)] = x
        last = rms_norm(x, self.final_norm.float(), self.config.rms_eps)
        aux = torch.cat([streams[index] for index in capture], -1) if capture else x.new_empty(len(x), 0)
        return ForwardOut(last, aux)

    @torch.inference_mode()
    def logits(self, last: Tensor) -> Tensor:
        """Head over states after the final norm: [..., H] -> [..., V] in the target's type (bf16: ties are common)."""
        return self._head(last.reshape(-1, last.shape[-1])).view(*last.shape[:-1], -1)

    @torch.inference_mode()
    def argmax(self, last: Tensor) -> Tensor:
        """Full-vocabulary greedy choice of states [..., H] -> int64 [...]; the lowest id where logits tie."""
        rows = last.reshape(-1, last.shape[-1])
        best = [top_ids(self._head(part)) for part in torch.split(rows, ARGMAX_ROWS)]
        return torch.cat(best).view(last.shape[:-1]) if best else torch.empty(0, dtype=torch.int64)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` [T, H] over its root mean square, times ``weight`` float32 [H]; everything in float32 up to the result.

    Fewer passes over memory than ``F.rms_norm`` on a CPU.
    """
    wide = x.to(torch.float32, copy=True)
    inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # [T, 1]
    inverse = inverse.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return wide.mul_(inverse).mul_(weight).to(x.dtype)


def top_ids(logits: Tensor) -> Tensor:
    """Lowest id of the largest logit of each row: [rows, V] -> int64 [rows].

    Two levels, because torch's argmax of bf16 runs one value at a time: block maxima vectorise, and then only the
    winning block is searched.  Ten times faster over 49,152 ids.
    """
    rows, vocab = logits.shape
    whole = vocab - vocab % ARGMAX_BLOCK
    if whole != vocab:
        tail = logits.new_full((rows, ARGMAX_BLOCK), -math.inf)
        tail[:, : vocab - whole] = logits[:, whole:]
        logits = torch.cat([logits[:, :whole], tail], 1)
    blocks = logits.view(rows, -1, ARGMAX_BLOCK)  # [rows, V / block, block]
    winner = blocks.amax(-1).argmax(-1)  # [rows], the first of equal blocks
    inside = blocks[torch.arange(rows), winner].argmax(-1)  # [rows]
    return winner * ARGMAX_BLOCK + inside


def common_prefix(texts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all texts begin with, such that each keeps one of its own at least."""
    lowest, highest = min(texts), max(texts)  # what these two share, all share
    shortest = min(len(text) for text in texts) - 1
    pairs = zip(lowest[:shortest], highest[:shortest], strict=True)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), shortest)


def neighbours(weight: Tensor, dim: int) -> Tensor:
    """Reorder the rows of each head so that rows i and i + dim/2, which rotate together, stand side by side."""
    heads = weight.view(-1, 2, dim // 2, weight.shape[-1])  # [heads, half, pair, in]
    return heads.transpose(1, 2).reshape(weight.shape)


def rotation_table(config: TargetConfig) -> Tensor:
    """exp(i * position * frequency), complex64 [context, D/2], from float64 angles."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.arange(config.context, dtype=torch.float64)[:, None] / config.rope_theta**exponents
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
