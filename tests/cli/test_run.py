"""``k25stack run`` from its first word to its last line, on a loop of small real programs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k25stack.cli.main import main
from k25stack.pipeline.runner import Request
from k25stack.report.gating import Gate

PROGRAMS = Path(__file__).resolve().parents[1] / "pipeline" / "programs"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which every stack file means the small loop."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K25_STATE_DIR", str(tmp_path / "lease"))
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    monkeypatch.setattr(sys, "path", [str(PROGRAMS), *sys.path])
    import k25t_loop

    from k25stack.pipeline import loop

    for room in ("alpha", "beta", "gamma"):
        (tmp_path / "code" / room).mkdir(parents=True)
        (tmp_path / "code" / room / "room.py").touch()

    def request_for(path: Path, **options: Any) -> Request:
        asked = k25t_loop.request(str(tmp_path / "code"), **options)
        steps = [replace(step, facts=()) for step in asked.steps]  # its rows are no rows of the real benchmark
        return replace(asked, steps=steps)

    monkeypatch.setattr(loop, "request_for", request_for)
    return tmp_path


def test_a_run_prints_table_paths_and_one_next_line(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "small.yaml"]) == 0
    said = capsys.readouterr()
    for name in ("status.md", "report.html", "summary.json"):
        assert f"runs/small-1/{name}\n" in said.out
        assert (small / "runs" / "small-1" / name).exists()
    assert [line for line in said.err.splitlines() if line.startswith("Next: ")] == said.err.splitlines()[-1:]
    assert "numbers: done in" in said.err

    assert main(["run", "small.yaml", "--json"]) == 0  # stdout is data
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert summary == json.loads((small / "runs" / "small-1" / "summary.json").read_text())
    assert set(summary) >= {"accept_length", "lossless", "speedup", "break_even", "coverage", "tok_s", "train",
                            "extract", "seconds", "peak_rss_gb", "versions"}  # fmt: skip
    assert set(summary["seconds"]) == {"setup", "total", "after", "bench"}
    assert "nothing to do" in said.err

    assert main(["run", "small.yaml", "-n", "--json", "--again", "total,bench"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(step["step"], step["state"]) for step in plan["steps"]] == [
        ("numbers", "cached"), ("total", "run"), ("after", "waits"), ("bench", "waits")]  # fmt: skip
    assert plan["steps"][1]["reason"] == "asked for: --again"

    assert main(["logs", "small-1", "numbers"]) == 0
    assert "part 3" in capsys.readouterr().out
    assert main(["stop", "run", "small-1"]) == 0
    assert "nothing runs" in capsys.readouterr().err
    assert main(["run", "--gc"]) == 0
    assert "0 results" in capsys.readouterr().err


def test_a_gate_that_does_not_hold_exits_with_one(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k25stack.report.gates", lambda run: [Gate("min_coverage", 0.9, 0.85, False)])
    assert main(["run", "small.yaml"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "gate min_coverage: 0.85, the stack's limit is 0.9" and lines[-1].startswith("Next: ")
    monkeypatch.setattr("k25stack.report.gates", lambda run: [Gate("min_coverage", 0.9, None, None)])
    assert main(["run", "small.yaml"]) == 0


def test_wrong_names_are_usage(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "small.yaml", "--only", "nothing"]) == 2
    assert "no step 'nothing' (there are numbers, total, after, bench)" in capsys.readouterr().err
    assert main(["run", "small.yaml", "--name", "a/b"]) == 2
    assert "cannot name a run" in capsys.readouterr().err
    assert not (small / "runs").exists()
