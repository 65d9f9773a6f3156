"""Rows are compared only where nothing but the profile differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k25stack import ledger
from k25stack.bench.compare import as_text, compare, load_rows
from k25stack.errors import UsageError


def row(**changes: Any) -> dict[str, Any]:
    return {
        "profile": "own",
        "concurrency": 1,
        "k": 3,
        "verify_rule": "greedy",
        "decode": {"temperature": 0.0, "thinking": False},
        "definitions": {"accept_length": "k25stack/accept-length/1"},
        "prompts": {"hash": "a"},
        "max_tokens": 100,
        "ignore_eos": False,
        "accepted": True,
        "reasons": [],
        "single_stream_tok_s": {"median": 50.0, "interval": [49.0, 51.0], "values": []},
        "throughput_tok_s": {"median": 50.0, "interval": None, "values": [50.0]},
        "accept_length": {"value": 1.6, "interval": [1.5, 1.7]},
        **changes,
    }


def test_verdicts_follow_the_intervals() -> None:
    faster = row(
        single_stream_tok_s={"median": 60.0, "interval": [58.0, 62.0]},
        accept_length={"value": 1.65, "interval": [1.6, 1.75]},
    )
    pair = compare([row()], [faster])[0]
    assert [d.verdict for d in pair.differences] == ["higher", "one repeat: no verdict", "no difference"]
    assert compare([faster], [row()])[0].differences[0].verdict == "lower"
    text = as_text([pair])
    assert "50 [49, 51] -> 60 [58, 62] tok/s +20.0%: higher" in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decode": {"temperature": 0.6, "thinking": False}}, "decode.temperature: 0.0 and 0.6"),
        ({"decode": {"temperature": 0.0}}, "decode.thinking: False and None"),
        ({"definitions": {"accept_length": "sglang/spec_accept_length"}}, "definitions.accept_length"),
        ({"prompts": {"hash": "b"}}, "other prompts"),
        ({"max_tokens": 50}, "max_tokens: 100 and 50"),
        ({"verify_rule": "target_only"}, "verify_rule"),
        ({"accepted": False, "reasons": ["client-bound"]}, "was rejected: client-bound"),
    ],
)
def test_unequal_conditions_are_not_comparable(changes: dict[str, Any], says: str) -> None:
    pair = compare([row()], [row(**changes)])[0]
    assert any(says in obstacle for obstacle in pair.obstacles)
    assert pair.differences == ()
    assert "not comparable" in as_text([pair])


def test_profiles_pair_by_name_or_when_each_side_has_one() -> None:
    assert compare([row(profile="a")], [row(profile="b")])[0].b == "b C=1"
    both = [row(profile="a"), row(profile="b")]
    assert [(pair.a, pair.b) for pair in compare(both, both)] == [("a C=1", "a C=1"), ("b C=1", "b C=1")]
    with pytest.raises(UsageError, match="no row has the same"):
        compare([row()], [row(concurrency=8)])


def test_rows_come_from_files_and_from_a_runs_ledger(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [row()]}))
    (tmp_path / "row.json").write_text(json.dumps(row()))
    ledger.append(tmp_path / "run" / "ledger" / "run.jsonl", "bench.row", row())
    assert load_rows(tmp_path / "rows.json") == load_rows(tmp_path / "row.json") == load_rows(tmp_path) == [row()]
    assert load_rows(tmp_path / "run") == [row()]


@pytest.mark.parametrize(
    ("content", "says"), [(None, "no such file"), ("x", "not JSON"), ("[1]", "no bench rows"), ("{}", "no bench rows")]
)
def test_wrong_files_are_named(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=says):
        load_rows(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no bench rows here"):
        load_rows(tmp_path / "empty")
