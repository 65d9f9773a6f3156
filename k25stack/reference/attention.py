"""Causal attention of the target over its cache: a batched form for decode and verify, a ragged one for prefill.

Both are products of bf16 matrices with a softmax between (scores rounded to the model's type, as Hugging Face's eager
attention does), not the fused kernel: that one is several times slower here for few query rows over grouped heads, and
its blocks depend on the shape.  In these products each row is one sum over the keys in order, and masked keys add
exact zeros, so the result of a row does not depend on how many rows, requests or masked keys come with it wherever
the machine's matrix kernels keep that order (`exact.shape_exact` asks them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from k25stack.reference.kv import LANES, KVCache

QUERY_BLOCK = 128
"""Query rows of one product in the ragged form: keys behind the block's last row are not computed at all."""


class Attention(Protocol):
    """Writes the new keys and values of one layer, then attends to all keys that each row may see."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, heads, D] (already scaled), k and v [T, kv_heads, D] -> [T, heads * D]."""


@dataclass(frozen=True)
class Span:
    """Rows ``begin`` to ``end`` of a ragged batch: tokens of one slot from position ``start`` on."""

    begin: int
    end: int
    slot: int
    start: int
    cache: KVCache | None = None  # None: that of the batch


class Batched:
    """B requests with n tokens each, all attended to in one product per layer."""

    def __init__(self, cache: KVCache, slots: Tensor, start: Tensor, n: int) -> None:
        """``slots`` and ``start`` int64 [B]: where each request's tokens lie and begin."""
        self.cache = cache
        self.n = n
        positions = start[:, None] + torch.arange(n)  # [B, n]
        used = int(positions.max()) + 1
        # Slots 0 to B-1 are read in place, any others are gathered.
        leading = slots.tolist() == list(range(len(slots)))
        self.slots: slice | Tensor = slice(0, len(slots)) if leading else slots
        self.length = cache.window(used, leading)
        hidden = torch.arange(self.length) > positions[..., None]  # [B, n, L]
        mask = torch.zeros(hidden.shape, dtype=cache.k.dtype).masked_fill_(hidden, -math.inf)
        self.mask = mask[:, None, :, None]  # [B, 1, n, 1, L]
        self.rows = (slots[:, None].expand(-1, n).flatten(), positions.flatten())  # slot and position of each token

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.cache.k[layer], self.cache.v[layer]
        slots, positions = self.rows
        keys[slots, :, positions] = k
        values[slots, :, positions] = v
        keys = keys[:, :, : self.length][self.slots].flatten(0, 1)  # [B*KV, L, D]
        values = values[:, :, : self.length][self.slots].flatten(0, 1)  # [B*KV, L, D]
        heads, dim = q.shape[1:]
        kv, n, batch = k.shape[1], self.n, q.shape[0] // self.n
        group = heads // kv
        q = q.view(batch, n, kv, group, dim).transpose(1, 2).reshape(batch * kv, n * group, dim)
        scores = torch.bmm(q, keys.transpose(1, 2))  # [B*KV, n*G, L]
        scores.view(batch, kv, n, group, -1).add_(self.mask)
        out = torch.bmm(torch.softmax(scores, -1), values)  # [B*KV, n*G, D]
        return out.view(batch, kv, n, group, dim).transpose(1, 2).reshape(batch * n, heads * dim)


class Joined:
    """Requests that lie in several caches: the rows of each one follow those of the one before."""

    def __init__(self, parts: Sequence[tuple[int, Attention]]) -> None:
        """``parts``: how many rows, and what attends to them."""
        self.counts = [rows for rows, _ in parts]
        self.parts = [attention for _, attention in parts]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(*(torch.split(tensor, self.counts) for tensor in (q, k, v)), strict=True)
        return torch.cat([part(layer, *each) for part, each in zip(self.parts, rows, strict=True)])


class Ragged:
    """Sequences of any lengths, packed without padding; each is attended to alone, in causal blocks."""

    def __init__(
        self,
        cache: KVCache,
        spans: Sequence[Span],
        *,
        scratch: bool = False,
        prefix: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """``scratch``: the cache is one slot of one layer that everything overwrites, for a forward that keeps nothing.

        ``prefix``: keys and values [layers, KV, P, D] that a scratch cache holds before every sequence.
        """
        self.cache = cache
        self.spans = spans
        self.scratch = scratch
        self.prefix = prefix
        size = max(QUERY_BLOCK + LANES, cache.least)
        hidden = torch.arange(size) > torch.arange(QUERY_BLOCK)[:, None]
        self.triangle = torch.zeros(hidden.shape, dtype=cache.k.dtype).masked_fill_(hidden, -math.inf)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        index = 0 if self.scratch else layer
        if self.prefix is not None:
            for cache, shared in zip((self.cache.k, self.cache.v), self.prefix, strict=True):
                cache[0, 0, :, : shared.shape[2]] = shared[layer]
        out = torch.zeros_like(q)  # rows of no span stay finite
        for span in self.spans:
            rows = slice(span.begin, span.end)
            held = span.cache or self.cache
            keys, values = held.k[index, span.slot], held.v[index, span.slot]
            end = span.start + span.end - span.begin
            keys[:, span.start : end] = k[rows].transpose(0, 1)
            values[:, span.start : end] = v[rows].transpose(0, 1)
            self._attend(out[rows], q[rows], keys, values, span.start)
        return out.flatten(1)

    def _attend(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor, start: int) -> None:
        """Fill ``out`` [n, heads, D] from q [n, heads, D], keys and values [KV, length, D]."""
        (tokens, heads, dim), kv = q.shape, keys.shape[0]
        group = heads // kv
        for begin in range(0, tokens, QUERY_BLOCK):
            block = slice(begin, min(begin + QUERY_BLOCK, tokens))
            n = block.stop - begin
            first = start + begin  # every key before this position is seen by all rows of the block
            length = self.cache.rounded(start + block.stop)
            rows = q[block].view(n, kv, group, dim).transpose(0, 1).reshape(kv, n * group, dim)
            scores = torch.bmm(rows, keys[:, :length].transpose(1, 2))  # [KV, n*G, L]
            scores.view(kv, n, group, length)[..., first:].add_(self.triangle[:n, None, : length - first])
            mixed = torch.bmm(torch.softmax(scores, -1), values[:, :length])  # [KV, n*G, D]
            out[block].view(n, kv, group, dim).copy_(mixed.view(kv, n, group, dim).transpose(0, 1))
