"""Matrix products of the target's weights, in the machine's own layout where torch can reorder them once.

Reordering spares oneDNN a copy of the weight per call: 1.5 to 2.5 times faster for the few rows of a decode step, and a
little for many rows.  The operators are private to torch, so they are tried once and compared with ``F.linear``, which
also serves every other type and machine.

At least two rows are always computed.  oneDNN takes another summation order for a single row of a long one (seen with
1536 columns on AVX512_BF16); from two rows on, a row's result did not depend on how many others came with it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_HINT = 64  # rows the layout is chosen for; layouts chosen for 1 to 512 rows ran equally fast


class Linear:
    """x [rows, in] -> x W^T [rows, out], W [out, in] without bias."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = prepacks() and weight.dtype == torch.bfloat16
        self.weight: Tensor = _reorder(weight) if self.packed else weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows == 1:
            x = x.expand(2, -1).contiguous()
        out = _product(x, self.weight) if self.packed else F.linear(x, self.weight)
        return out[:1] if rows == 1 else out


@lru_cache(maxsize=1)
def prepacks() -> bool:
    """True when this torch and this CPU reorder bf16 weights and get the product right with them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 64, generator=generator).to(torch.bfloat16)
    weight = torch.randn(96, 64, generator=generator).to(torch.bfloat16)
    try:
        product = _product(x, _reorder(weight))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False  # no such operator, or no bf16 kernels for this CPU
    return torch.allclose(product.float(), x.float() @ weight.float().T, rtol=2e-2, atol=0.1)


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
    return packed


def _product(x: Tensor, packed: Tensor) -> Tensor:
    operator: Any = torch.ops.mkldnn._linear_pointwise
    out: Tensor = operator(x, packed, None, "none", [], "")
    return out
