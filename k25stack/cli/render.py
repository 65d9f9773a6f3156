"""``k25stack stack render``: a profile or a step as a command line, script, compose service or batch file."""

from __future__ import annotations

import atexit
import gc
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.engines.catalogue import Finding
    from k25stack.jobs import Job
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

MODEL = "${K25_MODEL_DIR:?directory of the target}"
DRAFT = "${K25_DRAFT_DIR:?directory of the draft}"
OWN_PYTHON = "/opt/k25stack/bin/python"  # of our images: it sees this package and the engine's, their python3 does not


@dataclass(frozen=True)
class Asked:
    """The options of ``stack render``."""

    file: Path
    profile: str
    step: str
    to: str
    model: str
    draft: str
    port: int
    image: str
    gpus: str
    job_dir: str

    def command(self) -> str:
        """The command line that renders this again."""
        words = ["k25stack", "stack", "render", str(self.file), "--to", self.to]
        named = {"--profile": self.profile, "--step": self.step, "--model": self.model, "--draft": self.draft}
        named |= {"--port": str(self.port or ""), "--image": self.image}
        named |= {"--gpus": self.gpus.removeprefix("nvidia"), "--job-dir": self.job_dir.removeprefix("./job")}
        return shlex.join([*words, *(word for option, value in named.items() if value for word in (option, value))])


@contextmanager
def without_collection() -> Iterator[None]:
    """Leave garbage alone while the stack's many classes are made, and what is left when the process ends.

    A tenth of a call this short would go into looking for it.
    """
    atexit.register(gc.freeze)
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def warn_unpinned(profiles: Mapping[str, Profile]) -> None:
    """Say plainly which drafts no commit decides."""
    from k25stack.stack.serving import unpinned_drafts

    for line in unpinned_drafts(profiles):
        say(f"warning: {line}", err=True)


def render_command(asked: Asked, as_json: bool) -> tuple[str, list[Finding]]:
    """Environment and command line of a profile's engine."""
    from k25stack import engines
    from k25stack.engines.catalogue import findings
    from k25stack.engines.launch import draft_name, launch_of, model_name
    from k25stack.stack import load_stack

    stack = load_stack(asked.file)
    profile = stack.profile(asked.profile or None)
    model, draft = asked.model, asked.draft
    if not model and model_name(stack) is None:
        model = "TARGET"
        say("TARGET stands for the directory that the target step makes (--model)", err=True)
    if not draft and profile.speculative and draft_name(profile) is None:
        draft = "DRAFT"
        say("DRAFT stands for the directory that the package step makes (--draft)", err=True)
    if not asked.draft:
        warn_unpinned({asked.profile or stack.serving.default: profile})
    launch = launch_of(stack, profile, model=model or None, draft=draft or None, port=asked.port or None)
    engine = engines.get(profile.engine)
    argv, env = engine.argv(profile, launch), engine.env(profile, launch)
    found = findings(profile.engine, profile.version, profile.argv)
    if as_json:
        return _as_json(asked.profile or stack.serving.default, stack, profile, argv, env, found), found
    return " ".join([*(f"{key}={shlex.quote(value)}" for key, value in env.items()), shlex.join(argv)]) + "\n", found


def _as_json(
    name: str, stack: Stack, profile: Profile, argv: list[str], env: dict[str, str], found: list[Finding]
) -> str:
    image = stack.images[profile.image] if profile.image else None
    shown = {
        "profile": name,
        "engine": f"{profile.engine}@{profile.version}",
        "image": f"{image.ref}@{image.digest}" if image else None,
        "env": env,
        "argv": argv,
        "findings": [vars(finding) for finding in found],
    }
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def render_compose(asked: Asked, out: Path | None, check: Path | None) -> None:
    """The whole compose file with all that it mounts: printed, written below ``out``, or compared (exit 4)."""
    from k25stack.errors import DriftError, UsageError
    from k25stack.jobs.composefile import compose_files, containers, differences, layout, write_tree
    from k25stack.stack import load_stack

    stack = load_stack(asked.file)
    warn_unpinned(containers(stack))
    source = asked.file.resolve()
    files = compose_files(stack, f"{source.parent.name}/{source.name}")
    place = out or check
    if place is None:
        say(files[layout(stack).file], end="")
        return
    directory = place if place.is_dir() else place.parent
    if not directory.is_dir():
        raise UsageError("no such directory", where=str(directory), remedy="make it first")
    anew = f"k25stack stack render {asked.file} --to compose -o {directory}"
    if check is not None:
        if names := differences(files, directory):
            say("\n".join(names))
            raise DriftError(f"{len(names)} files differ from what the stack says", where=str(directory), remedy=anew)
        say(f"{len(files)} files of {directory} are what the stack says", err=True)
        return
    for name in write_tree(files, directory):
        say(str(directory / name))
    say(f"Next: {anew.replace(' -o ', ' --check ')}", err=True)


