"""Looking at runs changes nothing; garbage is what no plan names; progress is readable anywhere."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import tarfile
from pathlib import Path

import pytest

from k25stack.errors import LeaseError, UsageError
from k25stack.pipeline.bundle import LOG_BYTES, write_bundle
from k25stack.pipeline.find import find_log, find_run, follow_log
from k25stack.pipeline.gc import collect, garbage
from k25stack.pipeline.progress import Display, clock, describe
from k25stack.pipeline.status import overview, render

from .conftest import Loop, until


def test_status_of_a_finished_a_running_and_a_killed_run(done: Loop, tmp_path: Path) -> None:
    view = overview(done.workspace)
    (run,) = view["runs"]
    assert (run["run"], run["state"], [step["step"] for step in run["steps"]]) == (
        "small-1", "finished", ["numbers", "total", "after", "bench"])  # fmt: skip
    assert view["lease"] is None and view["disk"]["free_gb"] > 0
    assert json.loads(json.dumps(view)) == view

    command = done.command(factor=2, gate=str(tmp_path / "never"))
    until(lambda: done.program("numbers") is not None)
    until(lambda: "parts/s" in "".join(render(overview(done.workspace))))
    (run,) = overview(done.workspace)["runs"]
    assert run["state"] == "running" and run["holder"]["pid"] == command.pid
    lines = render(overview(done.workspace))
    assert lines[0].startswith(f"small-1: running (pid {command.pid} of ")
    assert lines[1].startswith("  numbers: numbers  50 %")
    assert lines[2].startswith("lease: run small-1, pid ")

    command.kill()
    command.wait()
    assert overview(done.workspace)["runs"][0]["state"] == "running without its command"
    os.kill(done.keeper("numbers") or 0, 9)
    until(lambda: done.keeper("numbers") is None)
    assert overview(done.workspace)["runs"][0]["state"] == "killed"


def test_status_of_a_failed_run_tells_the_error(loop: Loop) -> None:
    with pytest.raises(Exception, match="no room"):
        loop.run(fail="no room")
    lines = render(overview(loop.workspace))
    assert lines[0] == "small-1: failed, 0 steps there"
    assert "no room" in lines[1]


def test_the_disk_that_the_loop_uses(loop: Loop) -> None:
    for room, name in (("artefacts", "kept"), ("models", "weights"), ("twins", "an-engine")):
        (loop.workspace.state / room).mkdir(parents=True, exist_ok=True)
        (loop.workspace.state / room / name).write_bytes(b"x" * 2_000_000)
    os.link(loop.workspace.models / "weights", loop.workspace.artefacts / "the-same-file")
    assert overview(loop.workspace)["disk"]["used_gb"] == 0.004


def test_status_of_nothing(loop: Loop) -> None:
    assert render(overview(loop.workspace))[:2] == ["no runs here", "lease: free"]


def test_logs_are_found_by_what_people_type(done: Loop) -> None:
    run = find_run(done.workspace, None)
    assert run.name == "small-1"
    assert "part 3" in find_log(run, "numbers").read_text()
    assert find_log(run, "bench.server").name == "server.log"
    assert find_log(run, None).exists()
    with pytest.raises(UsageError, match="no step 'nothing'"):
        find_log(run, "nothing")
    with pytest.raises(UsageError, match="there are small-1"):
        find_run(done.workspace, "small-9")


def test_a_log_is_followed_to_its_end(loop: Loop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = loop.command(gate=str(gate), only=["numbers"])
    until(lambda: loop.program("numbers") is not None)
    run = loop.workspace.run("small-1")
    text = ""
    for piece in follow_log(run, find_log(run, None)):
        text += piece
        if "part 1" in text:
            gate.touch()
    assert text.rstrip().endswith("part 3")
    assert command.wait() == 0


def test_garbage_is_what_no_plan_names(done: Loop, tmp_path: Path) -> None:
    assert garbage(done.workspace) == []
    done.run(modulo=7)
    items = garbage(done.workspace)
    assert sorted(item.why for item in items) == ["no run's plan names it"] * 2  # total and after of before
    assert collect(items) == sum(item.bytes for item in items) > 0
    assert garbage(done.workspace) == []
    assert done.made(done.run(modulo=7)) == []


def test_unfinished_work_of_the_plan_is_no_garbage(loop: Loop, tmp_path: Path) -> None:
    command = loop.command(gate=str(tmp_path / "never"))
    until(lambda: len(list(loop.workspace.work.glob("*/out/parts/*.json"))) == 2)
    with pytest.raises(LeaseError, match="small-1 is in use"):
        garbage(loop.workspace)
    command.terminate()
    command.communicate()
    assert garbage(loop.workspace) == []


STATE = {"phase": "train", "done": 430.0, "total": 1000.0, "unit": "tok", "rate_per_s": 1234.0, "eta_s": 130.2}


def test_progress_in_words() -> None:
    assert describe(STATE) == "train  43 %  1,234 tok/s  ETA 2:10"
    assert describe(None) == "starting"
    assert describe({"phase": "load", "done": 0, "total": 0, "unit": "", "rate_per_s": 0.0, "eta_s": None}) == "load"
    assert [clock(seconds) for seconds in (5, 65, 3661)] == ["0:05", "1:05", "1:01:01"]


def test_plain_lines_come_at_most_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("k25stack.pipeline.progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    display = Display(stream)
    display.begin()
    for _ in range(60):
        display.show("train", STATE, now[0] - 100)
        now[0] += 0.5
    assert stream.getvalue().splitlines() == [
        "train: train  43 %  1,234 tok/s  ETA 2:10 [0:10]",
        "train: train  43 %  1,234 tok/s  ETA 2:10 [0:20]",
    ]


def test_a_terminal_gets_one_line_that_moves_and_its_loss_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")
    display = Display(stream)
    assert display.moving
    display.show("train", STATE, 3.0)
    display.show("train", STATE, 4.0)
    display.line("done")
    seen = ""
    while "\n" not in seen:
        seen += os.read(ours, 4096).decode()
    assert seen.count("\n") == 1 and seen.count("\r\x1b[K") == 3 and "[##########" in seen
    os.close(ours)
    for _ in range(3):
        assert display.show("train", STATE, 5.0).startswith("train")
        display.line("nobody reads this")
    assert not display.moving
    with contextlib.suppress(OSError):
        stream.close()


def test_a_bundle_holds_the_small_files_of_a_run_and_no_secret(done: Loop, tmp_path: Path) -> None:
    run = find_run(done.workspace, None)
    key = run.keys()["numbers"]
    log = run.step(key) / "log"
    log.write_text("x" * (LOG_BYTES + 5) + "\nHF_TOKEN=hf_abcdefgh\nAuthorization: Bearer abcdefghij\n12 tokens: 3\n")
    path = tmp_path / "b" / "run.tar.gz"
    names = write_bundle(done.workspace, run, path)
    assert {"about.json", "plan.json", "ledger/run.jsonl", f"steps/{key}/log", f"steps/{key}/spec.json"} <= set(names)
    with tarfile.open(path) as archive:
        assert archive.getnames() == [f"{run.name}/{name}" for name in names]
        shown = archive.extractfile(f"{run.name}/steps/{key}/log")
        assert shown is not None
        text = shown.read().decode()
    assert len(text) <= LOG_BYTES and text.endswith("HF_TOKEN=***\nAuthorization: Bearer ***\n12 tokens: 3\n")
    with pytest.raises(UsageError, match="exists already"):
        write_bundle(done.workspace, run, path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["run.tar.gz"]
