"""Verdicts at their thresholds, and figures that one team's deployment and public data can be checked against."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack.errors import UsageError
from k25stack.speculation import StepTime, break_even, convert_old_accept_rate, gap_ratio, speedup, step_cost_ratio
from k25stack.speculation.verdicts import expected_accept_length


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (1.0, "wiring fault"),
        (1.29, "wiring fault"),
        (1.31, "weak or shifted"),
        (1.79, "weak or shifted"),
        (1.81, "fine"),
    ],
)
def test_gap_verdicts(measured: float, verdict: str) -> None:
    gap = gap_ratio(measured, 2.0, rounds=1500)
    assert gap.verdict == verdict
    assert gap.ratio == pytest.approx(measured - 1)


def test_too_few_rounds_is_a_verdict_of_its_own() -> None:
    assert gap_ratio(1.0, 2.0, rounds=1499).verdict == "not enough rounds"


def test_a_draft_that_predicts_nothing_has_no_ratio() -> None:
    gap = gap_ratio(1.0, 1.0, rounds=5000)
    assert (gap.ratio, gap.verdict) == (None, "nothing predicted")
    assert gap_ratio(1.0, 1.0, rounds=10).ratio is None


def test_step_cost_from_a_deployment_where_nothing_was_accepted() -> None:
    """At accept length 1.00 the ratio of the rates is r: 90.0 and 40.8 tok/s at batch 1, 2320 and 597 at C = 128."""
    one = step_cost_ratio(StepTime(1 / 90.0, 1, 1), StepTime(1 / 40.8, 1, 1))
    many = step_cost_ratio(StepTime(128 / 2320, 128, 128), StepTime(128 / 597, 128, 128))
    assert one.r == pytest.approx(2.21, abs=0.005)
    assert many.r == pytest.approx(3.89, abs=0.005)
    assert one.r is not None
    assert break_even(one.r) == one.r
    assert speedup(2.51, one.r) == pytest.approx(1.14, abs=0.005)


@given(st.floats(0.1, 121), st.floats(1, 128))
def test_capped_rows_never_give_r(capped: float, other: float) -> None:
    short, full = StepTime(0.02, capped, 128), StepTime(0.01, other, int(other) or 1)
    assert step_cost_ratio(short, full).r is None
    assert step_cost_ratio(full, short).r is None
    assert step_cost_ratio(short, short).verdict == "capped"


def test_unequal_batches_give_no_r() -> None:
    cost = step_cost_ratio(StepTime(0.01, 8, 8), StepTime(0.02, 16, 16))
    assert (cost.r, cost.verdict) == (None, "unequal batch")


def test_step_times_must_be_positive() -> None:
    with pytest.raises(UsageError, match="positive"):
        step_cost_ratio(StepTime(0.0, 1, 1), StepTime(0.1, 1, 1))
    with pytest.raises(UsageError, match="step-cost ratio"):
        speedup(2.0, 0.0)


@pytest.mark.parametrize(
    ("conditional", "length"),
    [([0.74, 0.64, 0.559], 2.478), ([0.744, 0.648, 0.571], 2.501), ([0.745, 0.649, 0.573], 2.506)],
)
def test_training_accuracies_to_accept_length(conditional: list[float], length: float) -> None:
    assert expected_accept_length(conditional) == pytest.approx(length, abs=0.001)


@pytest.mark.parametrize(
    ("rate", "tokens", "length", "strict"), [(0.25, 4, 1.0, 0.0), (0.20, 5, 1.0, 0.0), (0.42, 4, 1.68, 0.68 / 3)]
)
def test_old_accept_rates(rate: float, tokens: int, length: float, strict: float) -> None:
    old = convert_old_accept_rate(rate, tokens)
    assert old.accept_length == pytest.approx(length)
    assert old.accept_rate == pytest.approx(strict)


@given(st.integers(2, 9), st.integers(1, 1000), st.data())
def test_old_rate_conversion_inverts_its_definition(tokens: int, rounds: int, data: st.DataObject) -> None:
    accepted = data.draw(st.integers(0, rounds * (tokens - 1)))
    old = convert_old_accept_rate((accepted + rounds) / (rounds * tokens), tokens)
    assert old.accept_length == pytest.approx(1 + accepted / rounds)
    assert old.accept_rate == pytest.approx(accepted / (rounds * (tokens - 1)))


def test_a_rate_below_the_old_floor_is_refused() -> None:
    with pytest.raises(UsageError, match="no old accept rate"):
        convert_old_accept_rate(0.1, 4)


def test_the_room_is_pure_standard_library() -> None:
    code = (
        "import sys, k25stack.speculation; heavy = {'torch', 'numpy', 'pydantic', 'aiohttp', 'transformers', 'yaml'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
