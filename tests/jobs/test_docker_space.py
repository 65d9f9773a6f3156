"""A disk without space under the Docker backend: the engine's own, and the one of the working directory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_twin import DockerTwin

from k25stack.errors import HostError
from k25stack.jobs.docker import image_id

from .engines import TINY, SmallEngine, mounts
from .test_docker import Yard

pytestmark = pytest.mark.twins
FILL = """
with open("blob", "wb", buffering=0) as file:
    while True:
        file.write(bytes(1 << 16))
"""


@pytest.fixture
def small(docker_twin: DockerTwin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallEngine]:
    (tmp_path / "engine").mkdir()
    engine = SmallEngine(tmp_path / "engine", "16m")
    engine.start()
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    try:
        engine.image()
        yield engine
    finally:
        engine.clear()


def test_a_full_engine_is_named_and_the_same_job_runs_once_there_is_space(small: SmallEngine, tmp_path: Path) -> None:
    (tmp_path / "yard").mkdir()
    yard = Yard(tmp_path / "yard", image_id(TINY), mounts())
    small.fill()
    with pytest.raises(HostError) as caught:
        yard.start("print('on')")
    assert str(caught.value) == (
        f"step: no space left on the disk of {small.data} "
        "(free some there: docker system df, docker image prune, docker builder prune)"
    )
    assert small.docker("ps", "-aq").stdout == "" and yard.backend.find("run", "step") is not None
    small.free()
    handle = yard.start("print('on')")
    assert yard.end(handle).code == 0
    assert (yard.root / "step.log").read_text() == "on\n"
    yard.backend.forget(handle)


@pytest.fixture
def narrow(docker_twin: DockerTwin, python_image: str, tmp_path: Path) -> Iterator[Yard]:
    """A yard whose working directory is a small tmpfs."""
    root = tmp_path / "narrow"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(root)], check=True)
    yard = Yard(root, python_image)
    yield yard
    if left := yard.containers(docker_twin):
        docker_twin.docker("rm", "-f", "-v", *left)
    subprocess.run(["umount", "-l", str(root)], check=True)


def test_a_step_that_fills_its_directory_ends_with_a_note_that_names_it(narrow: Yard) -> None:
    handle = narrow.start(FILL)
    state = narrow.end(handle)
    assert state.phase == "exited" and state.code and (Path(handle) / "exit.json").exists()
    assert f"the disk of {narrow.root} is full (free space" in narrow.message(state)


def test_a_directory_that_is_full_already_starts_no_container(narrow: Yard, docker_twin: DockerTwin) -> None:
    with (narrow.root / "blob").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while file.write(bytes(1 << 16)):
            continue
    with pytest.raises(OSError, match="No space left") as caught:
        narrow.start("print('on')")
    assert str(narrow.root) in str(caught.value.filename)
    assert narrow.containers(docker_twin) == []
    (narrow.root / "blob").unlink()
    assert narrow.end(narrow.start("print('on')")).code == 0
