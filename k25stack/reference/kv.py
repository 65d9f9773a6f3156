"""Keys and values of the target, one static block per slot."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

LANES = 32
"""Lengths handed to the kernels are multiples of this, so that masked tails never change the order of a sum."""

SMALL_PRODUCT = 4096
"""torch multiplies batches with no more multiplications than this by another kernel, whose sums differ."""


class KVCache:
    """Zeroed keys and values of ``slots`` sequences of up to ``max_len`` positions: [layers, slots, KV, length, D].

    A slot needs no clearing between sequences: positions are seen only after they were written anew.  Give a tight
    ``max_len`` where speed counts: see `window`.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        max_len: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        *,
        whole: bool = False,
    ) -> None:
        """``whole``: every decode step reads all positions, so that all steps have one shape."""
        self.slots = slots
        self.max_len = max_len
        least = SMALL_PRODUCT // (kv_heads * head_dim) + 1
        self.least = -(-least // LANES) * LANES  # positions that even one query is multiplied with
        self.whole = whole
        self.length = self.rounded(max_len)
        shape = (layers, slots, kv_heads, self.length, head_dim)
        self.k, self.v = lazy_zeros(shape, dtype), lazy_zeros(shape, dtype)

    def rounded(self, length: int) -> int:
        """Positions to multiply with when ``length`` of them are in use; the rest is masked."""
        return max(self.least, -(-length // LANES) * LANES)

    def window(self, length: int, leading: bool) -> int:
        """Positions a decode step reads when ``length`` of them are in use, of slots 0, 1, 2.. or (gathered) others.

        torch copies batched operands with gaps between them before it multiplies, which costs more than the product.
        So leading slots are read whole, unless most of their room is unused.
        """
        if self.whole or (leading and 5 * self.rounded(length) > 2 * self.length):
            return self.length
        return self.rounded(length)

    def take(self, slot: int, other: KVCache, source: int, length: int) -> None:
        """Copy the first ``length`` positions of a slot of ``other``, in all layers."""
        self.k[:, slot, :, :length] = other.k[:, source, :, :length]
        self.v[:, slot, :, :length] = other.v[:, source, :, :length]


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory page by page as they are written, and give it back at once when they are dropped.

    torch.zeros writes everything at once; the operating system's zeroed pages cost nothing until then, and reading
    them touches one page that stays in the processor's cache.
    """
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)
