"""Counters add up, and rates follow from them in the one way the definitions allow."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack.errors import UsageError
from k25stack.speculation import RoundCounts
from k25stack.speculation.verdicts import expected_accept_length

histograms = st.lists(st.integers(0, 500), min_size=2, max_size=9).map(tuple)
with_rounds = histograms.filter(lambda histogram: sum(histogram) > 0)


@given(with_rounds, st.integers(0, 50))
def test_accept_length_is_one_plus_the_sum_of_survival(histogram: tuple[int, ...], cut: int) -> None:
    counts = RoundCounts.from_histogram(histogram, cut)
    assert counts.accept_length() == pytest.approx(1 + sum(counts.survival()))
    assert 1 <= counts.accept_length() <= len(histogram)


@given(with_rounds)
def test_survival_is_the_running_product_of_conditional(histogram: tuple[int, ...]) -> None:
    counts = RoundCounts.from_histogram(histogram)
    assert expected_accept_length(counts.conditional()) == pytest.approx(counts.accept_length())
    survival = counts.survival()
    assert survival == sorted(survival, reverse=True)


@given(with_rounds)
def test_rate_and_length_say_the_same_for_a_chain(histogram: tuple[int, ...]) -> None:
    counts = RoundCounts.from_histogram(histogram)
    assert counts.accept_length() == pytest.approx(1 + (len(histogram) - 1) * counts.accept_rate())


@given(with_rounds, st.integers(0, 50))
def test_cut_rounds_enter_no_rate(histogram: tuple[int, ...], cut: int) -> None:
    with_cut, without = RoundCounts.from_histogram(histogram, cut), RoundCounts.from_histogram(histogram)
    assert with_cut.accept_length() == without.accept_length()
    assert with_cut.survival() == without.survival()


@given(histograms, histograms, st.integers(0, 9), st.integers(0, 9))
def test_sums_are_sums_of_counters(a: tuple[int, ...], b: tuple[int, ...], cut_a: int, cut_b: int) -> None:
    total = RoundCounts.from_histogram(a, cut_a) + RoundCounts.from_histogram(b, cut_b)
    assert total.verify_calls == sum(a) + sum(b)
    assert total.cut == cut_a + cut_b
    if sum(a) and sum(b):
        assert sum(total.histogram) == total.verify_calls


def test_a_sum_with_rounds_of_unknown_histogram_forgets_it() -> None:
    total = RoundCounts.from_histogram((1, 2, 3)) + RoundCounts(10, 5, 20)
    assert total.histogram == ()
    assert total.accept_length() == pytest.approx(1 + 13 / 16)
    with pytest.raises(UsageError, match="no histogram"):
        total.survival()


def test_adding_nothing_keeps_the_histogram() -> None:
    counts = RoundCounts.from_histogram((4, 3, 2, 1), cut=2)
    assert RoundCounts.zero(3) + counts == counts
    assert RoundCounts(0, 0, 0) + counts == counts


@given(histograms, st.integers(0, 9))
def test_dict_round_trips_through_json(histogram: tuple[int, ...], cut: int) -> None:
    counts = RoundCounts.from_histogram(histogram, cut)
    assert RoundCounts.from_dict(json.loads(json.dumps(counts.as_dict()))) == counts


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((3, 2, 9, (1, 1, 0, 0)), "does not add up"),
        ((1, 4, 3, ()), "4 accepted of 3 proposed"),
        ((-1, 0, 0, ()), "negative"),
    ],
)
def test_counters_that_contradict_each_other_are_refused(
    values: tuple[int, int, int, tuple[int, ...]], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        RoundCounts(*values)


def test_missing_counters_are_named() -> None:
    with pytest.raises(UsageError, match="proposed"):
        RoundCounts.from_dict({"verify_calls": 1, "accepted": 0})


def test_no_round_gives_no_rate() -> None:
    with pytest.raises(UsageError, match="no complete speculative round"):
        RoundCounts.zero(3).accept_length()
