"""Gates hold or fail by the figures, and say when there is nothing to judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k25stack.report import gates
from k25stack.speculation import RoundCounts

from .conftest import WALKS, bench_rows, standard_records, write_ledger

LUCKY = [RoundCounts.from_histogram((200, 10, 0, 0)) for _ in range(8)]
DEAD = [RoundCounts.from_histogram((400, 1, 0, 0)) for _ in range(8)]
CLEAN = {"faults": 0, "ties": 0}


def verdicts(run: Path) -> dict[str, str]:
    return {gate.name: gate.verdict for gate in gates(run)}


def with_rows(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    return write_ledger(tmp_path / "r", [*standard_records(), *[("bench.row", one) for one in rows]])


def test_a_good_run_passes_every_gate_that_is_set(run: Path) -> None:
    assert verdicts(run) == {
        "min_accept_length": "holds",
        "max_random_control": "holds",
        "min_gap_ratio": "holds",
        "max_prediction_gap": "holds",
        "min_rounds": "holds",
        "max_faults": "holds",
    }


def test_without_a_benchmark_nothing_is_judged(tmp_path: Path) -> None:
    run = write_ledger(tmp_path / "r", standard_records()[:1])
    assert set(verdicts(run).values()) == {"not measured"}


@pytest.mark.parametrize(
    ("rows", "failing"),
    [
        (bench_rows(random=LUCKY, lossless=CLEAN), {"max_random_control"}),
        (bench_rows(own=DEAD, lossless=CLEAN), {"min_accept_length", "min_gap_ratio", "max_prediction_gap"}),
        (bench_rows(lossless={"faults": 1, "ties": 0}), {"max_faults"}),
        (bench_rows(own=WALKS[:4], lossless=CLEAN), {"min_rounds"}),
    ],
)
def test_gates_fail_by_name(tmp_path: Path, rows: list[dict[str, Any]], failing: set[str]) -> None:
    found = gates(with_rows(tmp_path, *rows))
    assert {gate.name for gate in found if gate.holds is False} == failing


def test_a_failing_gap_names_its_suspects(tmp_path: Path) -> None:
    found = gates(with_rows(tmp_path, *bench_rows(own=DEAD)))
    assert "suspects" in next(gate.remark for gate in found if gate.name == "min_gap_ratio")


def test_a_prediction_gap_inside_the_noise_holds(tmp_path: Path) -> None:
    """Document by document off in both directions: the mean is off by more than the limit, but not beyond chance."""
    served = [RoundCounts.from_histogram((100, 40 + (60 if i % 2 else -40), 0, 0)) for i in range(8)]
    walked = [RoundCounts.from_histogram((100, 30, 0, 0)) for _ in range(8)]
    run = with_rows(tmp_path, *bench_rows(own=served, walks=walked))
    gate = next(g for g in gates(run) if g.name == "max_prediction_gap")
    assert gate.value is not None
    assert gate.value > 0.05
    assert gate.holds
    assert "holds 0" in gate.remark
