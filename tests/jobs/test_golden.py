"""Script, service, batch file and policy of every shipped profile, and of a few steps, to the letter.

``golden/<stack>.<form>`` holds the default profile in full and, of every other one, the lines that differ from it: that
is what a reviewer wants to see.  After a wanted change: ``python tests/jobs/test_golden.py`` writes them anew.
"""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from k25stack.jobs import Job
from k25stack.jobs.forms import form
from k25stack.jobs.serving import Places, serving_job
from k25stack.pipeline.loop import steps
from k25stack.pipeline.stepjob import step_job
from k25stack.stack import Stack, load_stack

STACKS = Path(__file__).resolve().parents[2] / "stacks"
GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in STACKS.glob("*.yaml"))
FORMS = ("script", "compose", "sbatch", "policy")
SUFFIX = {"script": "sh", "compose": "yaml", "sbatch": "sbatch", "policy": "json"}
LONG = re.compile(r"^(nccl_names=).*$", re.MULTILINE)  # every variable of NCCL: host/nccl.json has them
INSPECTOR = re.compile(r"(?s)<<'PYTHON'\n.*?\n(?=inspect\()")  # templates/inspect.py as it stands


def profile_job(stack: Stack, name: str) -> Job:
    profile = stack.profile(name)
    image = "" if profile.image else f"k25stack/{'cpu' if not stack.host.gpus else profile.engine}:local"
    draft = "/srv/draft" if profile.speculative else ""
    return serving_job(stack, name, Places(model="/srv/target", draft=draft, job="/srv/job", image=image))


def text_of(job: Job, to: str) -> str:
    return INSPECTOR.sub("<<'PYTHON'\n", LONG.sub(r"\1...", form(job, to)))


def golden(stack: Stack, to: str) -> str:
    """The default profile in full, then what every other one has otherwise."""
    first = stack.serving.default
    whole = text_of(profile_job(stack, first), to).splitlines()
    lines = [f"##### {first}", *whole]
    for name in stack.serving.profiles:
        if name != first:
            other = text_of(profile_job(stack, name), to).splitlines()
            differing = difflib.unified_diff(whole, other, n=0, lineterm="")
            lines += [f"##### {name}", *(line for line in differing if line[:3] not in ("---", "+++", "@@ "))]
    return "\n".join(lines) + "\n"


def step_text(name: str, image: str) -> str:
    by_name = {step.name: step for step in steps(load_stack(STACKS / "smollm2-cpu.yaml"))}
    step = replace(by_name[name], image=image)
    job = step_job(step, run="RUN", key="KEY", place=Path("runs/RUN/steps/KEY"), env=step.env)
    return form(job, "script") + form(job, "sbatch")


STEPS = dict.fromkeys(("target", "train"), f"k25stack/train@sha256:{'ab' * 32}")


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_profile_is_rendered_to_the_letter(name: str, to: str) -> None:
    assert golden(load_stack(STACKS / f"{name}.yaml"), to) == (GOLDEN / f"{name}.{SUFFIX[to]}").read_text()


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_rendered_to_the_letter(name: str) -> None:
    assert step_text(name, STEPS[name]) == (GOLDEN / f"step-{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_one_that_bash_and_shellcheck_accept(name: str, tmp_path: Path) -> None:
    stack = load_stack(STACKS / f"{name}.yaml")
    files = []
    for profile in stack.serving.profiles:
        for to in ("script", "sbatch"):
            files.append(tmp_path / f"{profile}.{to}.sh")
            files[-1].write_text(form(profile_job(stack, profile), to))
    for file in files:
        subprocess.run(["bash", "-n", str(file)], check=True)
    if checker := shutil.which("shellcheck"):
        done = subprocess.run([checker, *map(str, files)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for stack_name in NAMES:
        for kind in FORMS:
            (GOLDEN / f"{stack_name}.{SUFFIX[kind]}").write_text(
                golden(load_stack(STACKS / f"{stack_name}.yaml"), kind)
            )
    for step_name, its_image in STEPS.items():
        (GOLDEN / f"step-{step_name}.txt").write_text(step_text(step_name, its_image))
