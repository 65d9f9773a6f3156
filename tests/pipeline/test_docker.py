"""The small loop in containers: the command is killed in the middle of a step, and nothing is lost or done twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_twin import DockerTwin
from jobs.python_image import build

from k25stack.errors import HostError
from k25stack.jobs import ProcessBackend
from k25stack.locks import holder
from k25stack.pipeline.lease import lease_holder
from k25stack.pipeline.status import overview
from k25stack.pipeline.stop import stop_run, what_runs

from .conftest import PROGRAMS, Loop, until

pytestmark = pytest.mark.twins


class Contained:
    """A loop whose steps run in containers."""

    def __init__(self, loop: Loop, image: str, twin: DockerTwin) -> None:
        self.loop, self.twin = loop, twin
        shutil.copytree(PROGRAMS, loop.root / "programs", ignore=shutil.ignore_patterns("__pycache__"))
        self.gate = loop.root / "gate"
        self.options: dict[str, Any] = {"image": image, "programs": str(loop.root / "programs"), "gate": str(self.gate)}

    def containers(self) -> list[str]:
        label = f"label=org.k25stack.root={self.loop.workspace.jobs.resolve()}"
        return self.twin.docker("ps", "-aq", "--filter", label).stdout.split()

    def until_parts(self, count: int) -> None:
        until(lambda: len(list(self.loop.workspace.work.glob("*/out/parts/part-*.json"))) == count, 60.0)


@pytest.fixture
def contained(loop: Loop, docker_twin: DockerTwin) -> Iterator[Contained]:
    made = Contained(loop, build(docker_twin), docker_twin)
    yield made
    if left := made.containers():
        docker_twin.docker("rm", "-f", "-v", *left)


def test_a_killed_command_loses_nothing_and_no_step_is_made_twice(
    contained: Contained, finished: dict[str, Any]
) -> None:
    loop = contained.loop
    command = loop.command(**contained.options)
    contained.until_parts(2)
    command.kill()
    command.wait()
    (job,) = overview(loop.workspace)["runs"][0]["jobs"]
    assert (job["step"], job["phase"]) == ("numbers", "running")
    until(lambda: lease_holder() is not None)  # the container holds the lease on
    with pytest.raises(HostError, match="runs under the docker backend"):
        ProcessBackend(loop.workspace.jobs).find("small-1", "numbers")
    second = loop.command(**contained.options)
    until(lambda: holder(loop.workspace.run("small-1").lock) is not None)
    contained.gate.touch()
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    ends = [record.data for record in loop.records() if record.kind == "step.end"]
    assert [end["step"] for end in ends] == ["numbers", "total", "after", "bench"]
    assert ends[0]["result"]["written_parts"] == 4  # one try made all parts
    contents = json.loads(out)
    assert {name: contents[name] for name in ("numbers", "total", "after")} == {
        name: finished["contents"][name] for name in ("numbers", "total", "after")
    }
    assert contained.containers() == [] and lease_holder() is None


def test_stop_ends_a_container_that_was_left_running(contained: Contained) -> None:
    loop = contained.loop
    command = loop.command(only=["numbers"], **contained.options)
    contained.until_parts(2)
    command.kill()
    command.wait()
    run = loop.workspace.run("small-1")
    assert what_runs(run) == ["step numbers"]
    stop_run(run, 5.0)
    assert what_runs(run) == []
    contained.gate.touch()
    outcome = loop.run(only=["numbers"], **contained.options)
    assert outcome.results["numbers"].result()["written_parts"] == 2  # those that were not there yet


def test_the_image_decides_the_key_and_host_packages_do_not(contained: Contained) -> None:
    plan = contained.loop.plan(**contained.options)["numbers"]
    assert plan.fields is not None and plan.fields["image"] == contained.options["image"]
    assert plan.key != contained.loop.plan()["numbers"].key


def test_a_missing_image_ends_the_run_with_the_remedy(contained: Contained, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"is not on this machine .*k25stack stack fetch"):
        contained.loop.run(**{**contained.options, "image": "sha256:" + "1" * 64})
