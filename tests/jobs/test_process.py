"""A job outlives whoever started it, is found again, and leaves nothing behind."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k25stack.errors import HostError
from k25stack.jobs import ProcessBackend
from k25stack.proc import members, rss_gb, snapshot, start_time

from .conftest import Bench, until

FOREVER = "import time; print('up', flush=True)\nwhile True: time.sleep(0.05)"


def child_of(handle: str) -> int:
    pids = Path(handle) / "pid.json"
    until(lambda: json.loads(pids.read_text())["child"] is not None)
    return int(json.loads(pids.read_text())["child"])


def said(bench: Bench, handle: str, text: str) -> None:
    until(lambda: text in bench.backend.logs(handle).read_text())


def test_code_and_output_of_a_program_are_kept(bench: Bench) -> None:
    handle = bench.start("import sys; print('to the log'); sys.exit(7)")
    state = bench.wait(handle)
    assert (state.phase, state.code) == ("exited", 7)
    assert state.ended is not None and state.ended >= state.started
    assert bench.backend.logs(handle).read_text() == "to the log\n"
    assert json.loads((Path(handle) / "exit.json").read_text())["code"] == 7


def test_a_missing_program_is_an_exit_not_a_hang(bench: Bench) -> None:
    job = bench.job("")
    handle = bench.backend.submit(type(job)("run", "step", "key", ("/no/such/program",), job.log))
    assert bench.wait(handle).code == 127
    assert "/no/such/program: cannot be started" in bench.backend.logs(handle).read_text()


def test_only_declared_environment_and_a_base_are_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDECLARED", "1")
    monkeypatch.setenv("PASSED_SECRET", "hush")
    code = "import os; print(sorted(os.environ)); print(os.environ['DECLARED'], os.environ['PASSED_SECRET'])"
    handle = bench.start(code, env={"DECLARED": "yes"}, pass_env=("PASSED_SECRET", "ABSENT"))
    bench.wait(handle)
    names, values = bench.backend.logs(handle).read_text().splitlines()
    allowed = {"PATH", "HOME", "LANG", "PYTHONPATH", "K25_JOB", "DECLARED", "PASSED_SECRET", "USER", "LOGNAME"}
    allowed |= {"LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LC_CTYPE"}
    assert set(ast.literal_eval(names)) <= allowed
    assert values == "yes hush"
    kept = "".join(path.read_text() for path in Path(handle).iterdir() if path.is_file())
    assert "hush" not in kept


def test_a_job_survives_the_kill_of_its_submitter(bench: Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nprint('end')"
    submitter = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom k25stack.jobs import Job, ProcessBackend\n"
        f"job = Job('run', 'step', 'key', (sys.executable, '-c', {code!r}), Path({str(tmp_path / 'step.log')!r}))\n"
        f"print(ProcessBackend(Path({str(tmp_path / 'jobs')!r})).submit(job), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", submitter], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    handle = bench.backend.find("run", "step")
    assert handle == done.stdout.strip()
    assert bench.backend.poll(handle).phase == "running"
    go.touch()
    assert bench.wait(handle).code == 0
    assert bench.backend.logs(handle).read_text() == "end\n"


def test_a_killed_program_is_noted_with_its_signal(bench: Bench) -> None:
    handle = bench.start(FOREVER)
    said(bench, handle, "up")
    os.kill(child_of(handle), signal.SIGKILL)
    assert bench.wait(handle).code == 128 + signal.SIGKILL


def test_a_killed_keeper_takes_its_program_along_and_the_job_is_lost(bench: Bench) -> None:
    grandchild = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FOREVER!r}])"
    handle = bench.start(grandchild)
    said(bench, handle, "up")
    processes = members(snapshot(), bench.backend.roots(handle))
    assert len(processes) == 3
    os.kill(json.loads((Path(handle) / "pid.json").read_text())["pid"], signal.SIGKILL)
    assert bench.wait(handle).phase == "lost"
    again = bench.start("print('again')")  # submitting kills what is left before it starts anew
    assert again == handle
    assert bench.wait(again).code == 0
    until(lambda: not any(start_time(pid) for pid in processes))


def test_a_reused_pid_is_not_taken_for_the_job(bench: Bench) -> None:
    handle = bench.start("pass")
    bench.wait(handle)
    (Path(handle) / "exit.json").unlink()
    pids = {"pid": os.getpid(), "start": (start_time(os.getpid()) or 0) - 1, "child": None, "child_start": None}
    (Path(handle) / "pid.json").write_text(json.dumps(pids))
    assert bench.backend.poll(handle).phase == "lost"
    assert bench.backend.stop(handle, 0.1).phase == "lost"  # and nobody else is hurt
    assert bench.backend.roots(handle) == []


def test_stop_asks_first(bench: Bench) -> None:
    polite = (
        "import signal, sys, time\n"
        "def end(*_): print('tidy', flush=True); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True)\nwhile True: time.sleep(0.05)"
    )
    handle = bench.start(polite)
    said(bench, handle, "up")
    assert bench.backend.stop(handle, 20.0).code == 130
    said(bench, handle, "tidy")


def test_stop_kills_what_does_not_listen(bench: Bench) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    handle = bench.start(deaf)
    said(bench, handle, "up")
    assert bench.backend.stop(handle, 0.2).code == 128 + signal.SIGKILL


def test_nothing_outlives_its_program(bench: Bench) -> None:
    left = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FOREVER!r}]); print('gone')"
    handle = bench.start(left)
    assert bench.wait(handle).code == 0
    mark = f"K25_JOB={handle}".encode()

    def marked() -> list[int]:
        found = []
        for pid in snapshot():
            try:
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
            except OSError:
                continue
        return found

    until(lambda: not marked())


def test_a_second_submission_of_a_running_job_is_refused(bench: Bench) -> None:
    bench.start(FOREVER)
    with pytest.raises(HostError, match="already running"):
        bench.start("pass")


def test_two_jobs_never_share_a_work_directory(bench: Bench, tmp_path: Path) -> None:
    lock = tmp_path / "work" / "lock"
    first = bench.start(FOREVER, lock=lock)
    with pytest.raises(HostError, match="another run is making other"):
        bench.start("pass", step="other", lock=lock)
    bench.backend.stop(first, 1.0)
    assert bench.wait(bench.start("pass", step="other", lock=lock)).code == 0


def test_a_scoped_service_ends_when_its_last_owner_is_gone(bench: Bench) -> None:
    owner = subprocess.Popen([sys.executable, "-c", FOREVER], stdout=subprocess.DEVNULL)
    handle = bench.start(FOREVER, orphan_s=0.2)
    bench.backend.own(handle, [owner.pid])
    said(bench, handle, "up")
    time.sleep(0.8)  # several times the allowance: the owner keeps it alive
    assert bench.backend.poll(handle).phase == "running"
    owner.kill()
    owner.wait()
    assert bench.wait(handle).phase == "exited"


def test_memory_is_the_sum_over_the_tree(bench: Bench) -> None:
    block = "x = bytearray(b'x') * 60_000_000; import time; time.sleep(3)"
    both = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {block!r}])\n{block}\np.wait()"
    alone = bench.wait(bench.start(block)).peak_rss_gb
    assert 0.06 < alone < 0.12
    assert bench.wait(bench.start(both)).peak_rss_gb > alone + 0.055


def test_members_hold_orphans_of_the_session() -> None:
    script = "import subprocess, sys; subprocess.Popen(['sleep', '30']); sys.exit(0)"
    leader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {script!r}])\n{FOREVER}",
        ],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert leader.stdout is not None and leader.stdout.readline() == b"up\n"
    processes = snapshot()
    found = members(processes, [leader.pid])
    assert len(found) == 2  # the leader and the grandchild that lost its parent
    assert rss_gb(processes, found) > rss_gb(processes, [leader.pid])
    os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def test_an_ended_job_can_be_forgotten(bench: Bench) -> None:
    handle = bench.start("pass")
    bench.wait(handle)
    bench.backend.forget(handle)
    assert bench.backend.find("run", "step") is None
    assert ProcessBackend(bench.root / "jobs").jobs("run") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_the_end_is_noted_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        bench = Bench(disk)
        path = str(disk / "fill")
        write = f"pathlib.Path({path!r}).write_bytes(b'x' * 10**6)"
        fill = f"import pathlib\ntry:\n    {write}\nexcept OSError:\n    raise SystemExit(3)"
        assert bench.wait(bench.start(fill)).code == 3
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
