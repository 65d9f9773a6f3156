"""The verb ``report``, mounted as the command line mounts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from k25stack import ledger
from k25stack.cli.report import app as report_app
from k25stack.errors import UsageError

app = typer.Typer()
app.add_typer(report_app, name="report")


@app.command()
def other() -> None:
    """A second verb, so that the first word is a verb."""


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *words])
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_report_by_name_or_directory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent.parent)
    assert call("demo-1", "--check")[0] == 1
    code, text = call("demo-1")
    assert code == 0
    assert text.startswith("profile")
    assert call(str(run), "--check") == (0, "")
    assert json.loads(call("demo-1", "--json")[1])["break_even"] == 1.5


def test_check_names_the_command_that_mends_it(run: Path) -> None:
    text = call(str(run), "--check")[1]
    assert f"status.md: does not match the ledger (k25stack report {run})" in text
    assert not (run / "status.md").exists()


def test_note(run: Path) -> None:
    before = len(ledger.read(run / "ledger"))
    assert call("note", str(run), "Only one seed", "--kind", "assumption", "-n")[1] == "assumption: Only one seed\n"
    assert len(ledger.read(run / "ledger")) == before
    assert call("note", str(run), "Only one seed", "--kind", "assumption")[0] == 0
    assert ledger.read(run / "ledger")[-1].data["text"] == "Only one seed"


def test_an_unknown_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no such run") as caught:
        call("nothing")
    assert caught.value.where == "nothing"
