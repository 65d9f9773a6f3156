"""What the figures say by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k25stack.ledger import Record
from k25stack.report.facts import facts_of, read_facts
from k25stack.report.figures import profiles
from k25stack.report.warnings import plateau, warnings
from k25stack.speculation import RoundCounts

from .conftest import WALKS, bench_rows, row, standard_records, write_ledger


def warned(tmp_path: Path, *rows: dict[str, Any]) -> list[str]:
    facts = read_facts(write_ledger(tmp_path / "r", [*standard_records(), *[("bench.row", one) for one in rows]]))
    return warnings(facts, profiles(facts))


def dead(rounds: int) -> list[RoundCounts]:
    return [RoundCounts.from_histogram((rounds, 1, 0, 0)) for _ in range(8)]


def test_a_good_run_warns_only_of_its_data_and_of_foreign_figures(tmp_path: Path) -> None:
    found = warned(tmp_path)
    assert [line.split(":")[0] for line in found] == ["data-limited", "reference own single_stream 40.8 tok/s"]
    assert "0.008 tokens per parameter" in found[0]
    assert "not comparable: old rate definition" in found[1]


def test_a_draft_that_contributes_nothing(tmp_path: Path) -> None:
    found = warned(tmp_path, *bench_rows(own=dead(1000)))
    assert "own: accept length 1.001 tokens/round: the draft contributes nothing" in found
    gap = next(line for line in found if "gap ratio" in line)
    assert "wiring fault" in gap
    assert "suspects" in gap


def test_asking_again_for_the_same_responses_is_no_evidence(tmp_path: Path) -> None:
    """Eight responses of 151 rounds stay 1208 rounds, though each was served four times: no wiring fault yet."""
    found = warned(tmp_path, *bench_rows(own=dead(150)))
    assert any("not enough rounds" in line for line in found)
    assert not any("wiring fault" in line for line in found)


def test_a_control_that_is_accepted_is_suspicious(tmp_path: Path) -> None:
    found = warned(tmp_path, *bench_rows(random=WALKS))
    assert any(line.startswith("random: a random draft reached accept length") for line in found)


def test_faults_and_rejected_rows_come_first(tmp_path: Path) -> None:
    faulty = bench_rows(lossless={"faults": 2, "ties": 0, "compared": 8, "noise_band_logits": 0.1})
    busy = row("base", "baseline", 8, None, accepted=False, reasons=["repeat 1: client-bound: 80% of a core"])
    found = warned(tmp_path, *faulty, busy)
    assert found[:2] == [f"own C={c}: not lossless: 2 faults against the baseline" for c in (1, 8)]
    assert found[2] == "base C=8: row rejected: repeat 1: client-bound: 80% of a core"


def test_a_newer_baseline_makes_old_ratios_stale(tmp_path: Path) -> None:
    newer = row("base", "baseline", 8, None)
    newer["step"] = {**newer["step"], "seconds": 0.05}
    found = warned(tmp_path, newer)
    assert [line.split(":")[0] for line in found if "measured again" in line] == ["random C=8", "own C=8"]
    assert any("--again bench-own" in line for line in found)


def test_capped_rows_are_named(tmp_path: Path) -> None:
    found = warned(tmp_path, *bench_rows(step=None))
    assert sum("own" in line and "capped" in line for line in found) == 2


@pytest.mark.parametrize(
    ("losses", "flat"),
    [
        ([6.276, 6.138, 6.127], False),  # one small step is not yet a plateau
        ([6.138, 6.127, 6.120], True),
        ([6.0, 6.1, 6.2], True),
        ([6.0, 5.99], False),
        ([4.0, 3.0, 2.0], False),
    ],
)
def test_plateau(losses: list[float], flat: bool) -> None:
    assert plateau(tuple({"epoch": i, "loss": loss} for i, loss in enumerate(losses))) is flat


def test_training_curves_are_not_joined_across_trainings() -> None:
    epochs = [(1, 9.0), (2, 8.0), (1, 5.0), (2, 4.0)]
    records = [
        Record(f"2026-01-01T00:00:0{i}.000000Z", "run", i, "train.epoch", {"epoch": number, "loss": loss})
        for i, (number, loss) in enumerate(epochs)
    ]
    assert [epoch["loss"] for epoch in facts_of("r", records).epochs] == [5.0, 4.0]
