"""Engines compile when a request first needs a kernel: that is paid before ready, and compiling is no stall."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from k25stack.engines.supervise import SUPERVISED, policy
from k25stack.errors import UsageError
from k25stack.watch.compilers import compilers
from k25stack.watch.policy import Restart, Warm, from_json

from .conftest import Watched, until

Make = Callable[..., Watched]
T = 0.6
ALL = ("greedy", "sampled", "filtered")


@pytest.fixture
def nvcc(tmp_path: Path) -> str:
    """A program that waits, under a compiler's name."""
    path = tmp_path / "nvcc"
    path.symlink_to(str(shutil.which("sleep")))
    return str(path)


@pytest.mark.parametrize("engine", sorted(SUPERVISED))
def test_greedy_comes_first_and_sampling_with_and_without_a_filter_follows(engine: str) -> None:
    greedy, sampled, filtered = policy(engine, "m", 30000).warm
    assert (greedy.name, sampled.name, filtered.name) == ALL
    assert greedy.body["temperature"] == 0.0 < sampled.body["temperature"]
    assert "top_p" not in sampled.body and filtered.body["top_p"] < 1.0
    assert sampled.phase == "warm sampled"


def test_policies_of_old_have_one_request_without_a_name() -> None:
    one = {"url": "http://h:1/x", "body": {"max_tokens": 1}}
    assert from_json({"warm": one}).warm == (Warm("http://h:1/x", {"max_tokens": 1}),)
    assert from_json({"warm": one}).warm[0].phase == "warm"
    assert from_json({"warm": None}).warm == from_json({"warm": []}).warm == ()
    again = from_json(json.loads(json.dumps(from_json({"warm": one}).as_dict())))
    assert again.warm == from_json({"warm": one}).warm
    with pytest.raises(UsageError, match="warm: two requests have one name"):
        from_json({"warm": [one, one]})
    with pytest.raises(UsageError, match="warm: 1: keys url, body are needed"):
        from_json({"warm": [one, {"name": "b"}]})


def test_a_slow_first_sampled_request_is_paid_before_ready(watched: Make) -> None:
    """Six heartbeats without a token: named as a phase, no miss, no restart; the user's first one is fast."""
    one = watched(warm=ALL, restart=Restart(0)).start("--mode", "slow-sampled", "--slow-s", str(6 * T))
    until(lambda: "warm sampled request, 2 of 3" in one.answer("/ready")[1])
    status, text = one.answer("/ready")
    assert status == 503 and text.startswith(f"starting: pid {one.pid()}, warm sampled request, 2 of 3, for ")
    assert one.status()["load"]["phase"] == "warm sampled"
    one.ready()
    [ready] = one.events("ready")
    assert list(one.status()["load"]["seconds"])[-3:] == ["warm greedy", "warm sampled", "warm filtered"]
    assert ready["phases"]["warm sampled"] > 5 * T > ready["phases"]["warm filtered"]
    assert one.ask(temperature=0.8).rstrip().endswith(b"[DONE]")
    assert one.status()["restarts"] == {} and one.status()["misses"].get("stalled") is None
    assert 'k25watch_load_seconds{phase="warm sampled"}' in one.answer("/metrics")[1]


def test_a_kind_that_the_engine_declines_is_passed_over(watched: Make) -> None:
    one = watched(warm=ALL, restart=Restart(0)).start("--mode", "no-sampling", "--after", "0").ready()
    assert [event["phase"] for event in one.events("declined")] == ["warm sampled", "warm filtered"]
    assert "passed over: warm sampled request answered 400" in one.log()


@pytest.mark.twins
def test_a_compiler_at_work_below_the_engine_is_no_stall(watched: Make, nvcc: str) -> None:
    """A user's request that nothing has warmed."""
    one = watched(warm=ALL[:1], restart=Restart(0))
    one.start("--mode", "slow-sampled", "--slow-s", str(8 * T), "--compiler", nvcc).ready()
    assert one.ask(temperature=0.8).rstrip().endswith(b"[DONE]")
    assert one.status()["ready"] and one.status()["restarts"] == {}
    assert one.status()["misses"].get("stalled", 0) < 3  # on a busy machine one before the compiler, one after it
    assert {event["compilers"] for event in one.events("compiling")} == {"nvcc"}


@pytest.mark.twins
def test_without_a_compiler_or_after_its_time_it_is_one(watched: Make, nvcc: str) -> None:
    for options, changes in (([], {}), (["--compiler", nvcc], {"compile_s": 0.0})):
        one = watched(warm=ALL[:1], restart=Restart(0), **changes)
        one.start("--mode", "slow-sampled", "--slow-s", "60", *options).ready()
        one.ask_aside(temperature=0.8)
        assert one.end() == 1
        assert [event["kind"] for event in one.events("unhealthy")] == ["stalled"]


def test_compilers_are_found_below_a_process_alone(nvcc: str) -> None:
    code = f"import subprocess; subprocess.run([{nvcc!r}, '60'])"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    other = subprocess.Popen([str(shutil.which("sleep")), "60"])
    try:
        assert until(lambda: compilers(child.pid)) == ("nvcc",)
        assert "nvcc" in compilers(os.getpid()) and compilers(other.pid) == ()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        other.kill()
        for process in (child, other):
            process.wait()
