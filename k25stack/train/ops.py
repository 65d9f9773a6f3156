"""The draft layer's operations with hand-written gradients: fewer passes over memory than autograd's own.

* `Matrix`: a linear map whose weight gradient is formed once per optimizer step, from all its uses at once.  The
  chain uses each weight k times; one product with k times the rows is faster than k products and sums, and the sum
  stays in the product's fp32 accumulator instead of being rounded to bf16 after every use.
* `rms_norm`: statistics and gradient in fp32.
* `turn`: rope, with the head dimension moved to the front.
* `swiglu`.

Every function works in the dtype it is given (bf16, fp32, fp64), on any device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that statistics are kept in: at least fp32."""
    return torch.promote_types(dtype, torch.float32)


class Matrix:
    """A weight [out, in] in compute precision, and the place where its gradient goes.

    Calling it records the input and, in the backward pass, the gradient of the output; `finish` turns the records
    into ``grad``.  ``rows`` gives a part of the output rows its own record, for uses that need only that part.
    """

    def __init__(self, value: Tensor, grad: Tensor) -> None:
        self.value = value
        self.grad = grad
        self.uses: list[tuple[Tensor, Tensor]] = []  # (input [R, in], gradient of the output [R, out])

    def rows(self, begin: int, end: int) -> Matrix:
        return Matrix(self.value[begin:end], self.grad[begin:end])

    def __call__(self, x: Tensor, anchor: Tensor, base: Tensor | None = None) -> Tensor:
        """``x`` [R, in] -> [R, out], added to ``base`` [R, out] when given.

        ``anchor`` is any tensor that requires a gradient: it makes the use part of the graph when ``x`` is data.
        """
        result: Tensor = _Linear.apply(x, base, anchor, self)  # type: ignore[no-untyped-call]
        return result

    def finish(self) -> None:
        """Write the gradient of all recorded uses and forget them."""
        if len(self.uses) == 1:
            inputs, outputs = self.uses[0]
        else:
            inputs, outputs = (torch.cat(parts) for parts in zip(*self.uses, strict=True))
        torch.mm(outputs.t(), inputs, out=self.grad)
        self.uses.clear()


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor | None, anchor: Tensor, matrix: Matrix) -> Tensor:
        ctx.matrix, ctx.x = matrix, x.detach()
        ctx.need_input, ctx.need_base = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        if base is None:
            return functional.linear(x, matrix.value)
        return torch.addmm(base, x, matrix.value.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (gradient,) = gradients
        ctx.matrix.uses.append((ctx.x, gradient))
        ctx.x = None
        dx = torch.mm(gradient, ctx.matrix.value) if ctx.need_input else None
        return dx, gradient if ctx.need_base else None, None, None


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        values = x.to(wide(x.dtype), copy=True)
        inverse = torch.linalg.vector_norm(values, dim=-1, keepdim=True)  # [R, 1]
        inverse = inverse.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return values.mul_(inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (gradient,) = gradients
        x, weight, inverse = ctx.saved_tensors
        unit = x.to(inverse.dtype, copy=True).mul_(inverse)  # [R, H], rms 1
        scaled = gradient.to(inverse.dtype, copy=True)
        dweight = (scaled * unit).sum(0)
        if not ctx.needs_input_grad[0]:
            return None, dweight, None
        scaled.mul_(weight)
        along = (scaled * unit).mean(-1, keepdim=True)  # [R, 1]: a norm's output does not change along its input
        dx = scaled.addcmul_(unit, along, value=-1).mul_(inverse)
        return dx.to(x.dtype), dweight, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` [R, H] over its root mean square, times ``weight`` [H] (fp32 or wider)."""
    result: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return result


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, *, back: bool = False) -> None:
    """Turn channel pairs (c, c + d/2) of ``x`` [..., d] by the angles [..., d/2] into ``out``, or back."""
    low, high = x.chunk(2, dim=-1)
    out_low, out_high = out.chunk(2, dim=-1)
    sign = -1.0 if back else 1.0
    torch.mul(low, cos, out=out_low)
    out_low.addcmul_(high, sin, value=-sign)
    torch.mul(high, cos, out=out_high)
    out_high.addcmul_(low, sin, value=sign)


class _Turn(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        rows, width = x.shape
        heads = x.view(rows, groups, -1, 2 * cos.shape[-1])  # [R, g, n/g, d]
        out = x.new_empty(groups, rows, width // groups).view(groups, rows, heads.shape[2], heads.shape[3])
        rotate(heads, cos[:, None, None], sin[:, None, None], out.transpose(0, 1))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients  # [g, R, n/g, d]
        cos, sin = ctx.saved_tensors
        groups, rows, repeat, width = gradient.shape
        dx = gradient.new_empty(rows, groups, repeat, width)
        rotate(gradient.transpose(0, 1), cos[:, None, None], sin[:, None, None], dx, back=True)
        return dx.view(rows, -1), None, None, None


def turn(x: Tensor, cos: Tensor, sin: Tensor, groups: int) -> Tensor:
    """Rope on all heads of ``x`` [R, n*d] with tables [R, d/2]; returns [groups, R, n/groups, d].

    ``groups`` are the key/value heads: the query heads that share one lie side by side, so that a product with its
    keys is one matrix product of R*n/groups rows.
    """
    result: Tensor = _Turn.apply(x, cos, sin, groups)  # type: ignore[no-untyped-call]
    return result


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        (x,) = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        dx = torch.empty_like(x)
        dgate, dup = dx.chunk(2, dim=-1)
        torch.mul(gradient, functional.silu(gate), out=dup)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=dgate)
        return dx


def swiglu(x: Tensor) -> Tensor:
    """``x`` [R, 2I], gate beside up -> silu(gate) * up, [R, I]."""
    result: Tensor = _SwiGLU.apply(x)  # type: ignore[no-untyped-call]
    return result
