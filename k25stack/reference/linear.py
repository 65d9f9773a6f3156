"""Matrix products of the target's weights, in the machine's own layout where torch can reorder them once.

Reordering spares oneDNN a copy of the weight per call: 1.5 to 2.5 times faster for the few rows of a decode step, and a
little for many rows.  The operators are private to torch, so they are tried once and compared with ``F.linear``, which
also serves every other type and machine.

What follows a product elementwise (SiLU, a factor, the residual) is done while the result is still in registers: oneDNN
calls these post-operations.

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
        return self._run(x)

    def silu(self, x: Tensor) -> Tensor:
        """SiLU of the product."""
        return self._run(x, "swish")

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """The product times ``factor`` [rows, out], element by element."""
        return self._run(x, "mul", factor)

    def plus(self, x: Tensor, base: Tensor) -> Tensor:
        """The product on top of ``base`` [rows, out]."""
        return self._run(x, "add", base)

    def _run(self, x: Tensor, then: str = "none", other: Tensor | None = None) -> Tensor:
        alone = x.shape[0] == 1
        if alone:
            x = x.expand(2, -1).contiguous()
            other = None if other is None else other.expand(2, -1).contiguous()
        out = _product(x, self.weight, then, other) if self.packed else _plain(F.linear(x, self.weight), then, other)
        return out[:1] if alone else out


@lru_cache(maxsize=1)
def prepacks() -> bool:
    """True when this torch and this CPU reorder bf16 weights and get the product right with them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 64, generator=generator).to(torch.bfloat16)
    weight = torch.randn(96, 64, generator=generator).to(torch.bfloat16)
    other = torch.randn(4, 96, generator=generator).to(torch.bfloat16)
    wide = x.float() @ weight.float().T
    for then in ("none", "swish", "mul", "add"):
        factor = None if then in ("none", "swish") else other
        try:
            product = _product(x, _reorder(weight), then, factor)
        except (AttributeError, NotImplementedError, RuntimeError):
            return False  # no such operator, or no bf16 kernels for this CPU
        wanted = _plain(wide.clone(), then, None if factor is None else factor.float())
        if not torch.allclose(product.float(), wanted, rtol=2e-2, atol=0.1):
            return False
    return True


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
    return packed


def _product(x: Tensor, packed: Tensor, then: str, other: Tensor | None) -> Tensor:
    operator: Any = torch.ops.mkldnn._linear_pointwise
    out: Tensor = (
        operator(x, packed, None, then, [], "") if other is None else operator.binary(x, other, packed, None, then)
    )
    return out


def _plain(product: Tensor, then: str, other: Tensor | None) -> Tensor:
    """The same after a plain product, in place."""
    if then == "swish":
        return F.silu(product, inplace=True)
    if other is None:
        return product
    return product.mul_(other) if then == "mul" else product.add_(other)
