"""Soft cross-entropy of all chain steps against the target, with its gradient formed in the forward pass.

The step-i row of token t and the teacher row u = t+1+i meet in token u+1.  So one teacher row serves k student
rows, and whether a row counts depends on u alone: the rows form a full [U, k] block.  Per chunk of teacher rows::

    teacher   softmax(last[u] W_t)                 [c, D]     once for all steps
    student   softmax(norm(state[u, i]) W)         [c, k, D]
    gradient  student - teacher                    [c, k, D]  kept for all chunks
    states    gradient W, times the loss weight    [c, k, H]

The loss weight is a number per row; it scales the narrow sides of both products and never the wide block.  The
kept gradients give the weight's gradient in one product, or in a few when they would exceed ``BLOCK_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

CHUNK_ROWS = 384  # student rows of one chunk: more fall out of the last-level cache, fewer repack the weights too often
BLOCK_BYTES = 256 << 20  # most memory for the gradient of the logits


@dataclass
class HeadSums:
    """Sums over the rows of one batch, per chain step, each float64 [k]."""

    loss: Tensor  # cross-entropy of the supervised rows, not weighted
    hits: Tensor  # rows whose best draft token is the target's best


class DraftHead:
    """The draft's output rows ``value`` [D, H], their gradient, and the target's own rows ``teacher`` [D, H]."""

    def __init__(self, value: Tensor, grad: Tensor, teacher: Tensor) -> None:
        self.value, self.grad, self.teacher = value, grad, teacher
        self._block = value.new_empty(0)

    def block(self, rows: int) -> Tensor:
        """Room for [rows, D] gradients of logits, kept from step to step."""
        needed = rows * self.value.shape[0]
        if self._block.numel() < needed:
            self._block = self.value.new_empty(needed)
        return self._block[:needed].view(rows, -1)

    def loss(self, states: Tensor, last: Tensor, best: Tensor, weights: Tensor, sums: HeadSums) -> Tensor:
        """Weighted cross-entropy, a scalar whose backward pass gives the gradient of ``states``.

        ``states`` [U, k, H] after the draft's norm, ``last`` [U, H] the target's states after its norm, ``best`` [U]
        the target's choice as draft id, ``weights`` [U, k] (0 where a row does not exist).  Writes ``grad`` for this
        batch and adds to ``sums``.
        """
        result: Tensor = _HeadLoss.apply(states, last, best, weights, self, sums)  # type: ignore[no-untyped-call]
        return result


class _HeadLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, last: Tensor, best: Tensor, weights: Tensor, head: DraftHead, sums: HeadSums
    ) -> Tensor:
        rows, steps, hidden = states.shape
        width = head.value.shape[0]
        block_rows = max(1, min(rows, BLOCK_BYTES // (steps * width * states.element_size())))
        block = head.block(block_rows * steps)
        dstates = torch.empty_like(states)
        total = weights.new_zeros(())
        direct = block_rows == rows
        for begin in range(0, rows, block_rows):
            part = slice(begin, min(begin + block_rows, rows))
            used = block[: (part.stop - part.start) * steps]
            total += _block(states[part], last[part], best[part], weights[part], head, sums, used, dstates[part])
            scaled = (states[part] * weights[part, :, None]).to(states.dtype).view(-1, hidden)
            if direct:
                torch.mm(used.t(), scaled, out=head.grad)
            elif begin == 0:
                gradient = torch.mm(used.t(), scaled).to(weights.dtype)
            else:
                gradient += torch.mm(used.t(), scaled)
        if not direct:
            head.grad.copy_(gradient)
        ctx.save_for_backward(dstates)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (dstates,) = ctx.saved_tensors
        # The loss is the end of the graph, so its own gradient is 1 and the gradients stand as formed.
        return dstates, None, None, None, None, None


def _block(
    states: Tensor,
    last: Tensor,
    best: Tensor,
    weights: Tensor,
    head: DraftHead,
    sums: HeadSums,
    block: Tensor,
    dstates: Tensor,
) -> Tensor:
    """One block of rows: its weighted loss; leaves the gradient of its logits in ``block`` [c*k, D]."""
    rows, steps, hidden = states.shape
    chunk = max(1, CHUNK_ROWS // steps)
    total = weights.new_zeros(())
    for begin in range(0, rows, chunk):
        part = slice(begin, min(begin + chunk, rows))
        count = part.stop - begin
        gradient = block[begin * steps : part.stop * steps]  # [c*k, D]
        teacher = torch.softmax(torch.mm(last[part], head.teacher.t()), dim=-1)[:, None]  # [c, 1, D]
        logits = torch.mm(states[part].reshape(-1, hidden), head.value.t()).view(count, steps, -1)
        student = torch.softmax(logits, dim=-1, out=gradient.view(count, steps, -1))  # [c, k, D]
        # For the record.  The log-sum-exp is one logit less its own log-probability: no further pass over the block.
        index = best[part, None, None].expand(count, steps, 1)
        chosen, likely = logits.gather(2, index).squeeze(2), student.gather(2, index).squeeze(2)  # [c, k]
        hits = likely == student.amax(-1)
        expected = (logits * teacher).sum(-1)  # the teacher's mean of the logits; bf16 rounds it without bias
        student.sub_(teacher)  # the gradient from here on
        product = torch.mm(gradient, head.value).view(count, steps, hidden)
        dstates[part] = product * weights[part, :, None]
        smallest = torch.finfo(likely.dtype).tiny
        entropy = chosen.to(weights.dtype) - likely.clamp_min(smallest).to(weights.dtype).log() - expected
        counted = weights[part] > 0
        entropy = torch.where(counted, entropy, 0.0)
        sums.loss += entropy.sum(0, dtype=torch.float64)
        sums.hits += (hits & counted).sum(0)
        total += (entropy * weights[part]).sum()
    return total
