"""The verb ``bench``, mounted as the command line mounts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from k25stack.bench.ondemand import detect, protocol_for
from k25stack.cli.bench import app as bench_app
from k25stack.errors import HostError, UsageError

from .conftest import sample, write_samples

Start = Callable[..., str]
app = typer.Typer()
app.add_typer(bench_app, name="bench")


@app.command()
def other() -> None:
    """A second verb, so that the first word is a verb."""


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *words])
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_quick_look_at_a_server(fake_engine: Start) -> None:
    url = fake_engine("--step-ms", "15", "--accepted", "2,0")
    code, text = call(url, "--quick", "--max-tokens", "20", "-c", "1", "--json")
    row = json.loads(text)["rows"][0]
    assert (code, row["k"], row["verify_rule"]) == (0, 3, "greedy")
    assert row["prompts"]["split"] == "questions"
    assert row["accept_length"]["value"] == pytest.approx(2.0, abs=0.2)


def test_recorded_rows_are_replayed_and_kept(tmp_path: Path, fake_engine: Start) -> None:
    samples = write_samples(tmp_path / "samples.jsonl", [sample(f"d{i}") for i in range(5)])
    url = fake_engine("--step-ms", "15")
    out = tmp_path / "out"
    code, text = call("--quick", url, "--samples", str(samples), "-c", "2", "-o", str(out))
    assert code == 0
    assert "throughput" in text
    assert json.loads((out / "rows.json").read_text())["rows"][0]["max_tokens"] == 20
    assert (out / "c2" / "outputs.jsonl").exists()
    code, text = call("compare", str(out), str(out))
    assert code == 0
    assert "no difference" in text or "one repeat" in text


def test_unequal_measurements_exit_with_one(tmp_path: Path, fake_engine: Start) -> None:
    url = fake_engine()
    for name, tokens in (("a", "10"), ("b", "12")):
        call(url, "--quick", "-c", "1", "--max-tokens", tokens, "-o", str(tmp_path / name))
    code, text = call("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 1
    assert "not comparable: max_tokens: 10 and 12" in text


def test_a_rejected_row_exits_with_one(fake_engine: Start) -> None:
    code, text = call(fake_engine("--fault", "wrong-usage"), "--quick", "-c", "1")
    assert code == 1
    assert "REJECTED" in text


def test_engines_are_told_by_their_metrics(fake_engine: Start) -> None:
    assert detect(fake_engine()) == "reference"
    with pytest.raises(HostError, match="no answer"):
        detect("http://127.0.0.1:9")


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(UsageError, match="is no URL"):
        call("own-profile")


def test_given_options_go_before_the_defaults() -> None:
    full = protocol_for("vllm", False, (), None, None, samples=True)
    assert (full.concurrency, full.repeats, full.min_seconds, full.max_tokens) == ((1, 8, 32), 3, 60.0, None)
    quick = protocol_for("vllm", True, (2,), 5, None, samples=False)
    assert (quick.concurrency, quick.repeats, quick.max_tokens) == ((2,), 5, 64)


def test_the_verb_imports_nothing_heavy() -> None:
    code = (
        "import sys, k25stack.cli.bench, k25stack.cli.report;"
        "heavy = {'torch', 'numpy', 'pydantic', 'aiohttp', 'yaml'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
