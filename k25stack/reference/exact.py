"""Does a token's result depend on what it is computed with?  Asked of the machine, not assumed.

Plain decode computes one row per request, verification k+1 rows, a prefill a whole text.  Where the machine's kernels
sum each row in one order whatever the number of rows, all three give the same bits: then speculation changes no token,
and states recorded while generating are those of a prefill.  With torch 2.13 this holds in bf16 on AVX512_BF16 (one
and two threads); on AVX512 without bf16, and in float32, results differ in their last bits.

The probe multiplies matrices whose exact product is zero, [x, x] by [y, -y]: what comes out is nothing but rounding,
so another order of the sum shows at once.  Random data would hide it: bf16 results rarely flip.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from k25stack.reference.kv import KVCache
from k25stack.reference.linear import Linear
from k25stack.reference.target import Target, rms_norm

ROWS = (1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 130)
LENGTHS = (1, 70, 200, 600)  # keys in use


@torch.inference_mode()
def shape_exact(target: Target) -> bool:
    """True when every kind of kernel a forward pass uses gives a row the same bits alone and among others.

    Shapes and type are the target's own; takes well under a second for a small model.
    """
    config, dtype = target.config, target.dtype
    qkv = (config.heads + 2 * config.kv_heads) * config.head_dim
    products = (
        (config.hidden, qkv),
        (config.heads * config.head_dim, config.hidden),
        (config.hidden, config.intermediate),
        (config.intermediate, config.hidden),
        (config.hidden, config.vocab),
    )
    if not all(product_exact(columns, rows, dtype) for columns, rows in products):
        return False
    x = _random((max(ROWS), config.hidden), dtype)
    gate = _random((max(ROWS), config.intermediate), dtype)
    weight = _random((config.hidden,), torch.float32)
    up = Linear(_random((config.intermediate, config.hidden), dtype))
    down = Linear(_random((config.hidden, config.intermediate), dtype))
    return (
        _rows_agree(lambda rows: rms_norm(rows, weight, config.rms_eps), x)
        and _rows_agree(up.silu, x)
        and _rows_agree(lambda rows: up.times(rows, gate[: len(rows)]), x)
        and _rows_agree(lambda rows: down.plus(rows, x[: len(rows)]), gate)
        and all(attention_exact(target, used) for used in LENGTHS)
    )


def product_exact(columns: int, outputs: int, dtype: torch.dtype) -> bool:
    """A weight [outputs, columns] through `linear`."""
    x = _random((max(ROWS), columns // 2), dtype)
    y = _random((outputs, columns // 2), dtype)
    spare = columns - 2 * (columns // 2)
    weight = F.pad(torch.cat([y, -y], 1), (0, spare))
    return _rows_agree(Linear(weight), F.pad(torch.cat([x, x], 1), (0, spare)))


def attention_exact(target: Target, used: int) -> bool:
    """Scores, softmax and mixing over ``used`` keys, for any number of queries and any masked rest."""
    config, dtype = target.config, target.dtype
    kv, dim, group = config.kv_heads, config.head_dim, config.heads // config.kv_heads
    least = KVCache(1, 1, used, kv, dim, dtype).rounded(used)
    longer = least + 96
    q = _random((kv, max(ROWS) * group, dim // 2), dtype).repeat(1, 1, 2)
    half = _random((kv, longer, dim // 2), dtype)
    keys = torch.cat([half, -half], 2)
    weights = torch.zeros(kv, max(ROWS) * group, longer, dtype=dtype)
    values = _random((kv, longer, dim), dtype)
    pair = used // 2
    weights[:, :, :pair] = _random((kv, max(ROWS) * group, pair), dtype).abs()
    weights[:, :, pair : 2 * pair] = weights[:, :, :pair]
    values[:, pair : 2 * pair] = -values[:, :pair]
    masked = _random((kv, max(ROWS) * group, longer), dtype)
    masked[:, :, used:] = -torch.inf
    scores, shares, mixed = torch.bmm(q, keys.transpose(1, 2)), masked.softmax(-1), torch.bmm(weights, values)
    for rows in (count * group for count in ROWS):
        for length in (least, longer):
            part = torch.bmm(q[:, :rows].contiguous(), keys[:, :length].transpose(1, 2))
            share = masked[:, :rows, :length].softmax(-1)
            mix = torch.bmm(weights[:, :rows, :length].contiguous(), values[:, :length])
            if not (
                torch.equal(part[..., :used], scores[:, :rows, :used])
                and torch.equal(share[..., :used], shares[:, :rows, :used])
                and torch.equal(mix, mixed[:, :rows])
            ):
                return False
    return True


def _rows_agree(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    whole = function(x)
    return all(torch.equal(function(x[:rows].contiguous()), whole[:rows]) for rows in ROWS)


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape))).to(dtype)
