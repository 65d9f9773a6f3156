"""Documents in packed batches: which rows the chain needs, and where everything lies.

A batch is documents laid end to end, without padding.  Only some rows do any work::

    key rows    all rows that a needed row may see: they give keys and values (fc, norm, two projections)
    query rows  rows that have a loss at some step: they run the whole layer, k times
    loss rows   taught tokens u, each with its k rows u-1-i; they run the head (see ``loss.taught``)

With response-only supervision the query rows are the response and the k rows before it.

The number of rows of each kind is rounded up, for the reason told in ``attention.py``; the added rows belong to no
document and have no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from k25stack.states.document import Document
from k25stack.train.attention import Span, rounded
from k25stack.train.loss import taught
from k25stack.train.ops import rms_norm, wide
from k25stack.train.weights import Frozen

ROUND_ROWS = 16  # of queries and loss rows; adds about 1 %
ROUND_PACKED = 64  # of packed rows, which cost little


@dataclass(frozen=True)
class Batch:
    """S packed rows of which N are queries; M tokens whose query projection is needed; U loss rows.

    All counts include the rows added to round them up; the documents' own come first.
    """

    count: int  # queries of documents
    aux: Tensor  # [S, aux*H], divided by the channel's rms
    embeds: Tensor  # [S, H], embedding of the packed token itself (a row reads that of a later one)
    key_positions: Tensor  # int64 [S]
    query_rows: Tensor  # int64 [N], packed row of each query
    query_positions: Tensor  # int64 [N]
    query_tokens: Tensor  # int64 [M], packed tokens that are the input of some query at some step
    inputs: list[Tensor]  # per step int64 [N], packed token whose embedding the query reads
    input_places: list[Tensor]  # per step int64 [N], the same as a place in query_tokens
    spans: list[Span]
    targets: list[Tensor]  # per step int64 [N], draft id of the token it must propose; -1 when it cannot
    loss_rows: Tensor  # int64 [U, k], query that predicts taught token u at step i (any where there is none)
    loss_exists: Tensor  # bool [U, k]
    last: Tensor  # [U, H], the target's state that teaches
    best: Tensor  # int64 [U], the target's choice as draft id


def needed_rows(mask: Tensor, steps: int) -> Tensor:
    """int64 [n], rising: rows u-1-i >= 0 of the taught tokens ``mask`` [T] for i < ``steps``."""
    u = mask.nonzero().squeeze(1)
    rows = torch.zeros(len(mask), dtype=torch.bool)
    for step in range(steps):
        rows[(u - 1 - step)[u > step]] = True
    return rows.nonzero().squeeze(1)


def chain_starts(loss_mask: Tensor) -> Tensor:
    """int64 [R-1], rising: the rows at which serving starts a round, one per response token but the last.

    The round that starts after response token p is known reads row p-1: the state of token p-1, token p itself.
    """
    following = torch.zeros_like(loss_mask)
    following[1:-1] = loss_mask[1:-1] & loss_mask[2:]
    return following.nonzero().squeeze(1) - 1


def pack(documents: Sequence[Document], queries: Sequence[Tensor], frozen: Frozen, steps: int, teach: bool) -> Batch:
    """Lay ``documents`` end to end.

    ``queries`` are each one's query rows, rising and not none; ``teach`` adds the loss rows.
    """
    places = _places(documents, queries)
    packed, count = int(places.ends[-1]) + 1, len(places.rows)
    size = 1 + rounded(max(packed - 1, places.spans[-1].keys.stop), ROUND_PACKED)
    total = rounded(max(count, places.spans[-1].queries.stop), ROUND_ROWS)
    device, dtype = frozen.embed.device, frozen.embed.dtype
    tokens = grown(torch.cat([document.token_ids for document in documents]), size)
    aux = frozen.embed.new_zeros(size, documents[0].aux.shape[1])
    aux[:packed] = torch.cat([document.aux for document in documents]).to(device, dtype)
    # A row whose step-i token lies behind its document's end reads the last token instead: it has no loss there.
    inputs = [grown(torch.minimum(places.rows + 1 + step, places.ends), total) for step in range(steps)]
    query_tokens = torch.unique(torch.cat(inputs))
    loss_rows, exists, last, best = _losses(documents, places, frozen, steps) if teach else _no_losses(frozen, steps)
    taught_rows = rounded(len(best), ROUND_ROWS)
    targets = _targets(tokens, places, frozen, steps)
    return Batch(
        count=count,
        aux=aux.mul_((1 / frozen.channel_rms.double()).to(dtype)),
        embeds=frozen.embed[tokens.to(device)],
        key_positions=grown(torch.cat([torch.arange(len(document)) for document in documents]), size).to(device),
        query_rows=grown(places.rows, total).to(device),
        query_positions=grown(torch.cat(list(queries)), total).to(device),
        query_tokens=grown(query_tokens, rounded(len(query_tokens), ROUND_ROWS)).to(device),
        inputs=[index.to(device) for index in inputs],
        input_places=[torch.searchsorted(query_tokens, index).to(device) for index in inputs],
        spans=[replace(span, hidden=span.hidden.to(device)) for span in places.spans],
        targets=[grown(ids, total, -1).to(device) for ids in targets],
        loss_rows=grown(loss_rows, taught_rows).to(device),
        loss_exists=grown(exists, taught_rows).to(device),
        last=_normed(grown(last, taught_rows).to(device, dtype), frozen),
        best=grown(best, taught_rows).to(device),
    )


def grown(rows: Tensor, count: int, value: int = 0) -> Tensor:
    """``rows`` [n, ...] with rows of ``value`` added at the end, [count, ...]."""
    if len(rows) == count:
        return rows
    return torch.cat((rows, rows.new_full((count - len(rows), *rows.shape[1:]), value)))


@dataclass(frozen=True)
class _Places:
    """Where the documents of a batch lie."""

    spans: list[Span]
    begins: list[int]  # first packed row of each document
    rows: Tensor  # int64 [count], packed row of each query, rising
    ends: Tensor  # int64 [count], packed row of the last token of its document


def _places(documents: Sequence[Document], queries: Sequence[Tensor]) -> _Places:
    spans, begins, rows, ends = [], [], [], []
    begin = start = 0
    for document, query in zip(documents, queries, strict=True):
        # The last token has no next one to read: it is no row, but its embedding is read.
        spans.append(Span.build(begin, len(document) - 1, start, query))
        begins.append(begin)
        rows.append(query + begin)
        ends.append(torch.full_like(query, begin + len(document) - 1))
        begin += len(document)
        start += len(query)
    return _Places(spans, begins, torch.cat(rows), torch.cat(ends))


def _targets(tokens: Tensor, places: _Places, frozen: Frozen, steps: int) -> list[Tensor]:
    """Per step the draft id of token t+2+i, or -1 where the document ends before or the vocabulary lacks it."""
    draft_ids, result = frozen.draft_ids.cpu(), []
    for step in range(steps):
        place = places.rows + 2 + step
        ids = draft_ids[tokens[torch.minimum(place, places.ends)]]
        result.append(torch.where(place <= places.ends, ids, -1))
    return result


def _losses(
    documents: Sequence[Document], places: _Places, frozen: Frozen, steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    t2d = frozen.t2d.cpu()
    rows, exists, last, best = [], [], [], []
    for document, begin in zip(documents, places.begins, strict=True):
        u = taught(document.loss_mask, document.argmax, t2d).nonzero().squeeze(1)  # [U]
        own = u[:, None] - 1 - torch.arange(steps)  # [U, k], in the document
        exists.append(own >= 0)
        rows.append(own.clamp_min(0) + begin)
        last.append(document.last[u])
        best.append(document.argmax[u].long())
    # A row that does not exist gets the place of some other; its weight is zero.
    found = torch.searchsorted(places.rows, torch.cat(rows)).clamp_max(len(places.rows) - 1)
    return found, torch.cat(exists), torch.cat(last), frozen.draft_ids.cpu()[torch.cat(best)]


def _normed(last: Tensor, frozen: Frozen) -> Tensor:
    """The states that the target's head reads: those given, or through the final norm if taken before it."""
    if frozen.final_norm is None:
        return last
    return rms_norm(last, frozen.final_norm.to(wide(last.dtype)), frozen.final_eps)


def _no_losses(frozen: Frozen, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    empty = torch.zeros(0, steps, dtype=torch.int64)
    return empty, empty.bool(), frozen.embed.new_zeros(0, frozen.embed.shape[1]), torch.zeros(0, dtype=torch.int64)