def render_job(asked: Asked) -> tuple[str, list[Finding]]:
    """A profile or step as a job in one form."""
    from k25stack.engines.catalogue import findings
    from k25stack.errors import UsageError
    from k25stack.jobs.forms import FORMS, form
    from k25stack.stack import load_stack

    if asked.to not in FORMS:
        raise UsageError(f"no form {asked.to!r}", where="--to", remedy=f"one of {', '.join(FORMS)}")
    if asked.gpus not in ("nvidia", "cdi"):
        raise UsageError(f"{asked.gpus!r} is no way to ask for cards", where="--gpus", remedy="nvidia or cdi")
    if asked.step and asked.profile:
        raise UsageError("a profile and a step are two things", where="stack render", remedy="--profile or --step")
    stack = load_stack(asked.file)
    if asked.step:
        return form(_step(stack, asked), asked.to), []
    profile = stack.profile(asked.profile or None)
    if not asked.draft:
        warn_unpinned({asked.profile or stack.serving.default: profile})
    return form(_profile(stack, profile, asked), asked.to), findings(profile.engine, profile.version, profile.argv)


def _profile(stack: Stack, profile: Profile, asked: Asked) -> Job:
    from k25stack.jobs.serving import Places, serving_job

    places = Places(
        model=asked.model or MODEL,
        draft=(asked.draft or DRAFT) if profile.speculative else "",
        job=asked.job_dir,
        image=asked.image,
        port=asked.port,
        gpu_request="cdi" if asked.gpus == "cdi" else "nvidia",
    )
    return serving_job(stack, asked.profile or None, places)


def _step(stack: Stack, asked: Asked) -> Job:
    """The job of a step; RUN and KEY stand for what a run decides."""
    from k25stack.errors import UsageError
    from k25stack.jobs import Mount
    from k25stack.pipeline.loop import steps
    from k25stack.pipeline.stepjob import step_job

    by_name = {step.name: step for step in steps(stack)}
    if asked.step not in by_name:
        raise UsageError(f"no step {asked.step!r}", where=stack.name, remedy=f"there are {', '.join(by_name)}")
    say("RUN and KEY stand for the run's name and the step's key", err=True)
    step = replace(by_name[asked.step], image=asked.image or by_name[asked.step].image)
    job = step_job(step, run="RUN", key="KEY", place=Path("runs/RUN/steps/KEY"), env=step.env)
    if job.image is None:
        return replace(job, argv=("python3", *job.argv[1:]))
    here = str(Path.cwd())  # where runs/ and state/ are; the container sees it under the same path, as this user
    return replace(
        job,
        argv=(OWN_PYTHON, *job.argv[1:]),
        mounts=(Mount(here, here, writable=True), *job.mounts),
        workdir=here,
        user=f"{os.getuid()}:{os.getgid()}",
    )


def deliver(asked: Asked, text: str, out: Path | None, check: Path | None) -> None:
    """Print the text, write it, or compare it with a file (DriftError, exit 4)."""
    from k25stack.files import write_text
    from k25stack.jobs.forms import compare, drift

    if check is not None:
        command = f"{asked.command()} -o {shlex.quote(str(check))}"
        lines = compare(text, check, command)
        if lines:
            say("\n".join(lines))
            raise drift(lines, check, command)
        say(f"{check} is what the stack says", err=True)
    elif out is not None:
        write_text(out, text)
        say(f"Next: {asked.command()} --check {shlex.quote(str(out))}", err=True)
    else:
        say(text, end="")
