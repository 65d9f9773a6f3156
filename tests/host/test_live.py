"""What ``check host --live`` measures, with gloo and the processor where a machine has no cards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k25stack.cli.main import main
from k25stack.errors import HostError, UsageError
from k25stack.host import soak as soaking
from k25stack.host.checks import check_named
from k25stack.host.live.family import FAILED, FINE, TIMEOUT, UNABLE
from k25stack.host.live.p2p import tables
from k25stack.host.live.session import Place, Session, pairs_and_all
from k25stack.host.measure import SIZES, Held, Wanted, allreduces, measure, plan
from k25stack.host.places import LIVE_NCCL, LIVE_P2P, LIVE_READ
from k25stack.host.profile import Profile
from k25stack.host.seen import Reading, Seen

from .hosts import smi_xml

TWO = Profile("two", "two ranks", 2, busbw_gb_s=0.0)
SMALL = (8, 4096, 1 << 20)


def judged(check: str, text: str, rc: int, profile: Profile = TWO) -> dict[str, Any]:
    found = check_named(check)
    assert found is not None
    return found.judge(text, rc, profile)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(Place()) as running:
        yield running


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a file that is large enough to be read (72 MiB)."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "model.safetensors").write_bytes(os.urandom(1 << 20) * 72)
    return path


@pytest.mark.twins
def test_an_allreduce_is_right_and_timed_at_every_size(session: Session) -> None:
    lines: list[str] = []
    answer = session.ask("allreduce", 60, lines.append, cards=[0, 1], backend="gloo", sizes=SMALL)
    assert answer.code == FINE and lines == answer.lines
    found = judged("nccl.live", answer.text, answer.code)
    assert found["verdict"] == "pass", found
    assert set(found["evidence"]["us_by_bytes"]) == {str(size) for size in SMALL}


@pytest.mark.twins
def test_a_rank_that_never_joins_is_a_verdict_and_leaves_nothing_behind(session: Session) -> None:
    answer = session.ask("allreduce", 3, cards=[0, 1], backend="gloo", sizes=SMALL, starts=[0])
    assert answer.code == TIMEOUT and answer.seconds < 30
    assert "rank 0 still runs" in answer.text
    found = judged("nccl.live", answer.text, answer.code)
    assert found["verdict"] == "fail" and "hangs: it never began" in found["message"]
    assert session.ask("allreduce", 60, cards=[0, 1], backend="gloo", sizes=[8]).code == FINE


@pytest.mark.twins
def test_a_rank_that_dies_is_a_failure_with_its_message(session: Session) -> None:
    answer = session.ask("allreduce", 60, cards=[0, 1], backend="gloo", sizes=[8, "x"])
    assert answer.code == FAILED
    found = judged("nccl.live", answer.text, answer.code)
    assert found["verdict"] == "fail" and "TypeError" in found["message"]


@pytest.mark.twins
def test_without_cards_the_card_tests_are_unknown(session: Session) -> None:
    for job, check in (("allreduce", "nccl.live"), ("p2p", "p2p.live"), ("load", "stress")):
        answer = session.ask(job, 30, cards=[0, 1], sizes=SMALL, width=64, seconds=1)
        assert answer.code == UNABLE, answer
        found = judged(check, answer.text, answer.code)
        assert found["verdict"] == "unknown" and "not measured: " in found["message"] and "--python" in found["fix"]


@pytest.mark.twins
def test_a_worker_that_is_killed_is_one_line_and_the_next_question_starts_another(session: Session) -> None:
    session.ask("probe", 60)
    assert session.process is not None
    pid = session.process.pid
    os.killpg(pid, signal.SIGKILL)
    session.process.wait()
    with pytest.raises(HostError, match="the worker ended") as error:
        session.ask("probe", 60)
    assert "\n" not in str(error.value)
    assert json.loads(session.ask("probe", 60).lines[0])["cards"] == 0


@pytest.mark.twins
def test_a_worker_that_does_not_answer_is_killed_with_all_its_children(session: Session, monkeypatch: Any) -> None:
    from k25stack.host.live import session as module

    session.ask("probe", 60)
    assert session.process is not None
    pid = session.process.pid
    os.killpg(pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "GRACE_S", 1)
    answer = session.ask("probe", 1)
    assert answer.code == TIMEOUT and session.process is None
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)


@pytest.mark.twins
def test_two_ranks_then_all(session: Session) -> None:
    wanted = Wanted(sizes=(8, 4096), backend="gloo", limit_s=60)
    reading = allreduces(session, [0, 1, 2], wanted, {"NCCL_P2P_LEVEL": "SYS"})
    heads = [line for line in reading.text.splitlines() if line.startswith("#")]
    assert heads == ["# NCCL_P2P_LEVEL=SYS", "# ranks 2 cards 0,1", "# ranks 2 cards 0,2", "# ranks 3 cards 0,1,2"]
    found = judged("nccl.live", reading.text, reading.rc, Profile("three", "", 3))
    assert found["verdict"] == "pass" and found["message"].startswith("6 sizes") and "of 3 cards" in found["message"]


@pytest.mark.twins
def test_wrong_sums_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that adds one value wrongly: the check that the worker makes is no decoration."""
    torch = pytest.importorskip("torch")
    from k25stack.host.live import allreduce

    def spoils(values: Any) -> None:
        values[1] += 1

    monkeypatch.setattr(torch.distributed, "all_reduce", spoils)
    line = allreduce._size(2, 0, 1, torch.device("cpu"))
    assert line.split()[8] == line.split()[12] == "1"
    assert judged("nccl.live", line, 0)["verdict"] == "fail"


