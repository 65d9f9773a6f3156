"""What can go wrong with an engine, done to a real process: noticed in time, told apart, healed; and no false alarm."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from k25stack.watch.policy import Restart

from .conftest import Watched, until
from .soak import soak

Make = Callable[..., Watched]
T = 1.0


def at(event: dict[str, str]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def healed(one: Watched, kind: str) -> None:
    """One restart of that kind, and the engine answers whole again."""
    until(lambda: len(one.events("ready")) == 2)
    assert list(one.status()["restarts"]) == [kind]
    assert one.ask().rstrip().endswith(b"[DONE]")


def test_kill_9_of_the_engine_is_healed(watched: Make) -> None:
    one = watched().start().ready()
    os.kill(one.pid(), signal.SIGKILL)
    healed(one, "killed")


def test_sigterm_lets_running_requests_finish(watched: Make) -> None:
    one = watched().start("--step-ms", "50").ready()
    until(lambda: one.status()["look"])
    got: list[bytes] = []
    thread = one.ask_aside(tokens=30, into=got)
    until(lambda: (one.status()["look"] or {}).get("running"))
    one.signal(signal.SIGTERM)
    assert one.state("draining")["ready"] is False
    assert one.end() == 0
    thread.join(60)
    assert got[0].rstrip().endswith(b"[DONE]")


@pytest.mark.twins
def test_sigstop_is_noticed_within_three_heartbeats_and_healed(watched: Make) -> None:
    one = watched("vllm", beat=2 * T).start().ready()
    time.sleep(0.3)  # somewhere between two looks
    stopped = time.time()
    os.kill(one.pid(), signal.SIGSTOP)
    healed(one, "timeout")
    assert at(one.events("unhealthy")[0]) - stopped < 3 * 2 * T


@pytest.mark.twins
def test_a_stall_behind_good_health_is_noticed(watched: Make, tmp_path: Path) -> None:
    one = watched(beat=T).start("--mode", "stalled", "--once", str(tmp_path / "once")).ready()
    asked = time.time()
    one.ask_aside()
    healed(one, "stalled")
    assert at(one.events("unhealthy")[0]) - asked < 4 * T + 0.5  # three whole heartbeats after the look that saw it run


@pytest.mark.twins
@pytest.mark.parametrize(("mode", "kind"), [("exit-137", "killed"), ("crash", "error"), ("stop", "timeout")])
def test_an_engine_that_fails_once_is_healed(watched: Make, tmp_path: Path, mode: str, kind: str) -> None:
    one = watched(beat=T).start("--mode", mode, "--once", str(tmp_path / "once")).ready()
    one.ask_aside()
    healed(one, kind)


@pytest.mark.twins
def test_an_engine_that_loses_its_card_stays_down(watched: Make) -> None:
    one = watched(beat=T).start("--mode", "gpu-lost").ready()
    one.ask_aside()
    status = one.state("down")
    assert status["last"]["kind"] == "gpu_lost" and status["restarts"] == {}


@pytest.mark.twins
def test_an_engine_that_crashes_after_every_few_requests_is_given_up(watched: Make) -> None:
    one = watched(beat=T, restart=Restart(1, 0.05)).start("--mode", "crash", "--after", "2").ready()
    for life in (1, 2):
        until(lambda life=life: len(one.events("ready")) == life)  # type: ignore[misc]
        while one.ask():
            pass
    assert one.end() == 1


@pytest.mark.twins
def test_an_engine_that_is_never_ready_is_given_up(watched: Make) -> None:
    one = watched(beat=T, ready_s=2.0, restart=Restart(0)).start("--mode", "never-ready")
    assert one.end() == 1
    assert "not ready after 2 s, in phase warm" in one.log() and not one.events("ready")


@pytest.mark.twins
def test_an_engine_that_cuts_its_answers_is_not_ready(watched: Make) -> None:
    one = watched(beat=T, restart=Restart(0)).start("--mode", "truncated", "--after", "0")
    assert one.end() == 1
    assert "the warm request fails" in one.log() and not one.events("ready")


@pytest.mark.twins
def test_a_cut_answer_later_is_no_reason_to_restart(watched: Make) -> None:
    one = watched(beat=T).start("--mode", "truncated").ready()
    assert not one.ask().rstrip().endswith(b"[DONE]")
    counted = until(lambda: one.status()["look"])["tokens"]
    assert one.ask() and until(lambda: one.status()["look"]["tokens"] > counted)  # looked at again since
    assert one.status()["ready"] and one.status()["restarts"] == {}


@pytest.mark.twins
def test_a_long_prefill_is_no_false_alarm(watched: Make) -> None:
    """No token for 2.4 heartbeats, although a request runs: shorter than the rule, so nothing is restarted."""
    one = watched(beat=T).start("--mode", "slow-first-token", "--slow-s", str(2.4 * T)).ready()
    assert one.ask().rstrip().endswith(b"[DONE]")
    assert one.status()["restarts"] == {} and len(one.events("start")) == 1
    assert one.status()["misses"]["stalled"] > 0  # it was watched meanwhile


@pytest.mark.twins
def test_a_pause_of_engine_and_supervisor_is_no_fault(watched: Make) -> None:
    """As `docker pause` does it: both stand still for longer than the rule, in the middle of a request."""
    one = watched(beat=T).start("--step-ms", "100").ready()
    assert one.process is not None
    engine = one.pid()
    got: list[bytes] = []
    thread = one.ask_aside(tokens=30, into=got)
    until(lambda: (one.status()["look"] or {}).get("running"))
    for pid in (one.process.pid, engine):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4 * T)
    for pid in (one.process.pid, engine):  # the supervisor first: it sees an engine that does not answer yet
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2 * T)
    thread.join(60)
    assert got[0].rstrip().endswith(b"[DONE]") and one.status()["restarts"] == {}


@pytest.mark.twins
def test_a_drain_ends_with_the_grace(watched: Make) -> None:
    """A request that would run for ever is cut; an engine that does not end at SIGTERM is killed: 137."""
    one = watched(beat=T, grace_s=2.0).start("--step-ms", "100", "--deaf").ready()
    one.ask_aside(tokens=10_000)
    until(lambda: (one.status()["look"] or {}).get("running"))
    one.signal(signal.SIGTERM)
    begun = time.monotonic()
    assert one.end() == 137
    assert 1.5 < time.monotonic() - begun < 4.0


@pytest.mark.twins
def test_nothing_is_left_behind(watched: Make) -> None:
    """Orphans in their own session end with the engine, and ended ones are waited for."""
    one = watched(beat=T).start("--orphan").ready()
    assert one.process is not None
    [orphan] = [int(pid) for pid in re.findall(r"orphan (\d+)", one.log())]
    assert f"PPid:\t{one.process.pid}\n" in Path(f"/proc/{orphan}/status").read_text()  # adopted
    os.kill(orphan, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{orphan}").exists())  # not even a zombie
    os.kill(one.pid(), signal.SIGKILL)
    healed(one, "killed")
    second = int(re.findall(r"orphan (\d+)", one.log())[-1])
    one.signal(signal.SIGTERM)
    assert one.end() == 0
    assert not Path(f"/proc/{second}").exists()


@pytest.mark.twins
def test_half_a_minute_of_load_restarts_nothing(tmp_path: Path) -> None:
    found = soak(tmp_path, 30.0, beat=2.0)
    print(found)
    assert found["restarts"] == {} and found["cut"] == 0 and found["requests"] > 50
    assert found["peak_rss_mb"] < 40
    assert found["core_percent"] < 1.0  # 0.5 on a quiet machine; the figure is in docs/watch.md


@pytest.mark.nightly
@pytest.mark.timeout(4000)
def test_an_hour_of_load_restarts_nothing(tmp_path: Path) -> None:
    found = soak(tmp_path, 3600.0, beat=5.0)
    print(found)
    assert found["restarts"] == {} and found["cut"] == 0 and found["peak_rss_mb"] < 40
