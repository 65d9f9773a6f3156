"""The supervisor as a process: what it starts, when it is ready, how it ends.  (Faults in `test_faults`.)"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from k25stack.engines.prometheus import Metrics
from k25stack.locks import NamedLock, holder, me
from k25stack.watch.policy import Holder, Restart

from .conftest import Watched, until

Make = Callable[..., Watched]
ROOT = Path(__file__).resolve().parents[2]


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_ready_only_after_the_warm_request(watched: Make) -> None:
    one = watched().start("--ttft-ms", "1500")
    healthy = until(lambda: "warm" in one.status()["load"]["seconds"] if one.answer("/status")[0] else False)
    assert healthy
    until(lambda: "request" in one.answer("/ready")[1])  # said a moment after the phase has begun
    status, text = one.answer("/ready")
    assert status == 503 and re.fullmatch(rf"starting: pid {one.pid()}, warm request, 1 of 1, for \d+ s\n", text)
    one.ready()
    [ready] = one.events("ready")
    assert list(one.status()["load"]["seconds"]) == ["start", "read", "memory", "graphs", "warm"]
    assert ready["phases"]["warm"] > 1.0 and sum(ready["phases"].values()) == pytest.approx(ready["seconds"], abs=0.01)
    series = one.answer("/metrics")[1]
    assert "k25watch_ready 1\n" in series and 'k25watch_restarts_total{cause="stalled"} 0\n' in series
    assert Metrics(series, "supervisor").total("k25watch_misses_total") == 0
    assert one.answer("/other")[0] == 404
    assert "Load weight begin" in one.log()  # the engine's log is passed through

    probe = [sys.executable, "-m", "k25stack.watch.main", "--probe", one.own + "/ready"]
    assert subprocess.run(probe, capture_output=True, check=False).returncode == 0
    one.signal(signal.SIGUSR1)
    until(lambda: "got SIGUSR1" in one.log())
    one.signal(signal.SIGTERM)
    assert one.end() == 0
    assert [event["code"] for event in one.events("exit")] == [0]
    assert one.events("end")[0]["code"] == 0
    assert subprocess.run(probe, capture_output=True, check=False).returncode == 3


def test_a_crash_is_started_again_at_most_so_often(watched: Make) -> None:
    one = watched().start(argv=shell("echo broken; exit 7"))
    assert one.end() == 1
    assert len(one.events("start")) == 3 and one.log().count("broken\n") == 3
    assert {event["kind"] for event in one.events("exit")} == {"error"}
    waits = [event["wait_s"] for event in one.events("restart")]
    assert waits == [0.05, 0.1]  # doubled
    assert "given up after 2 restarts" in one.log()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("kill -9 $$", "killed"),
        ("exit 137", "killed"),
        ("kill -SEGV $$", "signal"),
        ("exit 0", "ended"),
        ("echo '[Errno 98] address already in use' >&2; exit 1", "port_taken"),
        ("echo 'torch.OutOfMemoryError: CUDA out of memory.'; exit 1", "gpu_oom"),
    ],
)
def test_causes_of_an_end(watched: Make, script: str, kind: str) -> None:
    one = watched(restart=Restart(0)).start(argv=shell(script))
    assert one.end() == 1
    assert [event["kind"] for event in one.events("exit")] == [kind]


def test_a_lost_card_stays_down_and_says_so(watched: Make, tmp_path: Path) -> None:
    lease = tmp_path / "lease" / "gpu.lease"
    one = watched(lease=lease).start(argv=shell("echo 'GPU0000:41:00.0: GPU is lost.'; exit 1"))
    status = one.state("down")
    assert status["last"]["kind"] == "gpu_lost" and "power-cycle the host" in one.answer("/ready")[1]
    assert len(one.events("start")) == 1 and holder(lease) is None
    one.signal(signal.SIGTERM)
    assert one.end() == 1


def test_the_lease_is_held_and_refused(watched: Make, tmp_path: Path) -> None:
    lease = tmp_path / "lease" / "gpu.lease"
    first = watched(lease=lease, holder=Holder("serve k25", "serving", 8)).start(argv=shell("exec sleep 60"))
    record = until(lambda: holder(lease))
    assert (record["who"], record["purpose"], record["cards"]) == ("serve k25", "serving", 8)
    second = watched(lease=lease).start(argv=shell("echo started"))
    assert second.end() == 3
    assert "serve k25 holds the lease of this host's 8 cards" in second.log() and "started\n" not in second.log()
    first.signal(signal.SIGTERM)
    assert first.end() == 0 and holder(lease) is None


def test_a_port_in_use_is_told_before_the_engine_starts(watched: Make) -> None:
    one = watched(restart=Restart(0)).start()
    one.ready()
    other = watched(restart=Restart(0))
    raw = json.loads((other.root / "policy.json").read_text())
    mine = json.loads((one.root / "policy.json").read_text())
    (other.root / "policy.json").write_text(json.dumps(raw | {"health_url": mine["health_url"]}))
    other.start(argv=shell("echo started"))
    assert other.end() == 1
    assert "port taken" in other.log() and "started\n" not in other.log()
    (other.root / "policy.json").write_text(json.dumps(raw | {"ready": mine["ready"]}))
    other.start(argv=shell("echo started"))
    assert other.end() == 3
    assert "the ready port cannot be opened" in other.log() and "started\n" not in other.log()


def test_a_program_that_is_not_there(watched: Make) -> None:
    one = watched().start(argv=["/no/such/engine"])
    assert one.end() == 3
    assert "error: /no/such/engine: cannot be started: No such file or directory (is it installed?)" in one.log()
    assert "Traceback" not in one.log()


def test_a_history_that_cannot_be_written_does_not_stop_the_engine(watched: Make) -> None:
    one = watched(history=Path("/proc/watch.jsonl")).start().ready()
    assert one.log().count("no history from now on") == 1


def test_a_dead_supervisor_takes_its_engine_along(watched: Make, tmp_path: Path) -> None:
    lease = tmp_path / "gpu.lease"
    one = watched(lease=lease).start(argv=shell("exec sleep 600"))
    engine = until(lambda: one.answer("/status")[0] and one.status()["child"] and one.pid())
    one.signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{engine}").exists() or "Z (zombie)" in Path(f"/proc/{engine}/status").read_text())
    until(lambda: holder(lease) is None)


def test_sigterm_while_it_waits_to_start_again(watched: Make) -> None:
    one = watched(restart=Restart(3, 60.0)).start(argv=shell("exit 1"))
    one.state("backoff")
    one.signal(signal.SIGTERM)
    assert one.end(5) == 0


def test_dry_run_and_wrong_arguments(tmp_path: Path) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "k25stack.watch.main", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)

    policy = tmp_path / "p.json"
    policy.write_text("{}")
    done = call("-n", "--policy", str(policy), "--", "engine", "a b")
    assert done.returncode == 0 and json.loads(done.stdout)["argv"] == ["engine", "a b"]
    assert "would start and watch: engine 'a b'" in done.stderr
    assert call("--policy", str(policy)).returncode == 2
    policy.write_text('{"heartbeat": 3}')
    done = call("--policy", str(policy), "--", "engine")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "unknown key 'heartbeat'" in done.stderr


@pytest.mark.parametrize("python", ["python3.11", "python3.12"])
def test_a_bare_python_is_enough(python: str, tmp_path: Path) -> None:
    """Isolated, without site-packages: what an engine's image offers."""
    found = shutil.which(python)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import k25stack.watch.main, k25stack.locks"
    works = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    if not works:
        pytest.skip(f"no {python} here")
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([str(found), "-I", "-S", "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


def test_only_light_rooms_are_loaded() -> None:
    code = "import sys, k25stack.watch.main; print(*sorted(n for n in sys.modules if n.startswith('k25stack')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split() if "." in name}
    assert rooms <= {"watch", "ledger", "errors", "files", "locks", "proc"}


def test_a_lock_record_is_the_same_for_all(tmp_path: Path) -> None:
    lock = NamedLock(tmp_path / "lease")
    assert lock.acquire(me()) is None
    assert set(holder(tmp_path / "lease") or {}) == {"pid", "start", "user", "host", "since"}
    lock.release()