def test_sizes_and_groups_are_those_of_the_plan() -> None:
    assert SIZES[0] == 8 and SIZES[-1] == 512 << 20
    assert pairs_and_all([0]) == [] and pairs_and_all([0, 1]) == [[0, 1]]
    assert pairs_and_all(range(4)) == [[0, 1], [0, 3], [0, 1, 2, 3]]


def test_the_tables_of_copies_are_what_the_judge_reads() -> None:
    right = [[0.0, 0.0], [0.0, 0.0]]
    lines = tables(right, [[1, 1], [1, 1]], [[1500.0, 55.4], [55.3, 1500.0]], [[1.5, 0.45], [0.46, 1.5]])
    assert judged("p2p.live", "\n".join(lines), 0)["verdict"] == "pass"
    altered = tables([[0.0, 3.0], [0.0, 0.0]], [[1, 1], [1, 1]], [[9.0, 9.0], [9.0, 9.0]], right)
    found = judged("p2p.live", "\n".join(altered), 0)
    assert found["verdict"] == "fail" and "altered: 0 to 1" in found["message"]


def test_a_directory_is_read_past_the_page_cache(model: Path) -> None:
    profile = Profile("disk", "", 0, model_dir=str(model), model_gb=1, read_gb_s=0.001)
    notes: list[str] = []
    seen = measure(Seen({"proc/swaps": Reading("kept")}), profile, Wanted(), Held(notes.append))
    record = json.loads(seen.need(LIVE_READ))
    assert record["bytes"] == 72 << 20 and record["files"] == 1 and record["seconds"] > 0
    found = judged("disk.speed", seen.need(LIVE_READ), 0, profile)
    assert found["verdict"] == ("pass" if record["direct"] else "unknown")
    assert notes == [f"disk: {model}"] and seen.readings["proc/swaps"].text == "kept"


@pytest.mark.parametrize(("files", "says"), [(["small"], "no file of 64 MiB"), (None, "No such file")])
def test_nothing_to_read_is_unknown(tmp_path: Path, files: list[str] | None, says: str) -> None:
    directory = tmp_path / "model"
    if files is not None:
        directory.mkdir()
        (directory / "config.json").write_text("{}")
    profile = Profile("disk", "", 0, model_dir=str(directory), model_gb=1)
    seen = measure(Seen({}), profile, Wanted(), Held())
    reading = seen.readings[LIVE_READ.place]
    assert reading.rc == UNABLE and says in reading.text


