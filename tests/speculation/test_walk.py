"""The walk predicts exactly what a greedy engine does to the same response."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack.errors import UsageError
from k25stack.speculation import RoundCounts, greedy_walk, survival_uniform

MATCHES = st.integers(1, 6).flatmap(
    lambda k: st.tuples(st.lists(st.integers(0, k), max_size=80), st.just(k)),
)


def matches_of(response: list[int], drafts: list[list[int]]) -> list[int]:
    """Leading matches at every chain start, capped by the end of the response (teacher-forced)."""
    found = []
    for t in range(len(response) - 1):
        ahead = response[t + 1 :]
        count = 0
        while count < min(len(ahead), len(drafts[t])) and drafts[t][count] == ahead[count]:
            count += 1
        found.append(count)
    return found


def served(response: list[int], drafts: list[list[int]], k: int) -> RoundCounts:
    """A greedy engine in its own words: verify the chain, append token by token, stop at the end."""
    text = response[:1]
    counts = RoundCounts.zero(k)
    while len(text) < len(response):
        chain = drafts[len(text) - 1]
        accepted = 0
        for candidate in chain:
            here = len(text) + accepted
            if here >= len(response) or candidate != response[here]:
                break
            accepted += 1
        commit = [*chain[:accepted], -1]  # -1: the target's own token, known only inside the response
        room = len(response) - len(text)
        if len(commit) > room:
            counts = counts + RoundCounts(0, 0, 0, (0,) * (k + 1), 1)
        else:
            counts = counts + RoundCounts.from_histogram(tuple(int(j == accepted) for j in range(k + 1)))
        text = response[: len(text) + min(len(commit), room)]
    return counts


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 60), st.integers(1, 4))
def test_walk_equals_a_greedy_engine(seed: int, k: int, length: int, vocabulary: int) -> None:
    generator = random.Random(seed)
    response = [generator.randrange(vocabulary) for _ in range(length)]
    drafts = [[generator.randrange(vocabulary) for _ in range(k)] for _ in range(length)]
    assert greedy_walk(matches_of(response, drafts), k) == served(response, drafts, k)


@given(MATCHES)
def test_every_token_after_the_first_is_committed_once(case: tuple[list[int], int]) -> None:
    accepted_at, k = case
    counts = greedy_walk(accepted_at, k)
    in_complete_rounds = counts.verify_calls + counts.accepted
    rest = len(accepted_at) - in_complete_rounds
    assert counts.cut in (0, 1)
    assert rest == 0 if counts.cut == 0 else 1 <= rest <= k


@given(st.integers(1, 6), st.data())
def test_constant_matches_give_that_accept_length(k: int, data: st.DataObject) -> None:
    accepted = data.draw(st.integers(0, k))
    rounds = data.draw(st.integers(1, 50))
    counts = greedy_walk([accepted] * (rounds * (accepted + 1)), k)
    assert counts.cut == 0
    assert counts.accept_length() == accepted + 1
    assert survival_uniform([accepted] * 10) == accepted + 1


def test_the_round_that_runs_past_the_end_is_cut() -> None:
    assert greedy_walk([1, 0, 3, 2, 0, 1, 1], 3) == RoundCounts.from_histogram((0, 1, 0, 1), cut=1)


def test_a_round_whose_own_token_is_the_last_is_complete() -> None:
    assert greedy_walk([2, 0, 0], 3) == RoundCounts.from_histogram((0, 0, 1, 0))


def test_one_token_makes_no_round() -> None:
    assert greedy_walk([], 3) == RoundCounts.zero(3)


def test_uniform_average_overstates_what_is_served() -> None:
    """Easy stretches take fewer rounds when served, so the mean over positions gives them too much weight."""
    accepted_at = ([3] * 12 + [0] * 12) * 20
    walk = greedy_walk(accepted_at, 3)
    assert survival_uniform(accepted_at) == 2.5
    assert walk.accept_length() == pytest.approx(1 + 9 / 15)


@given(st.integers(0, 2**32))
def test_uniform_is_at_least_the_walk_where_stretches_are_easy_or_hard(seed: int) -> None:
    generator = random.Random(seed)
    accepted_at: list[int] = []
    for _ in range(60):
        accepted_at += [generator.choice((0, 1, 3))] * generator.randrange(8, 30)
    assert survival_uniform(accepted_at) >= greedy_walk(accepted_at, 3).accept_length() - 0.05


def test_matches_beyond_the_chain_are_refused() -> None:
    with pytest.raises(UsageError, match=r"4 accepted tokens at position 1, expected 0\.\.3"):
        greedy_walk([0, 4], 3)


def test_uniform_needs_a_position() -> None:
    with pytest.raises(UsageError, match="no position"):
        survival_uniform([])
