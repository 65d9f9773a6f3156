"""What is rendered for sbatch, submitted to a real Slurm: results, exit codes, the drain before a limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_twin import DockerTwin

from k25stack.jobs import Job
from k25stack.jobs.render import sbatch

from .conftest import until
from .python_image import IMAGE
from .slurm import Slurm, why_not

pytestmark = pytest.mark.twins
STACKS = Path(__file__).resolve().parents[2] / "stacks"
SMALL = STACKS / "smollm2-cpu.yaml"
DRAIN = """
import signal, sys, time
def end(*_):
    print("draining", flush=True)
    time.sleep(0.5)
    print("drained", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := why_not():
        pytest.skip(f"no Slurm can be started here: {reason}")
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
        yield made
    finally:
        made.clear()


def rendered(*words: str | Path, to: str = "sbatch") -> str:
    argv = [sys.executable, "-m", "k25stack", "stack", "render", *map(str, words), "--to", to]
    return subprocess.run(argv, text=True, capture_output=True, timeout=60, check=True).stdout


def spec(place: Path, tokenizer: Path, **changed: Any) -> Path:
    """A spec of the prompts step: questions of a file, split with a tokenizer."""
    (place / "out").mkdir(parents=True)
    rows = place / "questions.jsonl"
    rows.write_text("".join(json.dumps({"question": f"what is {number}?"}) + "\n" for number in range(30)))
    source = {"name": "mine", "kind": "jsonl", "path": str(rows), "held_out": 5, "validation": 5, **changed}
    params = {"seed": 1, "sources": [source], "context": 512, "max_new_tokens": 16}
    told = {"params": params, "inputs": {"target": str(tokenizer)}, "out": str(place / "out"), "threads": 1}
    (place / "spec.json").write_text(json.dumps(told))
    return place / "spec.json"


def prompts_step(place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The batch file of that step, RUN and KEY filled in, for this Python."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    return rendered(SMALL, "--step", "prompts").replace("runs/RUN/steps/KEY", str(place)).replace("RUN", "small-1")


def test_a_step_of_a_shipped_stack_gives_what_it_gives_without_slurm(
    slurm: Slurm, tiny_target_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    spec(there, tiny_target_dir)
    job = slurm.submit(prompts_step(there, monkeypatch), there)
    assert slurm.end(job) == ("COMPLETED", "0:0"), (there / "log").read_text()
    assert slurm.about(job)["JobName"] == "small-1.prompts"
    subprocess.run(
        [sys.executable, "-m", "k25stack.train.corpus", str(spec(here, tiny_target_dir))],
        check=True,
        capture_output=True,
    )
    made = (there / "out/prompts.jsonl").read_bytes()
    assert made.count(b"\n") == 30 and made == (here / "out/prompts.jsonl").read_bytes()


def test_a_step_that_fails_fails_its_job_with_the_same_exit_code(
    slurm: Slurm, tiny_target_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec(tmp_path / "step", tiny_target_dir, kind="csv")
    job = slurm.submit(prompts_step(tmp_path / "step", monkeypatch), tmp_path)
    assert slurm.end(job) == ("FAILED", "2:0")
    assert "error: source mine: unknown kind 'csv'" in (tmp_path / "step/log").read_text()


def test_a_shipped_profile_of_eight_cards_is_accepted_as_it_is(slurm: Slurm, tmp_path: Path) -> None:
    text = rendered(STACKS / "kimi-k2.5-8x-rtx-pro-6000.yaml", "--model", "/m", "--draft", "/d", "--job-dir", "/j")
    (tmp_path / "big.sbatch").write_text(text)
    done = slurm.ask("sbatch", "--test-only", str(tmp_path / "big.sbatch"))
    assert done.returncode == 0 and "to start at" in done.stderr
    (tmp_path / "big.sbatch").write_text(text.replace("--gpus-per-node=8", "--gpus-per-node=9"))
    assert slurm.ask("sbatch", "--test-only", str(tmp_path / "big.sbatch")).returncode != 0, "there are eight"


def drains(slurm: Slurm, job: Job, place: Path) -> None:
    """What ``--signal=B:TERM`` sends before the limit lets the program end in its own way."""
    number = slurm.submit(sbatch(job), place)
    until(lambda: job.log.exists() and "up\n" in job.log.read_text(), 30.0)
    slurm.ask("scancel", "--signal=TERM", "--batch", number)
    assert slurm.end(number) == ("COMPLETED", "0:0"), job.log.read_text()
    assert "draining\ndrained\n" in job.log.read_text()


def test_the_program_drains_before_the_limit(slurm: Slurm, tmp_path: Path) -> None:
    drains(slurm, Job("run", "step", "key", (sys.executable, "-c", DRAIN), tmp_path / "log"), tmp_path)


def test_a_container_drains_before_the_limit_and_is_gone(
    slurm: Slurm, docker_twin: DockerTwin, python_image: str, tmp_path: Path
) -> None:
    drains(slurm, Job("run", "slurm", "key", ("python3", "-c", DRAIN), tmp_path / "log", image=python_image), tmp_path)
    assert docker_twin.docker("ps", "-aq", "--filter", "label=org.k25stack.step=slurm").stdout == ""


def test_ground_that_does_not_hold_fails_the_job_and_says_why(
    slurm: Slurm, docker_twin: DockerTwin, python_image: str, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("model", "draft", "job")}
    for place in places.values():
        place.mkdir(mode=0o755)
    words = (
        SMALL,
        "--image",
        IMAGE,
        "--model",
        places["model"],
        "--draft",
        places["draft"],
        "--job-dir",
        places["job"],
    )
    for to, name in (("script", "run.sh"), ("policy", "policy.json")):
        (places["job"] / name).write_text(rendered(*words, to=to))
    Path("/run/lock/k25stack").mkdir(parents=True, exist_ok=True)
    job = slurm.submit(rendered(*words), tmp_path)
    assert slurm.end(job) == ("FAILED", "3:0")
    said = (tmp_path / f"smollm2-cpu.own-{job}.log").read_text()
    assert "error: /models/target" in said and "error: image: it has no k25stack-watch" in said
    assert "not started" in said
    assert docker_twin.docker("ps", "-aq", "--filter", "label=org.k25stack.run=smollm2-cpu").stdout == ""
    docker_twin.docker("volume", "rm", "cache", "runs", check=False)
