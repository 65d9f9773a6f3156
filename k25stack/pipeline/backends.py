"""Which backend runs the steps: chosen for a run, and told apart afterwards by what each job's record says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from k25stack.errors import UsageError
from k25stack.files import read_json
from k25stack.jobs import Backend, ProcessBackend, State
from k25stack.pipeline.lease import Lease, lease_path
from k25stack.pipeline.step import Step
from k25stack.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from k25stack.stack.model import Stack

BackendName = Literal["process", "docker"]


def make_backend(name: BackendName, workspace: Workspace, lease: Lease) -> Backend:
    """The backend of a run that holds ``lease``."""
    if name == "process":
        return ProcessBackend(workspace.jobs, lease.descriptors)
    from k25stack.jobs.docker import DockerBackend

    return DockerBackend(workspace.jobs, workspace.root, lease_path())


def choose(stack: Stack, asked: str) -> BackendName:
    """What the command line asks for, else what the stack says.  Raises UsageError for a backend there is not."""
    name = asked or stack.host.backend
    if name not in ("process", "docker"):
        raise UsageError(f"no backend {name!r}", where="--backend", remedy="process or docker")
    return "docker" if name == "docker" else "process"


def in_containers(steps: list[Step], stack: Stack, image: str = "") -> list[Step]:
    """The steps with the image of their kind: ``image`` for all, else those under ``host.step_images``.

    Raises UsageError for a kind without an image.
    """
    images: dict[str, str] = {kind: _pinned(stack, name) for kind, name in stack.host.step_images.items()}
    if image:
        from k25stack.jobs.docker import image_id

        images = dict.fromkeys(("artefact", "measurement", "service"), image_id(image))
    return [_in_container(step, images, stack.name) for step in steps]


def _in_container(step: Step, images: Mapping[str, str], stack: str) -> Step:
    wanted = [step.kind, *(["service"] if step.service else [])]
    if missing := [kind for kind in wanted if kind not in images]:
        raise UsageError(f"no image for steps of kind {missing[0]}", where=f"{stack}: host.step_images",
                         remedy="name one of images there, or give --image")  # fmt: skip
    service = step.service and replace(step.service, image=images["service"])
    return replace(step, image=images[step.kind], service=service)


def _pinned(stack: Stack, name: str) -> str:
    image = stack.images[name]
    return f"{image.ref}@{image.digest}"


class Looker:
    """Jobs of a working directory, each under the backend that runs it: for looking and stopping."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._process = ProcessBackend(workspace.jobs)
        self._docker: Backend | None = None

    def jobs(self, run: str) -> list[str]:
        return self._process.jobs(run)

    def logs(self, handle: str) -> Path:
        return self._process.logs(handle)

    def key(self, handle: str) -> str:
        return self._process.key(handle)

    def ports(self, handle: str) -> tuple[int, ...]:
        return self._process.ports(handle)

    def poll(self, handle: str) -> State:
        return self._of(handle).poll(handle)

    def stop(self, handle: str, grace_s: float) -> State:
        return self._of(handle).stop(handle, grace_s)

    def _of(self, handle: str) -> Backend:
        record: dict[str, Any] = read_json(Path(handle) / "job.json")
        if record.get("backend") != "docker":
            return self._process
        if self._docker is None:
            from k25stack.jobs.docker import DockerBackend

            self._docker = DockerBackend(self.workspace.jobs, self.workspace.root, lease_path())
        return self._docker
