"""One holder at a time, known by name; a dead holder holds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k25stack.errors import LeaseError
from k25stack.locks import NamedLock, describe, holder, me
from k25stack.pipeline.lease import Lease, lease_holder, lease_path

from .conftest import until

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom k25stack.pipeline.lease import Lease\n"
    "lease = Lease('serve kimi', 'serving', 8, Path(sys.argv[1])); lease.take(); lease.note('ready')\n"
    "print('held', flush=True)\nwhile True: time.sleep(0.05)"
)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K25_STATE_DIR", str(tmp_path / "host"))


def held_elsewhere(scope: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(scope)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_foreign_holder_is_named_in_one_line(tmp_path: Path) -> None:
    other = held_elsewhere(tmp_path / "theirs")
    lease = Lease("run mine", "the loop", 0, tmp_path / "mine")
    with pytest.raises(LeaseError) as caught:
        lease.take()
    text = str(caught.value)
    assert f"serve kimi holds the lease of this host's 8 cards: pid {other.pid} of " in text
    assert "serving, ready" in text and str(lease_path()) in text and "\n" not in text
    assert caught.value.exit_code == 3
    other.kill()
    other.wait()
    lease.take()  # the kernel freed it
    assert (lease_holder() or {})["who"] == "run mine"
    lease.release()
    assert lease_holder() is None


def test_progress_is_told_to_others(tmp_path: Path) -> None:
    lease = Lease("run mine", "the loop", 2, tmp_path)
    lease.take()
    lease.note("train 40 %")
    assert (lease_holder() or {})["progress"] == "train 40 %"
    assert (lease_holder() or {})["cards"] == 2
    lease.note("x")  # a shorter record leaves nothing of the longer one
    assert (lease_holder() or {})["progress"] == "x"
    lease.release()


def test_a_step_of_our_own_that_still_runs_does_not_lock_us_out(tmp_path: Path) -> None:
    """Its command is dead, its descriptor lives in the step: same scope may go on, others may not."""
    code = (
        "import os, subprocess, sys\nfrom pathlib import Path\nfrom k25stack.pipeline.lease import Lease\n"
        "lease = Lease('run mine', 'the loop', 0, Path(sys.argv[1])); lease.take()\n"
        "fd = lease.descriptors()\n"
        "step = subprocess.Popen(['sleep', '60'], pass_fds=fd, stdout=subprocess.DEVNULL)\n"
        "print(step.pid, flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "mine")], stdout=subprocess.PIPE, text=True)
    step = int(done.stdout)
    mine, theirs = Lease("run mine", "", 0, tmp_path / "mine"), Lease("run theirs", "", 0, tmp_path / "theirs")
    mine.take()
    assert mine.lock.handle is None  # the step holds it still
    with pytest.raises(LeaseError, match="run mine holds the lease"):
        theirs.take()
    os.kill(step, 9)
    until(lambda: lease_holder() is None)
    mine.secure()
    assert mine.lock.handle is not None
    mine.release()


def test_the_place_of_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from k25stack.pipeline import lease

    assert lease_path() == tmp_path / "host" / "gpu.lease"
    monkeypatch.delenv("K25_STATE_DIR")
    monkeypatch.setattr(lease, "SHARED", tmp_path / "absent")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert lease_path() == tmp_path / "xdg" / "k25stack" / "gpu.lease"
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(lease, "SHARED", shared)
    assert lease_path() == shared / "k25stack" / "gpu.lease"
    Lease("a", "", 0, tmp_path)
    assert (shared / "k25stack").stat().st_mode & 0o7777 == 0o1777  # other users take it too
    assert lease_path().stat().st_mode & 0o777 == 0o666


def test_a_record_that_is_half_written_or_missing_still_refuses(tmp_path: Path) -> None:
    first, second = NamedLock(tmp_path / "lock"), NamedLock(tmp_path / "lock")
    assert first.acquire({"pid": 1}) is None
    (tmp_path / "lock").write_text('{"pid": ')
    assert second.acquire(me()) == {"pid": 0}
    assert describe({"pid": 0}) == "pid 0 on this host since an unknown time"
    first.release()
    assert second.acquire(me()) is None
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    second.release()
    assert holder(tmp_path / "lock") is None and holder(tmp_path / "nothing") is None
