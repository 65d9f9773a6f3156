"""Statistics against closed forms and published tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack.bench.stats import beta_cdf, percentiles, repeated, t_cdf, t_quantile
from k25stack.errors import UsageError


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227), (1000, 1.96234)],
)
def test_t_quantile_matches_the_table(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=1e-4)


@given(st.floats(0.501, 0.9999))
def test_one_degree_is_cauchy_and_two_has_a_closed_form(p: float) -> None:
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-7)
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))), rel=1e-7)


@given(st.floats(0.001, 0.999), st.integers(1, 200))
def test_quantile_inverts_the_distribution_and_is_odd(p: float, degrees: int) -> None:
    assert t_cdf(t_quantile(p, degrees), degrees) == pytest.approx(p, abs=1e-8)
    assert t_quantile(p, degrees) == pytest.approx(-t_quantile(1 - p, degrees), abs=1e-6)


@given(st.floats(0, 1), st.floats(0.2, 50))
def test_beta_with_one_side_one_is_a_power(x: float, a: float) -> None:
    assert beta_cdf(a, 1.0, x) == pytest.approx(x**a, abs=1e-12)
    assert beta_cdf(1.0, a, x) == pytest.approx(1 - (1 - x) ** a, abs=1e-12)


def test_impossible_quantiles_are_refused() -> None:
    with pytest.raises(UsageError, match="no quantile"):
        t_quantile(1.0, 3)


def test_interval_over_repeats() -> None:
    figure = repeated([10.0, 12.0, 14.0])
    half = 4.302653 * 2.0 / math.sqrt(3)
    assert figure.median == 12.0
    assert (figure.low, figure.high) == (pytest.approx(12 - half, abs=1e-4), pytest.approx(12 + half, abs=1e-4))


def test_one_repeat_has_no_interval() -> None:
    assert repeated([5.0]).as_dict() == {"median": 5.0, "interval": None, "values": [5.0]}
    with pytest.raises(UsageError, match="no repeat"):
        repeated([])


def test_percentiles_of_a_ramp() -> None:
    ramp = percentiles([float(i) for i in range(101)])
    assert ramp == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "mean": 50.0}
    assert percentiles([]) == {}
