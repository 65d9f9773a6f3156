"""Which documents make up each optimizer step, decided before training starts.

The order depends on the seed, the epoch and the documents' lengths alone: not on the number of processes, not on the
clock, not on what happened before.  A place in it is therefore two numbers, epoch and batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from k25stack.states.reader import DocumentRef, States
from k25stack.train.data import needed_rows
from k25stack.train.loss import supervised, taught
from k25stack.train.weights import Frozen

# Work per row in proportion, for dividing a batch: keys of any row against the whole layer and head of a needed one.
KEY_COST, QUERY_COST = 1.0, 20.0


@dataclass(frozen=True)
class Item:
    """What planning must know of one document."""

    ref: DocumentRef
    tokens: int
    response: int  # response tokens
    rows: int  # sum_t m(t,0): taught tokens
    population: int  # supervised tokens, taught or not
    queries: int  # rows that run the whole layer

    @property
    def cost(self) -> float:
        return KEY_COST * self.tokens + QUERY_COST * self.queries


def items(states: States, split: str, frozen: Frozen, steps: int) -> list[Item]:
    """The documents of ``split`` that teach something, in manifest order; reads only their small tensors."""
    t2d = frozen.t2d.cpu()
    found = []
    for ref in states.refs(split):
        document = states.load(ref)
        mask = taught(document.loss_mask, document.argmax, t2d)
        queries = len(needed_rows(mask, steps))
        population = int(supervised(document.loss_mask).sum())
        item = Item(ref, len(document), ref.response_tokens, int(mask.sum()), population, queries)
        if item.rows:
            found.append(item)
    return found


def epoch_batches(found: Sequence[Item], seed: int, epoch: int, batch_tokens: int) -> list[list[int]]:
    """Places in ``found`` of every batch of an epoch: shuffled, then filled in order up to ``batch_tokens`` tokens.

    A document longer than that makes a batch of its own.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    batches: list[list[int]] = []
    filled = batch_tokens
    for place in torch.randperm(len(found), generator=generator).tolist():
        if filled + found[place].tokens > batch_tokens:
            batches.append([])
            filled = 0
        batches[-1].append(place)
        filled += found[place].tokens
    return batches


def divided(batch: Sequence[int], found: Sequence[Item], world: int) -> list[list[int]]:
    """A batch's documents per rank: dearest first, each to the rank with the least work so far."""
    shares: list[list[int]] = [[] for _ in range(world)]
    load = [0.0] * world
    for place in sorted(batch, key=lambda place: (-found[place].cost, place)):
        rank = load.index(min(load))
        shares[rank].append(place)
        load[rank] += found[place].cost
    return shares
