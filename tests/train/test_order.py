"""The plan of a run: every document once per epoch, whoever computes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k25stack.states.reader import DocumentRef
from k25stack.train.order import Item, divided, epoch_batches


def plan(lengths: list[int]) -> list[Item]:
    refs = [DocumentRef(0, 0, n, f"{i:04d}", 1, "d", "train", n // 2) for i, n in enumerate(lengths)]
    return [Item(ref, len(ref), len(ref) // 2, len(ref) // 2, len(ref) // 2, len(ref) // 2 + 3) for ref in refs]


LENGTHS = st.lists(st.integers(2, 300), min_size=1, max_size=60)


@given(LENGTHS, st.integers(0, 5), st.integers(0, 3), st.integers(50, 600))
def test_every_document_once_and_no_batch_too_large(lengths: list[int], seed: int, epoch: int, room: int) -> None:
    batches = epoch_batches(plan(lengths), seed, epoch, room)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(sum(lengths[place] for place in batch) <= room or len(batch) == 1 for batch in batches)
    assert batches == epoch_batches(plan(lengths), seed, epoch, room)


def test_epochs_and_seeds_differ() -> None:
    items = plan(list(range(10, 60)))
    orders = {str(epoch_batches(items, seed, epoch, 200)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(LENGTHS, st.integers(1, 4))
def test_ranks_divide_a_batch(lengths: list[int], world: int) -> None:
    items = plan(lengths)
    shares = divided(range(len(items)), items, world)
    assert sorted(place for share in shares for place in share) == list(range(len(items)))
    loads = [sum(items[place].cost for place in share) for share in shares]
    assert max(loads) - min(loads) <= max(item.cost for item in items)
