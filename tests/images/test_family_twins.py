"""What is built on an engine: SGLang, vLLM and the trainer, by the command that people use, on one base in small."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from docker_twin import DockerTwin

from k25stack.errors import HostError
from k25stack.stack.build import Built, Wanted, build, content_key
from k25stack.stack.images import read_lock
from tests.images.conftest import EPOCH, MARK, blobs, sealed

pytestmark = [pytest.mark.twins, pytest.mark.timeout(900)]
FAMILY = {"sglang": "sglang", "vllm": "vllm", "train": "sglang"}  # image -> its engine's package
INSTALLED = (
    "import importlib.metadata as m, json, sysconfig; site = sysconfig.get_paths()['purelib']\n"
    "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in m.distributions(path=[site])}))"
)
PATCH = """--- a/ENGINE/__init__.py
+++ b/ENGINE/__init__.py
@@ -3,1 +3,1 @@
-ANSWER = 41
+ANSWER = 42
"""


@dataclass(frozen=True)
class Made:
    name: str
    tag: str
    archive: Path
    said: dict[str, object]  # what the command printed

    @property
    def engine(self) -> str:
        return FAMILY[self.name]


@pytest.fixture(scope="module", params=list(FAMILY))
def made(
    request: pytest.FixtureRequest, wanted: Wanted, engine: tuple[Built, Path], tree: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Made:  # fmt: skip
    """Built by ``k25stack stack build``; what the first image made is taken from the cache."""
    name, tag = request.param, f"k25-images/{request.param}:family"
    archive = tmp_path_factory.mktemp("archive") / f"{name}.tar"
    given = {"PIP_CERT": wanted.ca_bundle, "PIP_CONFIG_FILE": wanted.pip_conf, "SOURCE_DATE_EPOCH": str(EPOCH)}
    words = ["stack", "build", name, "--base", wanted.base, "--tag", tag, "--archive", str(archive), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "k25stack", *words], cwd=tree, text=True, capture_output=True, timeout=600,
        env={**os.environ, **given, "PYTHONPATH": str(tree)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Made(name, tag, archive, json.loads(done.stdout))


def test_each_is_an_ordinary_user_with_the_engine_as_it_was_and_our_programs(
    docker_twin: DockerTwin, made: Made
) -> None:
    assert sealed(docker_twin, made.tag, "id", "-u").strip() == "10001"
    assert "k25stack" in sealed(docker_twin, made.tag, "k25stack", "--help")
    assert "--policy" in sealed(docker_twin, made.tag, "k25stack-watch", "--help")
    ours = f"import {made.engine}, pydantic, k25stack; print({made.engine}.answer(), pydantic.__file__)"
    assert sealed(docker_twin, made.tag, "/opt/k25stack/bin/python", "-c", ours).startswith("41 /opt/k25stack/lib/")
    assert "No module named 'pydantic'" in sealed(
        docker_twin, made.tag, "python3", "-c", "import pydantic", check=False
    )


def test_each_says_what_it_is_and_what_it_was_made_from(docker_twin: DockerTwin, made: Made, wanted: Wanted) -> None:
    config = json.loads(docker_twin.docker("image", "inspect", "--format", "{{json .Config}}", made.tag).stdout)
    lock = read_lock()
    pin = lock.pin(lock.build(made.name).base)
    labels = {name.removeprefix("org."): value for name, value in config["Labels"].items()}
    assert labels == {
        "opencontainers.image.title": f"k25stack/{made.name}",
        "opencontainers.image.licenses": "Apache-2.0",
        "opencontainers.image.base.name": wanted.base,
        "opencontainers.image.base.digest": "",
        "opencontainers.image.revision": "unknown",
        "k25stack.engine": made.engine,
        "k25stack.engine.version": pin.version,
        "k25stack.cuda": pin.cuda,
        "k25stack.min-driver": pin.min_driver,
    }
    assert (config["User"], config.get("Entrypoint") or []) == ("10001:10001", [])
    assert f"K25_IMAGE_KEY={made.said['key']}" in config["Env"]


def test_what_was_installed_is_what_is_locked(docker_twin: DockerTwin, made: Made, tree: Path) -> None:
    locked = re.findall(r"(?m)^([\w.-]+)==([^ ;\\]+)", (tree / "images/own/requirements.lock").read_text())
    there = json.loads(sealed(docker_twin, made.tag, "/opt/k25stack/bin/python", "-c", INSTALLED))
    assert there and there.items() <= {(name.lower(), version) for name, version in locked}
    package = sealed(docker_twin, made.tag, "sh", "-c", "ls -d /opt/k25stack/package/*.dist-info").split()
    assert len(package) == 1 and "k25stack" in package[0], "beside them nothing but our own wheel"


def test_no_layer_and_no_history_holds_what_was_handed_to_the_build(docker_twin: DockerTwin, made: Made) -> None:
    searched = 0
    for content in blobs(made.archive):
        searched += len(content)
        assert MARK.encode() not in content
    assert searched > 100_000_000, "base and all"
    assert MARK not in docker_twin.docker("history", "--no-trunc", made.tag).stdout


def test_the_layers_are_those_of_the_first_but_for_the_label(
    docker_twin: DockerTwin, made: Made, engine: tuple[Built, Path]
) -> None:
    def roots(tag: str) -> list[str]:
        return list(json.loads(docker_twin.docker("image", "inspect", "-f", "{{json .RootFS.Layers}}", tag).stdout))

    assert roots(made.tag) == roots(engine[0].tag), "a machine that has one need not fetch the other"


@pytest.mark.parametrize("name", list(FAMILY))
def test_a_patch_is_applied_or_ends_the_build(
    name: str, wanted: Wanted, docker_twin: DockerTwin, engine: tuple[Built, Path], tree: Path, tmp_path: Path
) -> None:
    package = FAMILY[name]
    shutil.copytree(tree, tmp_path / "tree")

    def built(diff: str, image: str = name) -> Built:
        text = diff.replace("ENGINE", package)
        digest = hashlib.sha256(text.encode()).hexdigest()
        header = f"Image: {image}\nUpstream: https://github.com/{package}/{package}/pull/1\nSha256: {digest}\n\n"
        (tmp_path / "tree/images/patches/answer.patch").write_text(header + text)
        return build(name, replace(wanted, tag=f"k25-images/{name}:patched"), lambda line: None, tmp_path / "tree")

    def answer(image: str) -> str:
        return sealed(docker_twin, image, "python3", "-c", f"import {package}; print({package}.answer())").strip()

    def key(image: str) -> str:
        return sealed(docker_twin, image, "sh", "-c", "echo $K25_IMAGE_KEY").strip()

    plain = content_key(read_lock(), name, wanted, tree)
    made = built(PATCH)
    assert answer(made.tag) == "42"
    assert key(made.tag) == made.key != plain, "its kernels are kept apart from those of the image without the patch"
    with pytest.raises(HostError, match=rf"answer\.patch: does not apply to {package}/__init__\.py at line 3"):
        built(PATCH.replace("-ANSWER = 41", "-ANSWER = 40"))
    with pytest.raises(HostError, match=r"answer\.patch: obsolete: .*\(delete the patch\)"):
        built(PATCH.replace("-ANSWER = 41", "-ANSWER = 40").replace("+ANSWER = 42", "+ANSWER = 41"))
    left_alone = built(PATCH, "proxy")
    assert (answer(left_alone.tag), key(left_alone.tag)) == ("41", plain), "a patch of another image changes nothing"
    docker_twin.docker("image", "rm", made.tag)


@pytest.mark.parametrize("made", ["train"], indirect=True)
def test_a_step_that_is_rendered_for_a_node_finds_its_program_and_its_files(
    docker_twin: DockerTwin, made: Made, tmp_path: Path
) -> None:
    docker_twin.docker("tag", made.tag, "k25stack/train-twin:local")
    stack = Path(__file__).resolve().parents[2] / "stacks/smollm2-cpu.yaml"
    words = ["stack", "render", str(stack), "--step", "prompts", "--to", "sbatch", "--image"]
    text = subprocess.run(
        [sys.executable, "-m", "k25stack", *words, "k25stack/train-twin:local"], cwd=tmp_path, text=True,
        capture_output=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    place = tmp_path / "runs/RUN/steps/KEY"
    place.mkdir(parents=True)
    (place / "spec.json").write_text('{"params": {}}')
    here = text.replace("srun --kill-on-bad-exit=1 --", "")  # Slurm itself: tests/jobs/test_slurm.py
    done = subprocess.run(["bash", "-c", here], cwd=tmp_path, text=True, capture_output=True, timeout=60)
    docker_twin.docker("image", "rm", "k25stack/train-twin:local")
    assert (done.returncode, done.stderr) == (
        2,
        "error: runs/RUN/steps/KEY/spec.json: not a step spec: 'inputs' is missing\n",
    )
