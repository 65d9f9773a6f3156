"""Prediction against service over the same responses, and the step-cost ratio, from rows made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k25stack.bench.conclusion import conclude, distinct_rounds, read_walks
from k25stack.errors import DamageError
from k25stack.speculation import RoundCounts
from k25stack.speculation.interval import total

K = 3
WALKS = {f"d{i}/0": RoundCounts.from_histogram((60 + 10 * i, 20, 10, 5 * i)) for i in range(8)}


def row(served: dict[str, RoundCounts], requests: int = 1, concurrency: int = 1, **changes: Any) -> dict[str, Any]:
    """A speculative row in which each response was served ``requests`` times."""
    counts = total(list(served.values())).times(requests)
    documents = [
        {
            "key": key,
            "cluster": key[:2],
            "domain": "ab"[int(key[1]) % 2],
            "requests": requests,
            "rounds": one.times(requests).as_dict(),
        }
        for key, one in served.items()
    ]
    return {
        "concurrency": concurrency,
        "k": K,
        "decode": {"temperature": 0.0},
        "rounds": counts.as_dict(),
        "accept_length": {"value": counts.accept_length()},
        "step": {"seconds": 0.03, "running": float(concurrency)},
        "documents": documents,
        **changes,
    }


def plain(concurrency: int = 1, **changes: Any) -> dict[str, Any]:
    step = {"seconds": 0.02, "running": float(concurrency)}
    return {"concurrency": concurrency, "accept_length": None, "rounds": None, "documents": [], "step": step, **changes}


def concluded(*rows: dict[str, Any], walks: dict[str, RoundCounts] | None = None) -> dict[str, Any]:
    conclude(rows, WALKS if walks is None else walks, [], seed=0)
    whole: dict[str, Any] = rows[0]["overall"]
    json.dumps(whole, allow_nan=False)
    return whole


def test_served_as_predicted_is_fine() -> None:
    many = {f"d{i}/{turn}": WALKS[f"d{i}/0"] for i in range(8) for turn in range(2)}
    whole = concluded(row(many, 2), row(many, 3, concurrency=8), walks=many)
    assert whole["gap"] == {"ratio": pytest.approx(1.0), "verdict": "fine"}
    assert whole["difference_interval"] == [0.0, 0.0]
    assert whole["accept_length"]["value"] == pytest.approx(whole["predicted"]["value"])
    assert whole["accept_length"]["rounds"] == sum(counts.verify_calls for counts in many.values())
    assert whole["accept_length"]["prompts"] == 8
    assert set(whole["by_domain"]) == {"a", "b"}
    assert whole["by_domain"]["a"]["measured"] == whole["by_domain"]["a"]["predicted"]


def test_prediction_weighs_responses_as_they_were_served() -> None:
    """One response served ten times and the others once: the walk is weighted alike, so the gap stays 1."""
    whole = concluded(row(WALKS), row({"d7/0": WALKS["d7/0"]}, 9))
    assert whole["gap"]["ratio"] == pytest.approx(1.0)
    assert whole["predicted"]["value"] > total(list(WALKS.values())).accept_length()


def test_only_responses_with_a_walk_of_the_same_k_are_compared() -> None:
    some = {"d1/0": WALKS["d1/0"], "d2/0": WALKS["d2/0"], "d3/0": RoundCounts.from_histogram((9, 9))}
    whole = concluded(row(WALKS), walks=some)
    assert (whole["predicted"]["prompts"], whole["accept_length"]["prompts"]) == (2, 8)


def test_sampled_rows_are_not_held_against_the_walk() -> None:
    whole = concluded(row(WALKS, decode={"temperature": 0.7}))
    assert (whole["predicted"], whole["gap"]) == (None, None)


def test_asking_again_is_evidence_only_when_sampled() -> None:
    once = sum(counts.verify_calls for counts in WALKS.values())
    assert distinct_rounds([row(WALKS, 4), row(WALKS, 2)]) == once
    assert distinct_rounds([row(WALKS, 4, decode={"temperature": 0.7})]) == 4 * once


def test_nothing_accepted_against_a_good_walk_is_a_wiring_fault() -> None:
    dead = {key: RoundCounts.from_histogram((300, 1, 0, 0)) for key in WALKS}
    whole = concluded(row(dead))
    assert whole["gap"]["verdict"] == "wiring fault"
    assert whole["contributes_nothing"]
    assert not concluded(row(WALKS))["contributes_nothing"]


def test_counters_of_the_whole_server_have_no_interval() -> None:
    whole = concluded(row(WALKS, documents=[]))
    assert (whole["accept_length"]["interval"], whole["predicted"]) == (None, None)


def test_without_speculation_there_is_nothing_to_conclude() -> None:
    rows = [plain()]
    conclude(rows, {}, [plain()], 0)
    assert (rows[0]["overall"], rows[0]["cost"]) == (None, None)


@pytest.mark.parametrize(
    ("speculative", "base", "verdict"),
    [
        ({}, {}, "fine"),
        ({"step": None}, {}, "capped"),
        ({}, {"step": None}, "capped"),
        ({"step": {"seconds": 0.03, "running": 0.5}}, {}, "capped"),
    ],
)
def test_step_cost(speculative: dict[str, Any], base: dict[str, Any], verdict: str) -> None:
    rows = [row(WALKS, **speculative)]
    conclude(rows, {}, [plain(8), plain(**base)], 0)
    cost = rows[0]["cost"]
    assert cost["verdict"] == verdict
    if verdict == "fine":
        assert (cost["r"], cost["break_even"]) == (pytest.approx(1.5), pytest.approx(1.5))
        assert cost["speedup"] == pytest.approx(rows[0]["accept_length"]["value"] / 1.5)
    else:
        assert (cost["r"], cost["break_even"], cost["speedup"]) == (None, None, None)


def test_no_baseline_at_that_concurrency_gives_no_cost() -> None:
    rows = [row(WALKS)]
    conclude(rows, {}, [plain(8)], 0)
    assert rows[0]["cost"] is None


def test_walks_are_read_by_prompt(tmp_path: Path) -> None:
    line = {"doc_id": "a", "turn": 1, "domain": "x", "histogram": [3, 2], "cut": 1, "rounds": 5, "accepted": 2}
    (tmp_path / "walk.jsonl").write_text(json.dumps(line) + "\n")
    assert read_walks(tmp_path) == read_walks(tmp_path / "walk.jsonl") == {"a/1": RoundCounts.from_histogram((3, 2), 1)}
    (tmp_path / "walk.jsonl").write_text("{}\n")
    with pytest.raises(DamageError, match="not a file of greedy walks"):
        read_walks(tmp_path)
