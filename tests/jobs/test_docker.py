"""The Docker backend on a real engine: a job outlives its command and its engine, and every end has its own message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docker_twin import DockerTwin

from k25stack.errors import HostError, UsageError
from k25stack.jobs import Job, Mount, State
from k25stack.jobs.docker import DockerBackend, image_id
from k25stack.pipeline import failure

from .conftest import until
from .engines import TINY, Engine, mounts

pytestmark = pytest.mark.twins
FOREVER = "import time; print('up', flush=True)\nwhile True: time.sleep(0.05)"
SUBMIT = """
import json, sys
from pathlib import Path
from k25stack.jobs import Job
from k25stack.jobs.docker import DockerBackend
root, image, code = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
job = Job("run", "step", "key", ("python3", "-c", code), root / "step.log", image=image)
print(DockerBackend(root / "jobs", root).submit(job), flush=True)
sys.stdin.read()
"""


def until_there(gate: Path) -> str:
    """Code that waits for a file."""
    return f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)"


class Yard:
    """A backend in a throwaway working directory."""

    def __init__(self, root: Path, image: str, mounts: tuple[Mount, ...] = ()) -> None:
        self.root, self.image, self.mounts = root, image, mounts
        self.backend = DockerBackend(root / "jobs", root)

    def job(self, code: str, *, step: str = "step", **more: object) -> Job:
        words = ("python3", "-c", code)
        return Job("run", step, "key", words, self.root / f"{step}.log", image=self.image, mounts=self.mounts, **more)  # type: ignore[arg-type]

    def start(self, code: str, *, step: str = "step", **more: object) -> str:
        return self.backend.submit(self.job(code, step=step, **more))

    def end(self, handle: str, within_s: float = 30.0) -> State:
        until(lambda: self.backend.wait(handle, 0.5).phase != "running", within_s)
        return self.backend.poll(handle)

    def said(self, text: str, step: str = "step") -> None:
        until(lambda: text in (self.root / f"{step}.log").read_text(), 30.0)

    def message(self, state: State) -> str:
        return str(failure.of("step", state, self.root / "step.log", self.root))

    def containers(self, twin: DockerTwin) -> list[str]:
        label = f"label=org.k25stack.root={self.backend.root}"
        return twin.docker("ps", "-aq", "--no-trunc", "--filter", label).stdout.split()


@pytest.fixture
def yard(docker_twin: DockerTwin, python_image: str, tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, python_image)
    yield yard
    if left := yard.containers(docker_twin):
        docker_twin.docker("rm", "-f", "-v", *left)


def test_a_job_runs_and_is_found_by_its_labels(yard: Yard, docker_twin: DockerTwin) -> None:
    code = "import os, sys; print(sorted(os.environ), os.environ['A B'[:1]], os.getuid()); sys.exit(7)"
    handle = yard.start(code, env={"A": "it's $HOME"}, memory_bytes=1 << 28)
    state = yard.end(handle)
    assert (state.phase, state.code, state.cause) == ("exited", 7, "") and 0 < state.peak_rss_gb < 0.2
    log = (yard.root / "step.log").read_text()
    assert "it's $HOME" in log and log.endswith(f" {os.getuid()}\n")
    (container,) = yard.containers(docker_twin)
    about = json.loads(docker_twin.docker("inspect", container).stdout)[0]
    named = {name.rpartition(".")[2]: value for name, value in about["Config"]["Labels"].items()}
    assert (named["run"], named["step"], named["key"]) == ("run", "step", "key")
    host = about["HostConfig"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and host["SecurityOpt"] == ["no-new-privileges:true"]
    assert yard.backend.find("run", "step") == handle and yard.backend.jobs("run") == [handle]
    yard.backend.forget(handle)
    assert yard.containers(docker_twin) == [] and yard.backend.find("run", "step") is None


def test_secrets_reach_the_program_and_stand_nowhere(
    yard: Yard, docker_twin: DockerTwin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hush-hush")
    handle = yard.start("import os; print(os.environ['HF_TOKEN'][::-1])", pass_env=("HF_TOKEN", "NOT_SET"))
    assert yard.end(handle).code == 0
    assert "hsuh-hsuh" in (yard.root / "step.log").read_text()
    (container,) = yard.containers(docker_twin)
    assert "hush-hush" not in docker_twin.docker("inspect", container).stdout
    assert not [path for path in Path(handle).rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]


def test_stop_lets_the_program_drain(yard: Yard) -> None:
    code = (
        "import signal, sys, time\ndef end(*_): print('drained', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True)\nwhile True: time.sleep(0.05)"
    )
    handle = yard.start(code)
    yard.said("up")
    assert yard.backend.stop(handle, 10.0).code == 3
    yard.said("drained")


def test_a_killed_command_leaves_the_container_which_the_next_finds(yard: Yard, docker_twin: DockerTwin) -> None:
    gate = yard.root / "gate"
    code = f"print('up', flush=True)\n{until_there(gate)}\nprint('on')"
    command = subprocess.Popen(
        [sys.executable, "-c", SUBMIT, str(yard.root), yard.image, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert command.stdout is not None
    handle = command.stdout.readline().decode().strip()
    command.kill()
    command.wait()
    again = DockerBackend(yard.root / "jobs", yard.root)
    assert again.find("run", "step") == handle and again.poll(handle).phase == "running"
    with pytest.raises(HostError, match="already running"):
        again.submit(yard.job(FOREVER))
    gate.touch()
    assert yard.end(handle).code == 0
    assert (yard.root / "step.log").read_text() == "up\non\n"
    assert len(yard.containers(docker_twin)) == 1


def test_memory_above_the_limit_is_told_as_such(yard: Yard) -> None:
    handle = yard.start("x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1", memory_bytes=96 << 20)
    state = yard.end(handle)
    assert state.code == 137
    assert "killed by the kernel: more than its container's limit of 0.1 GB (raise the limit" in yard.message(state)


def test_a_container_that_is_killed_is_told_from_out_of_memory(yard: Yard, docker_twin: DockerTwin) -> None:
    handle = yard.start(FOREVER)
    yard.said("up")
    docker_twin.docker("kill", *yard.containers(docker_twin))
    state = yard.end(handle)
    assert (state.phase, state.code) == ("exited", 137)
    assert "its container was killed (exit 137: docker kill" in yard.message(state)


def test_a_container_that_was_removed_is_lost(yard: Yard, docker_twin: DockerTwin) -> None:
    handle = yard.start(FOREVER)
    yard.said("up")
    docker_twin.docker("rm", "-f", *yard.containers(docker_twin))
    state = yard.end(handle)
    assert state.phase == "lost" and "its container is gone" in yard.message(state)


def refusal(yard: Yard, **more: object) -> str:
    job = replace(yard.job(FOREVER), **more)  # type: ignore[arg-type]
    with pytest.raises(HostError) as caught:
        yard.backend.submit(job)
    return str(caught.value)


def test_what_the_engine_refuses_is_told_with_the_remedy(yard: Yard, docker_twin: DockerTwin) -> None:
    gone = "sha256:" + "0" * 64
    assert f"image {gone} is not on this machine (get it: k25stack stack fetch" in refusal(yard, image=gone)
    cdi = refusal(yard, gpus=1, gpu_request="cdi", env={})
    assert "no such CDI device nvidia.com/gpu=0" in cdi and "nvidia-ctk cdi generate" in cdi
    bare = image_id(docker_twin.base)
    assert "the image lacks the program that is to be started" in refusal(yard, image=bare)
    with pytest.raises(UsageError, match="k25stack stack pin"):
        yard.backend.submit(yard.job(FOREVER).__class__("run", "step", "k", ("x",), yard.root / "l", image="them/it:1"))


def test_without_a_gpu_runtime_the_message_says_so(yard: Yard) -> None:
    assert "the engine has no GPU runtime (install the NVIDIA container toolkit" in refusal(yard, gpus=1)


def test_without_an_engine_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    backend = DockerBackend(tmp_path / "jobs", tmp_path)
    with pytest.raises(HostError, match="no Docker Engine answers"):
        backend.submit(Job("run", "step", "key", ("true",), tmp_path / "log", image="sha256:" + "0" * 64))


def test_a_server_ends_after_the_last_who_needs_it(yard: Yard) -> None:
    server = yard.start(FOREVER, step="bench.server", orphan_s=0.5)
    measuring = yard.start("import time; time.sleep(3)", step="bench")
    yard.backend.own(server, [os.getpid()], [measuring])
    os.close(yard.backend._owned.pop(server))  # this command dies; the measurement goes on
    assert yard.end(measuring).code == 0
    until(lambda: yard.backend.poll(server).phase != "running", 20.0)


def test_the_lease_passes_to_the_container_when_the_command_dies(yard: Yard) -> None:
    import fcntl

    lease = yard.root / "lease/gpu.lease"
    lease.parent.mkdir()
    lease.touch()
    held = lease.open("r+")
    fcntl.flock(held, fcntl.LOCK_EX)
    backend = DockerBackend(yard.root / "jobs", yard.root, lease)
    handle = backend.submit(yard.job(FOREVER))
    held.close()

    def taken() -> bool:
        with lease.open("r+") as look:
            try:
                fcntl.flock(look, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    until(taken)
    backend.stop(handle, 0.5)
    until(lambda: not taken())


@pytest.fixture
def apart(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    """A yard on that other engine."""
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    return Yard(tmp_path, image_id(TINY), mounts())


def test_a_job_goes_on_while_its_engine_is_restarted(apart: Yard, engine: Engine) -> None:
    gate = apart.root / "gate"
    code = f"print('up', flush=True)\n{until_there(gate)}\nprint('on')"
    handle = apart.start(code)
    apart.said("up")
    engine.end()
    assert apart.backend.poll(handle).phase == "running"
    assert DockerBackend(apart.root / "jobs", apart.root).poll(handle).phase == "running"
    engine.start()
    assert DockerBackend(apart.root / "jobs", apart.root).poll(handle).phase == "running"
    gate.touch()
    assert apart.end(handle).code == 0
    assert (apart.root / "step.log").read_text() == "up\non\n"
    apart.backend.forget(handle)
    assert engine.docker("ps", "-aq").stdout == ""


def test_a_job_that_ends_while_its_engine_is_down_is_collected(apart: Yard, engine: Engine) -> None:
    gate = apart.root / "gate"
    handle = apart.start(f"{until_there(gate)}\nraise SystemExit(5)")
    engine.end()
    gate.touch()
    assert apart.end(handle).code == 5
    engine.start()
    apart.backend.forget(handle)


@pytest.mark.parametrize("count", [1, 8])
def test_cards_by_cdi_are_those_that_were_asked_for(apart: Yard, count: int) -> None:
    handle = apart.start("import glob; print(sorted(glob.glob('/dev/nvidia*')))", gpus=count, gpu_request="cdi")
    assert apart.end(handle).code == 0
    assert (apart.root / "step.log").read_text() == f"{[f'/dev/nvidia{index}' for index in range(count)]}\n"
    apart.backend.forget(handle)


def test_cards_by_the_nvidia_runtime_are_asked_for_by_count(apart: Yard) -> None:
    handle = apart.start("import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])", gpus=8)
    assert apart.end(handle).code == 0
    assert (apart.root / "step.log").read_text() == "0,1,2,3,4,5,6,7\n"
    apart.backend.forget(handle)
