"""Jobs here are real programs run by the real backend; only the directories are throwaway."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker_twin import DockerTwin

from k25stack.jobs import Job, ProcessBackend, State

from .engines import HOOK, Engine
from .python_image import build


class Bench:
    """A backend in a throwaway directory, with short forms for what every test does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.backend = ProcessBackend(root / "jobs")

    def job(self, code: str, *, step: str = "step", **more: object) -> Job:
        return Job("run", step, "key", (sys.executable, "-c", code), self.root / f"{step}.log", **more)  # type: ignore[arg-type]

    def start(self, code: str, *, step: str = "step", **more: object) -> str:
        return self.backend.submit(self.job(code, step=step, **more))

    def wait(self, handle: str, within_s: float = 20.0) -> State:
        until(lambda: self.backend.poll(handle).phase != "running", within_s)
        return self.backend.poll(handle)


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for handle in bench.backend.jobs("run"):
        bench.backend.stop(handle, 0.1)


@pytest.fixture(scope="session")
def python_image(docker_twin: DockerTwin) -> str:
    """An image with Python, by its content hash."""
    return build(docker_twin)


@pytest.fixture(scope="session")
def engine(docker_twin: DockerTwin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Another engine than the shared one, with eight false cards by CDI and a false hook of the NVIDIA runtime."""
    engine = Engine(tmp_path_factory.mktemp("engine"))
    engine.start(HOOK)
    engine.eight_cards()
    engine.image()
    yield engine
    engine.clear()
