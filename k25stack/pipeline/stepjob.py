"""A step as a job: the same value whoever runs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from k25stack.jobs import Job, Mount
from k25stack.jobs.job import GPU_LIMITS
from k25stack.pipeline.step import Step

CONTAINER_PYTHON = "python3"


def step_job(step: Step, *, run: str, key: str, place: Path, env: Mapping[str, str], lock: Path | None = None) -> Job:
    """The job of a step's program: ``place`` is the step's directory in the run, where spec and log are; ``env`` is
    all of its environment.
    """
    places = {"{python}": python(step.image), "{spec}": str(place / "spec.json")}
    files = [str(path.resolve()) for path in step.files.values()] if step.image else []
    return Job(
        run=run,
        step=step.name,
        key=key,
        argv=tuple(places.get(word, word) for word in step.argv),
        log=place / "log",
        env=env,
        pass_env=step.pass_env,
        image=step.image,
        gpus=step.gpus,
        ulimits=GPU_LIMITS if step.gpus else {},
        lock=lock,
        mounts=tuple(Mount(place, place) for place in files),
        network="host" if step.service or step.pass_env or step.image is None else "none",
    )


def python(image: str | None) -> str:
    """The interpreter: this one, or the image's own."""
    return sys.executable if image is None else CONTAINER_PYTHON
