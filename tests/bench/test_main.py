"""The step program as a process, on a fake engine with known truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k25stack.bench.protocol import Protocol
from k25stack.errors import UsageError
from k25stack.speculation import RoundCounts

from .conftest import sample, write_samples

Start = Callable[..., str]
PARAMS: dict[str, Any] = {"profile": "own", "engine": "reference", "concurrency": [1, 2], "k": 3, "warmup": 1}


def run(
    tmp_path: Path, url: str | None, params: dict[str, Any], docs: int = 12, **inputs: Path
) -> subprocess.CompletedProcess[str]:
    """The step program in ``tmp_path``; its outputs are under ``step/out``."""
    tmp_path.mkdir(exist_ok=True)
    samples = write_samples(tmp_path / "samples.jsonl", [sample(f"d{i:02}") for i in range(docs)])
    places = {"samples": str(samples), **{name: str(path) for name, path in inputs.items()}}
    spec = {"params": params, "inputs": places, "out": str(tmp_path / "step" / "out")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    env = {name: value for name, value in os.environ.items() if name != "K25_BENCH_URL"}
    return subprocess.run(
        [sys.executable, "-m", "k25stack.bench.main", str(tmp_path / "spec.json")],
        capture_output=True,
        text=True,
        env={**env, **({"K25_BENCH_URL": url} if url else {})},
    )


def test_rows_hold_raw_counters_and_figures(tmp_path: Path, fake_engine: Start) -> None:
    url = fake_engine("--step-ms", "15", "--ttft-ms", "5", "--accepted", "1,0,2")
    done = run(tmp_path, url, {**PARAMS, "requests_per_slot": 3, "repeats": 2})
    assert done.returncode == 0, done.stderr
    out = tmp_path / "step" / "out"
    rows = json.loads((out / "rows.json").read_text())["rows"]
    assert [row["concurrency"] for row in rows] == [1, 2]
    for row in rows:
        counts = RoundCounts.from_dict(row["rounds"])
        assert counts.accept_length() == row["accept_length"]["value"] == 2.0
        assert counts.verify_calls == row["accept_length"]["rounds"] == 9 * row["requests"]
        assert row["verify_rule"] == "greedy"
        assert row["decode"] == {"kind": "greedy", "temperature": 0.0, "max_new_tokens": 20}
        assert row["max_tokens"] == 20
        assert row["accepted"], row["reasons"]
        assert row["unstable_outputs"] == 0
        assert len(row["throughput_tok_s"]["values"]) == 2
        assert row["throughput_tok_s"]["interval"] is not None
        assert sum(doc["requests"] for doc in row["documents"]) == row["requests"]
        total = sum((RoundCounts.from_dict(doc["rounds"]) for doc in row["documents"]), RoundCounts(0, 0, 0))
        assert total == counts
        assert row["step"]["tokens_per_round"] == pytest.approx(19 / 10)
    assert rows[0]["single_stream_tok_s"]["median"] == pytest.approx(19 / 10 / 0.015, rel=0.3)
    assert rows[1]["single_stream_tok_s"] is None
    result = json.loads((out / "result.json").read_text())
    assert result["rounds"] == sum(row["rounds"]["verify_calls"] for row in rows)


def test_outputs_and_raw_requests_are_kept(tmp_path: Path, fake_engine: Start) -> None:
    done = run(tmp_path, fake_engine(), {**PARAMS, "concurrency": [2], "requests_per_slot": 3})
    assert done.returncode == 0, done.stderr
    out = tmp_path / "step" / "out" / "c2"
    outputs = [json.loads(line) for line in (out / "outputs.jsonl").read_text().splitlines()]
    assert len(outputs) == 6
    assert all(output["token_ids"] == list(range(3, 23)) for output in outputs)
    requests = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert len(requests) == 6
    assert sum(tokens for _, tokens in requests[0]["events"]) == requests[0]["completion_tokens"] == 20


def test_a_draft_is_held_against_baseline_and_walk(tmp_path: Path, fake_engine: Start) -> None:
    """Rounds take twice a plain step and are worth two tokens: break-even, speed-up 1; served as the walk says."""
    params = {**PARAMS, "concurrency": [2], "requests_per_slot": 6}
    plain = {**params, "k": None, "profile": "base", "role": "baseline"}
    assert run(tmp_path / "base", fake_engine("--step-ms", "10"), plain).returncode == 0
    walk = {"turn": 0, "domain": "test", "histogram": [3, 3, 3, 0], "cut": 1}
    (tmp_path / "walk.jsonl").write_text("".join(json.dumps({"doc_id": f"d{i:02}", **walk}) + "\n" for i in range(12)))
    url = fake_engine("--step-ms", "20", "--accepted", "1,0,2")
    inputs = {"baseline": tmp_path / "base" / "step" / "out", "walk": tmp_path / "walk.jsonl"}
    done = run(tmp_path / "own", url, {**params, "role": "draft"}, **inputs)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "own" / "step" / "out" / "rows.json").read_text())["rows"][0]
    assert row["cost"]["verdict"] == "fine"
    assert row["cost"]["r"] == pytest.approx(2.0, rel=0.15)
    assert row["cost"]["speedup"] == pytest.approx(1.0, rel=0.15)
    assert row["overall"]["gap"] == {"ratio": 1.0, "verdict": "not enough rounds"}
    assert row["overall"]["predicted"]["value"] == 2.0


def test_a_finished_concurrency_is_not_measured_again(tmp_path: Path, fake_engine: Start) -> None:
    """A kill between two concurrencies loses only the second."""
    url = fake_engine()
    params = {**PARAMS, "requests_per_slot": 2}
    assert run(tmp_path, url, {**params, "concurrency": [1]}).returncode == 0
    first = (tmp_path / "step" / "out" / "c1" / "row.json").stat().st_mtime_ns
    assert run(tmp_path, url, params).returncode == 0
    assert (tmp_path / "step" / "out" / "c1" / "row.json").stat().st_mtime_ns == first
    assert (tmp_path / "step" / "out" / "c2" / "row.json").exists()


def test_too_few_rounds_go_on_through_unsent_prompts(tmp_path: Path, fake_engine: Start) -> None:
    """Nine rounds a request: 60 of them need seven prompts, though two requests were asked for."""
    params = {**PARAMS, "concurrency": [1], "requests_per_slot": 2, "min_rounds": 60}
    done = run(tmp_path, fake_engine("--accepted", "1,0,2"), params)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "step" / "out" / "rows.json").read_text())["rows"][0]
    assert row["requests"] == 7
    done = run(tmp_path / "few", fake_engine("--accepted", "1,0,2"), {**params, "min_rounds": 10_000}, docs=5)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "few" / "step" / "out" / "rows.json").read_text())["rows"][0]
    assert row["requests"] == 5


def test_without_speculation_there_is_no_accept_length(tmp_path: Path, fake_engine: Start) -> None:
    params = {**PARAMS, "profile": "plain", "k": None, "concurrency": [1], "requests_per_slot": 2}
    assert run(tmp_path, fake_engine("--step-ms", "2"), params).returncode == 0
    row = json.loads((tmp_path / "step" / "out" / "rows.json").read_text())["rows"][0]
    assert (row["accept_length"], row["rounds"], row["verify_rule"], row["documents"]) == (None, None, None, [])
    assert row["step"]["tokens_per_round"] == 1.0


def test_faults_leave_a_rejected_row(tmp_path: Path, fake_engine: Start) -> None:
    params = {**PARAMS, "concurrency": [2], "requests_per_slot": 5}
    done = run(tmp_path, fake_engine("--fault", "truncate", "--fault-every", "4"), params)
    assert done.returncode == 0
    assert "REJECTED" in done.stderr
    row = json.loads((tmp_path / "step" / "out" / "rows.json").read_text())["rows"][0]
    assert not row["accepted"]
    assert "the stream ended early" in row["reasons"][0]


@pytest.mark.parametrize(
    ("options", "params", "code", "says"),
    [
        (("--fault", "error"), {}, 3, "every request failed: HTTP 500"),
        (None, {}, 2, "K25_BENCH_URL is not set"),
        ("gone", {}, 3, "no answer"),
        ((), {"concurency": [1]}, 2, "did you mean concurrency?"),
        ((), {"concurrency": [0]}, 2, "concurrency is 0"),
        ((), {"engine": "llama.cpp"}, 2, "no engine 'llama.cpp'"),
        ((), {"prompts": {"split": "validation"}}, 2, "no greedy validation row"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, fake_engine: Start, options: Any, params: dict[str, Any], code: int, says: str
) -> None:
    url = None if options is None else "http://127.0.0.1:9" if options == "gone" else fake_engine(*options)
    done = run(tmp_path, url, {**PARAMS, **params})
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "step" / "out" / "rows.json").exists()


def test_defaults_come_from_the_protocol() -> None:
    protocol = Protocol.parse({"profile": "p", "engine": "sglang", "prompts": {"take": 3, "domains": ["a"]}})
    assert (protocol.repeats, protocol.prompts.take, protocol.prompts.domains) == (1, 3, ("a",))
    with pytest.raises(UsageError, match="parameters do not fit"):
        Protocol.parse({"engine": "sglang"})