def test_a_python_without_torch_or_none_at_all(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')  # type: ignore[attr-defined]
    bare.chmod(0o755)
    seen = measure(Seen({}), TWO, Wanted(Place(str(bare))), Held())
    assert seen.readings[LIVE_NCCL.place].rc == seen.readings[LIVE_P2P.place].rc == UNABLE
    assert "no torch in" in seen.readings[LIVE_NCCL.place].text
    none = measure(Seen({}), TWO, Wanted(Place(str(tmp_path / "none"))), Held()).readings[LIVE_NCCL.place]
    assert none.rc == UNABLE and "No such file" in none.text
    with pytest.raises(HostError, match="No such file"), Session(Place(str(tmp_path / "none"))) as session:
        session.ask("probe", 5)


def test_a_container_gets_the_cards_and_nothing_is_pulled() -> None:
    line = " ".join(Place(image="lmsysorg/sglang@sha256:0").argv("k25-live-1"))
    assert line.startswith("docker run --rm --interactive --pull=never --name k25-live-1 --device nvidia.com/gpu=all")
    assert line.endswith("--entrypoint python3 lmsysorg/sglang@sha256:0 -m k25stack.host.live.worker")


def test_the_plan_names_what_it_takes() -> None:
    assert list(plan(Profile("cpu", "", 0), Wanted())) == []
    parts = [part for part, _ in plan(Profile("x", "", 8, containers=False), Wanted(soak_s=60))]
    assert parts == ["probe", "allreduce", "allreduce", "allreduce", "p2p", "soak"]


def test_spans() -> None:
    assert [soaking.seconds_of(text) for text in ("60m", "90s", "1.5h", "5")] == [3600, 90, 5400, 5]
    for text in ("", "0", "1d", "m", "-5s", "100h"):
        with pytest.raises(UsageError, match="is no span"):
            soaking.seconds_of(text)


def programs(directory: Path, log: str, **changes: Any) -> str:
    """A PATH whose nvidia-smi, journalctl and dmesg print recorded text; an empty log cannot be read."""
    directory.mkdir(exist_ok=True)
    (directory / "smi.xml").write_text(smi_xml(gpus=2, **changes))
    (directory / "log").write_text(log)
    for name, text in (("nvidia-smi", "smi.xml"), ("journalctl", "log"), ("dmesg", "log")):
        (directory / name).write_text(f"#!/bin/sh\n[ -s {directory}/{text} ] && cat {directory}/{text}\n")
        (directory / name).chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.twins
def test_a_soak_sees_heat_clocks_xids_and_products(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {"clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Active"}
    log = "[    1.000000] NVRM: Xid (PCI:0000:01:00): 13, old\n[99999999.000000] NVRM: Xid (PCI:0000:01:00): 79, new\n"
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", log, one={1: slow}))
    monkeypatch.setattr(soaking, "EVERY_S", 0.1)
    monkeypatch.setattr(soaking, "WARM_S", 0.0)
    record = soaking.soak(session, [0, 1], 2, lambda line: None, device="cpu", width=64)
    assert record["xids"] == [79] and record["wrong"] == [0, 0] and record["ended"] == ""
    assert (
        record["seconds"] >= 2 and record["samples"] >= 1 and record["sm_mhz"] and record["least_margin_c"] is not None
    )
    assert list(record["slowed"]) == ["GPU 1 hw_thermal_slowdown"]
    found = judged("stress", json.dumps(record), 0)
    assert found["verdict"] == "fail" and "Xid 79" in found["message"]


@pytest.mark.twins
def test_a_card_that_is_lost_under_load_ends_the_soak_badly(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {"temperature/gpu_temp": "GPU is lost"}
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", "", one={1: lost}))
    monkeypatch.setattr(soaking, "EVERY_S", 0.1)
    record = soaking.soak(session, [0, 1], 2, lambda line: None, device="cpu", width=64)
    assert "GPU 1 is lost" in record["ended"] and record["xids"] is None
    assert judged("stress", json.dumps(record), 0)["verdict"] == "fail"


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["check", "host", "--live", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_live_as_people_type_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("K25_STATE_DIR", str(tmp_path / "state"))
    words = ("--profile", "cpu", "--model-dir", str(model))
    code, out, err = run(*words, "-n", capsys=capsys)
    assert code == 0 and out.startswith("disk ") and not (tmp_path / "state").exists()
    code, out, err = run(*words, "--json", "--record", str(tmp_path / "rec"), capsys=capsys)
    found = {check["id"]: check for check in json.loads(out)["checks"]}
    assert "GB/s" in found["disk.speed"]["message"] and f"disk: {model}" in err
    assert json.loads((tmp_path / "rec" / LIVE_READ.place).read_text())["bytes"] == 72 << 20
    assert (tmp_path / "state" / "gpu.lease").read_text() == ""


def test_nobody_measures_while_another_holds_the_lease(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from k25stack.pipeline.lease import Lease

    monkeypatch.setenv("K25_STATE_DIR", str(tmp_path / "state"))
    other = Lease("serve single", "serving", 8, tmp_path)
    other.take()
    code, out, err = run("--profile", "cpu", "--model-dir", str(model), capsys=capsys)
    other.release()
    assert code == 3 and not out and "serve single holds the lease" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--host", "gpu01"), "measures this machine"),
        (("--fix", "swap"), "exclude each other"),
        (("--profile", "cpu"), "nothing to measure"),
        (("--soak", "1d"), "is no span"),
    ],
)
def test_wrong_words_are_one_line(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(*words, capsys=capsys)
    assert code == 2 and not out and says in err and err.count("\n") == 1
    assert main(["check", "host", "--soak", "60s"]) == 2
    assert "belong to --live" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_worker_and_frees_the_lease(tmp_path: Path, number: int) -> None:
    """The worker is a program that never answers; its pid tells whether it is gone."""
    sleeper = tmp_path / "python"
    script = f"#!/bin/sh\nread request\necho $$ >{tmp_path}/part; mv {tmp_path}/part {tmp_path}/pid\nexec sleep 300\n"
    sleeper.write_text(script)
    sleeper.chmod(0o755)
    words = ["check", "host", "--live", "--profile", "1x-h200", "--python", str(sleeper)]
    command = subprocess.Popen(
        [sys.executable, "-m", "k25stack", *words],
        env={**os.environ, "K25_STATE_DIR": str(tmp_path / "state")},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    worker = int((tmp_path / "pid").read_text())
    assert "check host --live" in (tmp_path / "state" / "gpu.lease").read_text()
    command.send_signal(number)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130 and not out and "interrupted" in err.splitlines()[-1], err
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert (tmp_path / "state" / "gpu.lease").read_text() == ""
