"""The summary's keys are stable and its figures follow from the ledger by the definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k25stack.errors import UsageError
from k25stack.report import summary, table
from k25stack.report.facts import read_facts
from k25stack.report.figures import profiles
from k25stack.speculation.interval import total

from .conftest import WALKS, bench_rows, row, standard_records, step, write_ledger

KEYS = {
    "accept_length": {"measured", "predicted", "survival_uniform", "random_control", "k", "rounds"},
    "lossless": {"faults", "ties"},
    "speedup": None,
    "break_even": None,
    "coverage": None,
    "tok_s": {"baseline", "draft"},
    "train": {"tok_s", "epochs"},
    "extract": {"tok_s", "bytes_per_token"},
    "seconds": {"setup", "extract", "train", "package", "total"},
    "peak_rss_gb": None,
    "versions": {"k25stack"},
}


def keys_of(value: dict[str, Any]) -> dict[str, set[str] | None]:
    return {name: set(item) if isinstance(item, dict) else None for name, item in value.items()}


def test_keys_are_stable(run: Path) -> None:
    assert keys_of(summary(run)) == KEYS
    json.dumps(summary(run), allow_nan=False)


def test_figures_follow_from_the_ledger(run: Path) -> None:
    walks = total(WALKS)
    found = summary(run)
    assert found["accept_length"] == {
        "measured": pytest.approx(walks.accept_length(), abs=1e-4),
        "predicted": pytest.approx(walks.accept_length(), abs=1e-4),
        "survival_uniform": 1.9,
        "random_control": 1.0,
        "k": 3,
        "rounds": walks.verify_calls,  # each was served four times: at C = 1 and 8, twice each
    }
    assert found["lossless"] == {"faults": 0, "ties": 2}
    assert found["break_even"] == 1.5  # 30 ms against 20 ms at C = 1
    assert found["speedup"] == pytest.approx(walks.accept_length() / 1.5, abs=1e-4)
    assert found["tok_s"] == {"baseline": 50.0, "draft": pytest.approx(walks.accept_length() / 0.03, abs=0.01)}
    assert found["coverage"] == 0.91
    assert found["train"] == {"tok_s": 1600.0, "epochs": 3}
    assert found["extract"] == {"tok_s": 2600.0, "bytes_per_token": 4608.0}
    assert found["seconds"] == {"setup": 60.0, "extract": 50.0, "train": 300.0, "package": 2.0, "total": 352.0}
    assert found["peak_rss_gb"] == 3.5


def test_speed_up_agrees_with_the_rates(run: Path) -> None:
    """Accept length / r is the ratio of the single-stream rates when prefill and cut rounds do not disturb."""
    found = summary(run)
    assert found["speedup"] == pytest.approx(found["tok_s"]["draft"] / found["tok_s"]["baseline"], rel=1e-3)


def test_without_a_benchmark_the_training_predicts(tmp_path: Path) -> None:
    records = [record for record in standard_records() if record[0] != "bench.row"]
    assert summary(write_ledger(tmp_path / "r", records))["accept_length"]["predicted"] == 1.7


def test_capped_rows_give_no_break_even(tmp_path: Path) -> None:
    records = [record for record in standard_records() if record[0] != "bench.row"]
    records += [("bench.row", one) for one in bench_rows(step=None)]
    run = write_ledger(tmp_path / "r", records)
    found = summary(run)
    assert (found["speedup"], found["break_even"]) == (None, None)
    assert "capped (C=1), capped (C=8)" in table(run)


def test_newest_result_of_a_step_counts(tmp_path: Path) -> None:
    """After a retraining, facts of the replaced result are out of date even where no new ones took their place."""
    records = standard_records()
    again = step("train", 100.0, result={"epochs": 1, "tok_s": 2.0})
    records.append(("step.end", {**again, "key": "key-train-2"}))
    facts = read_facts(write_ledger(tmp_path / "r", records))
    assert facts.epochs == ()
    assert facts.steps["train"].result == {"epochs": 1, "tok_s": 2.0}
    assert summary(tmp_path / "r")["accept_length"]["survival_uniform"] is None


def test_measurements_are_appended_and_the_last_one_counts(tmp_path: Path) -> None:
    records = [*standard_records(), ("bench.row", row("base", "baseline", 1, None, requests=99))]
    facts = read_facts(write_ledger(tmp_path / "r", records))
    assert [r["requests"] for r in facts.role("baseline")] == [99, 16]
    assert [p.name for p in profiles(facts)] == ["base", "random", "own"]


def test_an_early_ledger_has_nulls(tmp_path: Path) -> None:
    run = write_ledger(tmp_path / "r", [("run.start", {"run": "r", "stack": {"name": "demo"}})])
    found = summary(run)
    assert keys_of(found).keys() == KEYS.keys()
    assert found["accept_length"]["measured"] is None
    assert found["seconds"] == {"setup": 0, "total": 0}
    assert table(run) == "no benchmark yet"


def test_no_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ledger here"):
        summary(tmp_path)
