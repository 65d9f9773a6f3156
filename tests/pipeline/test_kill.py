"""Whoever is killed, whenever: the next run ends with the same result and does no finished part twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from k25stack.errors import K25Error
from k25stack.locks import holder
from k25stack.pipeline.lease import lease_holder
from k25stack.proc import start_time

from .conftest import Loop, until


def contents(loop: Loop, **options: object) -> dict[str, str]:
    outcome = loop.run(**options)
    return {name: kept.content for name, kept in outcome.results.items() if name != "bench"}


@pytest.fixture
def expected(finished: dict[str, Any]) -> dict[str, str]:
    """What an undisturbed run gives (the content of a measurement is none)."""
    return {name: content for name, content in finished["contents"].items() if name != "bench"}


def test_a_killed_command_leaves_its_step_which_the_next_run_takes_over(
    loop: Loop, expected: dict[str, str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = loop.command(gate=str(gate))
    until(lambda: len(list(loop.workspace.work.glob("*/out/parts/*.json"))) == 2)
    command.kill()
    command.wait()
    program = loop.program("numbers")
    assert program is not None and start_time(program) is not None
    assert lease_holder() is not None  # the step holds the lease on
    second = loop.command(gate=str(gate))
    until(lambda: holder(loop.workspace.run("small-1").lock) is not None)
    gate.touch()
    assert second.wait() == 0
    ends = [record.data for record in loop.records() if record.kind == "step.end"]
    assert ends[0]["result"]["written_parts"] == 4  # one try made all parts: it was not started twice
    assert loop.made(loop.run()) == []
    assert contents(loop) == expected
    assert lease_holder() is None


def test_a_step_that_ended_while_nobody_watched_is_collected(
    loop: Loop, expected: dict[str, str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = loop.command(gate=str(gate))
    until(lambda: len(list(loop.workspace.work.glob("*/out/parts/*.json"))) == 2)
    command.kill()
    command.wait()
    gate.touch()
    until(lambda: loop.keeper("numbers") is None)
    assert contents(loop) == expected
    assert "numbers: done" in loop.said
    log = next(record for record in loop.records() if record.kind == "step.end").data
    assert log["result"]["written_parts"] == 4


@pytest.mark.parametrize("victim", ["program", "keeper"])
def test_a_killed_step_is_named_and_goes_on_at_the_next_run(
    loop: Loop, expected: dict[str, str], tmp_path: Path, victim: str
) -> None:
    command = loop.command(gate=str(tmp_path / "never"))
    until(lambda: len(list(loop.workspace.work.glob("*/out/parts/*.json"))) == 2)
    pid = loop.program("numbers") if victim == "program" else loop.keeper("numbers")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _, said = command.communicate()
    assert command.returncode == 1
    error = [line for line in said.splitlines() if line.startswith("error: ")]
    reason = "it was killed (signal 9; out of memory?)" if victim == "program" else "its keeper was killed"
    assert error == [f"error: numbers: {reason} (run again: finished parts are kept)"]
    assert loop.plan()["numbers"].reason == "goes on: an earlier try did not end"
    assert contents(loop) == expected
    end = next(record for record in loop.records() if record.kind == "step.end")
    assert end.data["result"]["written_parts"] == 2


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments(loop: Loop, expected: dict[str, str], seed: int) -> None:
    """Command, keeper or program, three times each run at moments drawn from the length of a run."""
    dice = random.Random(seed)
    for _ in range(3):
        command = loop.command(pause_s=0.03)
        time.sleep(dice.uniform(0.05, 1.2))
        victims = {"command": command.pid}
        for step in ("numbers", "total", "after", "bench", "bench.server"):
            victims |= {f"{step} keeper": loop.keeper(step), f"{step} program": loop.program(step)}
        alive = {name: pid for name, pid in victims.items() if pid is not None and start_time(pid) is not None}
        if alive:
            os.kill(alive[dice.choice(sorted(alive))], signal.SIGKILL)
        if dice.random() < 0.5:
            command.kill()
        command.communicate()
    assert contents(loop, pause_s=0.0) == expected
    assert not any(loop.workspace.work.iterdir())
    assert loop.made(loop.run()) == []
    until(lambda: not any(loop.keeper(step) for step in ("numbers", "total", "after", "bench", "bench.server")))


def test_a_killed_measurement_is_taken_over_with_its_server(loop: Loop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = loop.command(bench_gate=str(gate))
    until(lambda: loop.program("bench") is not None)
    server = loop.program("bench.server")
    command.kill()
    command.wait()
    second = loop.command(bench_gate=str(gate))
    until(lambda: holder(loop.workspace.run("small-1").lock) is not None)
    assert loop.program("bench.server") == server
    gate.touch()
    assert second.wait() == 0
    assert server is not None
    until(lambda: start_time(server) is None)
    assert loop.made(loop.run()) == []


def test_a_server_left_behind_by_an_ended_measurement_is_ended_first(loop: Loop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = loop.command(bench_gate=str(gate))
    until(lambda: loop.program("bench") is not None)
    command.kill()
    command.wait()
    server = loop.program("bench.server")
    gate.touch()
    until(lambda: loop.keeper("bench") is None)
    assert server is not None and start_time(server) is not None  # it waits a while for somebody to come back
    assert loop.made(loop.run()) == ["bench"]  # collected
    assert start_time(server) is None


def test_a_measurement_whose_server_died_unwatched_begins_anew(loop: Loop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = loop.command(bench_gate=str(gate))
    until(lambda: loop.program("bench") is not None)
    command.kill()
    command.wait()
    server = loop.program("bench.server")
    assert server is not None
    os.kill(server, signal.SIGKILL)
    until(lambda: loop.keeper("bench.server") is None)
    gate.touch()
    outcome = loop.run(bench_gate=str(gate))
    assert loop.made(outcome) == ["bench"]
    assert outcome.results["bench"].result()["requests"] == 3


def test_a_server_that_does_not_start_is_named_and_nothing_is_left(loop: Loop) -> None:
    with pytest.raises(K25Error) as caught:
        loop.run(server=["--die", "no weights there"])
    assert str(caught.value).startswith("bench (server small): no weights there (log: ")
    assert loop.keeper("bench.server") is None
    assert loop.made(loop.run()) == ["bench"]


def test_a_server_that_never_answers_is_given_up_and_stopped(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    from k25stack.pipeline import service

    loop.run(only=["after"])
    monkeypatch.setattr(service, "answers", lambda url: False)
    runner = loop.runner(server=["--slow", "0.1"])
    bench = runner.steps[-1]
    assert bench.service is not None
    object.__setattr__(bench.service, "ready_s", 0.5)
    with pytest.raises(K25Error, match=r"server small did not answer /health in 0 s|in 1 s"):
        runner.run()
    assert loop.keeper("bench.server") is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_step_and_says_so_in_one_line(
    loop: Loop, expected: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    command = loop.command(gate=str(tmp_path / "never"))
    until(lambda: len(list(loop.workspace.work.glob("*/out/parts/*.json"))) == 2)
    command.send_signal(number)
    _, said = command.communicate()
    assert command.returncode == 130
    assert said.splitlines()[-1] == "error: run small-1 was interrupted (finished parts are kept, run again to go on)"
    assert "Traceback" not in said
    assert loop.keeper("numbers") is None
    assert loop.records()[-1].data["code"] == 130
    assert contents(loop) == expected


def test_an_interrupted_measurement_leaves_no_server(loop: Loop, tmp_path: Path) -> None:
    command = loop.command(bench_gate=str(tmp_path / "never"))
    until(lambda: loop.program("bench") is not None)
    command.send_signal(signal.SIGINT)
    command.communicate()
    assert command.returncode == 130
    assert loop.keeper("bench.server") is None and loop.keeper("bench") is None


def test_a_lost_terminal_does_not_end_the_run(loop: Loop, expected: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = loop.command(gate=str(gate))
    until(lambda: len(list(loop.workspace.work.glob("*/out/parts/*.json"))) == 2)
    assert command.stderr is not None and command.stdout is not None
    command.stderr.close()  # whoever read it is gone
    command.send_signal(signal.SIGHUP)
    gate.touch()
    command.wait()
    until(lambda: loop.records()[-1].kind == "run.end")
    assert loop.records()[-1].data["code"] == 0
    assert contents(loop) == expected


def test_a_second_command_on_the_same_run_is_refused_with_the_holders_name(loop: Loop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = loop.command(gate=str(gate))
    until(lambda: loop.program("numbers") is not None)
    second = loop.command()
    _, said = second.communicate()
    assert second.returncode == 3
    assert said.startswith(
        f"error: {loop.workspace.run('small-1').directory}: run small-1 is in use by pid {first.pid} of "
    )
    assert len(said.splitlines()) == 1
    gate.touch()
    assert first.wait() == 0


def test_another_run_is_refused_while_a_run_computes_but_may_reuse_what_is_there(done: Loop, tmp_path: Path) -> None:
    loop, gate = done, tmp_path / "gate"
    first = loop.command(name="one", factor=3, gate=str(gate))
    until(lambda: loop.program("numbers", "one") is not None)
    assert loop.run(name="two").run.name == "two"  # everything cached: no lease needed
    with pytest.raises(K25Error) as caught:
        loop.run(name="two", factor=5)
    assert caught.value.exit_code == 3
    assert f"run one holds the lease of this host's processors (no cards): pid {first.pid} of " in str(caught.value)
    first.kill()
    first.wait()
    with pytest.raises(K25Error, match="run one holds the lease"):
        loop.run(name="two", factor=5)  # the step that it left still computes
    gate.touch()
    until(lambda: loop.keeper("numbers", "one") is None)
    loop.run(name="two", factor=5, only=["numbers"])


def test_a_run_left_by_a_killed_command_is_stopped_by_stop(loop: Loop, tmp_path: Path) -> None:
    from k25stack.pipeline.stop import stop_run, what_runs

    run = loop.workspace.run("small-1")
    command = loop.command(gate=str(tmp_path / "never"))
    until(lambda: loop.program("numbers") is not None)
    assert what_runs(run)[0].startswith(f"the command (pid {command.pid} of ")
    assert what_runs(run)[1:] == ["step numbers"]
    command.kill()
    command.wait()
    assert what_runs(run) == ["step numbers"]
    stop_run(run, 10.0)
    assert what_runs(run) == [] and lease_holder() is None


def test_stop_ends_a_command_and_its_step(loop: Loop, tmp_path: Path) -> None:
    from k25stack.pipeline.stop import stop_run, what_runs

    command = loop.command(gate=str(tmp_path / "never"))
    until(lambda: loop.program("numbers") is not None)
    reader = subprocess.Popen(["cat"], stdin=command.stderr, stdout=subprocess.DEVNULL)
    stop_run(loop.workspace.run("small-1"), 10.0)
    assert command.wait() == 130
    assert what_runs(loop.workspace.run("small-1")) == []
    reader.wait()


def test_a_changed_setting_stops_what_still_runs_for_the_old_one(loop: Loop, tmp_path: Path) -> None:
    command = loop.command(gate=str(tmp_path / "never"))
    until(lambda: loop.program("numbers") is not None)
    old = loop.program("numbers")
    command.kill()
    command.wait()
    outcome = loop.run(factor=2)
    assert old is not None and start_time(old) is None
    assert outcome.results["after"].tree.path("total.txt").read_text() == f"{2 * sum(range(40)) + 5}\n"
    assert json.loads((outcome.run.directory / "plan.json").read_text())["steps"]["numbers"] in str(
        outcome.results["numbers"].directory
    )
