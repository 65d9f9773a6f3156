"""Intervals: seeded, honest about clusters, and covering the truth about as often as they say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.errors import UsageError
from k25stack.speculation import RoundCounts, bootstrap_by_prompt, bootstrap_pairs
from k25stack.speculation.interval import quantile, total


def prompts(seed: int, count: int, rounds: int, spread: float) -> list[RoundCounts]:
    """Prompts of one-token chains whose own acceptance is 0.5 +- ``spread``."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        p = 0.5 + generator.uniform(-spread, spread)
        accepted = sum(generator.random() < p for _ in range(rounds))
        made.append(RoundCounts.from_histogram((rounds - accepted, accepted)))
    return made


def test_same_seed_same_interval() -> None:
    data = prompts(0, 20, 30, 0.3)
    first = bootstrap_by_prompt(data, RoundCounts.accept_length, seed=7)
    assert first == bootstrap_by_prompt(data, RoundCounts.accept_length, seed=7)
    assert first != bootstrap_by_prompt(data, RoundCounts.accept_length, seed=8)


def test_alike_prompts_have_no_spread() -> None:
    data = [RoundCounts.from_histogram((3, 2, 1))] * 9
    low, high = bootstrap_by_prompt(data, RoundCounts.accept_length, seed=0)
    assert low == high == data[0].accept_length()


def test_clusters_widen_the_interval() -> None:
    """Forty prompts that differ say less than the same rounds dealt out evenly."""
    clustered = prompts(1, 40, 50, 0.4)
    mixed = prompts(1, 40, 50, 0.0)
    wide = bootstrap_by_prompt(clustered, RoundCounts.accept_length, seed=0, draws=500)
    narrow = bootstrap_by_prompt(mixed, RoundCounts.accept_length, seed=0, draws=500)
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_coverage_is_near_its_level() -> None:
    hits = 0
    for seed in range(100):
        low, high = bootstrap_by_prompt(prompts(seed, 40, 20, 0.4), RoundCounts.accept_length, seed=seed, draws=300)
        hits += low <= 1.5 <= high
    assert 86 <= hits <= 100


def test_pairs_cancel_what_prompts_share() -> None:
    a = prompts(2, 40, 50, 0.4)
    low, high = bootstrap_pairs(
        list(zip(a, a, strict=True)), lambda x, y: x.accept_length() - y.accept_length(), seed=0
    )
    assert (low, high) == (0.0, 0.0)


def test_prompts_without_rounds_are_left_out() -> None:
    data = [RoundCounts.from_histogram((1, 1)), RoundCounts.zero(1), RoundCounts.from_histogram((0, 2))]
    low, high = bootstrap_by_prompt(data, RoundCounts.accept_length, seed=0)
    assert 1.5 <= low <= high <= 2.0
    with pytest.raises(UsageError, match="no prompt has a complete round"):
        bootstrap_by_prompt([RoundCounts.zero(1)], RoundCounts.accept_length, seed=0)


def test_counters_without_histogram_work() -> None:
    data = [RoundCounts(10, 5, 30), RoundCounts(10, 9, 30)]
    low, high = bootstrap_by_prompt(data, RoundCounts.accept_rate, seed=0)
    assert low < 14 / 60 < high


@settings(max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_quantile_lies_inside_and_hits_the_ends(values: list[float], q: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, q) <= ordered[-1] + 1e-6
    assert (quantile(ordered, 0), quantile(ordered, 1)) == (ordered[0], ordered[-1])


def test_total_of_nothing_is_no_round() -> None:
    assert total([]) == RoundCounts(0, 0, 0)
