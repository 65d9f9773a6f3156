"""Attention of the test-time-training chain over packed documents.

At step i, row t sees the step-0 keys of its document up to t, and its own keys of steps 1..i::

    columns     step-0 keys of the document      own keys
    row t    [  0  1  ...  t  |  -   -   -  ]  [ step 1 .. step i ]

Documents are taken one by one, so little is computed to be masked away.  Own keys are elementwise work, not columns
of a matrix.  Scores come scaled: the rope tables of the queries hold 1/sqrt(d).

The matrix library compiles a kernel for every new shape and keeps it: thousands of document lengths would cost more
time than the products and gigabytes.  So sides are rounded up (`ROUND_QUERIES`, `ROUND_KEYS`): a product reads on into
the rows that follow the document, whose keys are hidden and whose queries are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

ROUND_QUERIES, ROUND_KEYS = 16, 32


def rounded(count: int, multiple: int) -> int:
    """``count`` rounded up to a multiple."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True)
class Span:
    """One document inside a packed batch: its key rows, its query rows, and what they may not see."""

    keys: slice  # of the packed rows, rounded up to [L]
    queries: slice  # of the query rows, rounded up to [n]
    count: int  # queries of the document itself; the rest of ``queries`` belongs to others
    first: int  # key columns before this one are visible to every query
    hidden: Tensor  # bool [n, L - first], true for keys above the diagonal or behind the document

    @classmethod
    def build(cls, begin: int, length: int, start: int, rows: Tensor) -> Span:
        """A document of ``length`` key rows from ``begin`` on; its queries from ``start`` on sit at key columns
        ``rows``, rising."""
        count = len(rows)
        keys = slice(begin, begin + rounded(length, ROUND_KEYS))
        queries = slice(start, start + rounded(count, ROUND_QUERIES))
        seen = torch.cat((rows, rows[-1:].expand(queries.stop - start - count)))  # queries of others see like the last
        first = int(rows[0]) + 1
        hidden = (
            torch.arange(first, keys.stop - begin) > seen[:, None]
        )  # no row sees behind the document: rows < length
        return cls(keys, queries, count, first, hidden)


def attend(spans: Sequence[Span], q: Tensor, k: Tensor, v: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """``q`` [g, N, r, d] (g key/value heads, r query heads each), ``k`` and ``v`` [g, S, d] of step 0, ``own`` keys and
    values [g, N, d] of the later steps -> [N, g*r*d].  Rows of no document come out as zero."""
    flat = [tensor for pair in own for tensor in pair]
    result: Tensor = _Attend.apply(spans, q, k, v, *flat)  # type: ignore[no-untyped-call]
    return result


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, spans: Sequence[Span], q: Tensor, k: Tensor, v: Tensor, *own: Tensor) -> Tensor:
        groups, count, repeat, width = q.shape
        own_keys, own_values = own[0::2], own[1::2]
        out = q.new_zeros(count, groups, repeat, width)
        own_scores = [(q * key[:, :, None]).sum(-1) for key in own_keys]  # each [g, N, r]
        weights = []
        for span in spans:
            n, length = span.queries.stop - span.queries.start, span.keys.stop - span.keys.start
            queries = q[:, span.queries].reshape(groups, n * repeat, width)
            scores = torch.bmm(queries, k[:, span.keys].transpose(1, 2)).view(groups, n, repeat, length)
            scores[..., span.first :].masked_fill_(span.hidden[:, None], float("-inf"))
            if own:
                later = torch.stack([s[:, span.queries] for s in own_scores], dim=-1)  # [g, n, r, i]
                scores = torch.cat((scores, later), dim=-1)  # [g, n, r, L + i]
            weight = torch.softmax(scores, dim=-1)
            weight[:, span.count :] = 0  # queries of others; from here on they change nothing
            past = weight[..., :length].reshape(groups, n * repeat, length)
            mixed = torch.bmm(past, v[:, span.keys]).view(groups, n, repeat, width)
            for j, value in enumerate(own_values):
                mixed.addcmul_(weight[..., length + j : length + j + 1], value[:, span.queries, None])
            mine = slice(span.queries.start, span.queries.start + span.count)
            out[mine].permute(1, 0, 2, 3).copy_(mixed[:, : span.count])
            weights.append(weight)
        ctx.spans, ctx.weights = spans, weights
        ctx.save_for_backward(q, k, v, out, *own)
        return out.view(count, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *own = ctx.saved_tensors
        groups, count, repeat, width = q.shape
        own_keys, own_values = own[0::2], own[1::2]
        dout = gradients[0].view(count, groups, repeat, width)
        # Sum over all keys of weight times its gradient: the part of the softmax that every score shares.
        shared = (dout * out).sum(-1).permute(1, 0, 2)  # [g, N, r]
        dout = dout.permute(1, 0, 2, 3).contiguous()  # [g, N, r, d]
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        later = [q.new_zeros(groups, count, repeat, 1) for _ in own_keys]  # weights of the own keys
        # In order of the rows: what a document writes behind its end (zeros) its successors overwrite.
        for span, weight in zip(ctx.spans, ctx.weights, strict=True):
            n, length = span.queries.stop - span.queries.start, span.keys.stop - span.keys.start
            mine = slice(span.queries.start, span.queries.start + span.count)
            grad = dout[:, span.queries].reshape(groups, n * repeat, width)
            past = weight[..., :length].reshape(groups, n * repeat, length)
            torch.bmm(past.transpose(1, 2), grad, out=dv[:, span.keys])
            dscores = torch.bmm(grad, v[:, span.keys].transpose(1, 2))  # [g, n*r, L]
            dscores.sub_(shared[:, span.queries].reshape(groups, n * repeat, 1)).mul_(past)
            dqueries = torch.bmm(dscores, k[:, span.keys]).view(groups, n, repeat, width)
            dq[:, mine] = dqueries[:, : span.count]
            queries = q[:, span.queries].reshape(groups, n * repeat, width)
            torch.bmm(dscores.transpose(1, 2), queries, out=dk[:, span.keys])
            for j, own_weight in enumerate(later):
                own_weight[:, mine] = weight[:, : span.count, :, length + j : length + j + 1]
        down: list[Tensor] = []
        for key, value, weight in zip(own_keys, own_values, later, strict=True):
            dscore = (
                (dout * value[:, :, None]).sum(-1, keepdim=True).sub_(shared[..., None]).mul_(weight)
            )  # [g, N, r, 1]
            dq.addcmul_(dscore, key[:, :, None])
            down += [(q * dscore).sum(2), (dout * weight).sum(2)]  # each [g, N, d]
        ctx.weights = None
        return None, dq, dk, dv, *down
