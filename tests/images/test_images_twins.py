"""Our images, built and run for real on a Docker Engine, pushed to and pinned from a real registry."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from docker_twin import DockerTwin

from k25stack.errors import DriftError, HostError
from k25stack.stack import pull
from k25stack.stack.build import Built, Wanted, build, layers
from k25stack.stack.host import Image
from k25stack.stack.images import read_lock
from k25stack.stack.pins import ask, write_pins
from k25stack.stack.registry import resolve
from tests.images.conftest import MARK, blobs, sealed

pytestmark = [pytest.mark.twins, pytest.mark.timeout(900)]


def test_it_runs_as_an_ordinary_user_on_a_read_only_root(docker_twin: DockerTwin, engine: tuple[Built, Path]) -> None:
    tag = engine[0].tag
    assert sealed(docker_twin, tag, "sh", "-c", "id -u; id -g; echo $HOME").split() == ["10001", "10001", "/tmp"]
    assert "k25stack" in sealed(docker_twin, tag, "k25stack", "--help")
    assert "--policy" in sealed(docker_twin, tag, "k25stack-watch", "--help")
    assert "Read-only file system" in sealed(docker_twin, tag, "sh", "-c", "touch /opt/x", check=False)
    for place in ("/models", "/etc/k25stack", "/opt/k25stack", "/usr/local/bin"):
        said = docker_twin.docker("run", "--rm", tag, "touch", f"{place}/x", check=False)
        assert "Permission denied" in said.stderr, f"{place} is not the user's, read-only root or not"


def test_the_engine_keeps_its_own_packages_and_ours_see_both(
    docker_twin: DockerTwin, engine: tuple[Built, Path]
) -> None:
    tag = engine[0].tag
    ours = "import sglang, pydantic, k25stack; print(sglang.answer(), pydantic.__file__)"
    assert sealed(docker_twin, tag, "/opt/k25stack/bin/python", "-c", ours).startswith("41 /opt/k25stack/lib/")
    theirs = sealed(docker_twin, tag, "python3", "-c", "import sglang, pydantic", check=False)
    assert "No module named 'pydantic'" in theirs, "nothing was installed into the engine's environment"
    pins = "from k25stack.stack.images import read_lock; print(len(read_lock().images))"
    assert int(sealed(docker_twin, tag, "/opt/k25stack/bin/python", "-c", pins)) == len(read_lock().images)


def test_labels_say_what_it_is(docker_twin: DockerTwin, engine: tuple[Built, Path]) -> None:
    told = json.loads(docker_twin.docker("image", "inspect", "--format", "{{json .Config}}", engine[0].tag).stdout)
    assert told["User"] == "10001:10001"
    ours = [what for _, what in engine[0].layers]
    assert ours[0].startswith("RUN") and "COPY /opt/k25stack/package" in ours[-2], "ours alone, our code last"
    assert not told.get("Entrypoint"), "the base's entrypoint is gone"
    assert f"K25_IMAGE_KEY={engine[0].key}" in told["Env"] and re.fullmatch(r"[0-9a-f]{12}", engine[0].key)
    labels = told["Labels"]
    pin = read_lock().pin("sglang-0.5.20")
    assert labels["org.opencontainers.image.title"] == "k25stack/sglang"
    assert labels["org.opencontainers.image.revision"] == "unknown", "the copied tree is no checkout"
    assert (labels["org.k25stack.engine"], labels["org.k25stack.engine.version"]) == ("sglang", "0.5.20")
    assert (labels["org.k25stack.cuda"], labels["org.k25stack.min-driver"]) == (pin.cuda, pin.min_driver)


def test_two_builds_without_a_cache_are_the_same_bytes(
    wanted: Wanted, engine: tuple[Built, Path], tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = replace(wanted, tag="k25-images/sglang:test", archive=str(tmp_path / "again.tar"), no_cache=True)
    again = build("sglang", asked, lambda line: None, tree)
    assert (again.digest, again.key) == (engine[0].digest, engine[0].key)
    assert (
        hashlib.sha256((tmp_path / "again.tar").read_bytes()).digest()
        == hashlib.sha256(engine[1].read_bytes()).digest()
    )
    with capsys.disabled():
        print("\nour layers:", ", ".join(f"{size} {what[:60]}" for size, what in layers(again.tag)))


def test_no_secret_is_in_a_layer(wanted: Wanted, engine: tuple[Built, Path]) -> None:
    assert MARK in Path(wanted.ca_bundle).read_text() and MARK in Path(wanted.pip_conf).read_text()
    searched = 0
    for content in blobs(engine[1]):
        searched += len(content)
        assert MARK.encode() not in content
    assert searched > 100_000_000, "base and all"


def test_push_pin_pull_and_compose_by_digest(
    docker_twin: DockerTwin, engine: tuple[Built, Path], registry: str, tree: Path, tmp_path: Path
) -> None:
    ref = f"{registry}/k25/engine:1"
    docker_twin.docker("tag", engine[0].tag, ref)
    docker_twin.docker("push", "--quiet", ref, timeout_s=300)
    docker_twin.docker("image", "rm", ref)
    lock = tmp_path / "lock.yaml"
    lock.write_text(
        f"format: 1\nimages:\n  engine-1:\n    ref: {ref}\n    digest: null # not yet\n    kind: manifest\n"
        "    sources: 0\n    resolved: false\n"
    )
    answers = ask((), lock)
    assert [answer.verdict for answer in answers] == ["new"]
    assert write_pins(answers, lock) == ["engine-1"]
    pin = read_lock(lock).pin("engine-1")
    assert (pin.resolved, pin.digest) == (True, engine[0].digest)
    assert "# not yet" in lock.read_text()
    assert [answer.verdict for answer in ask((), lock)] == ["same"]

    image = Image(ref=ref, digest=str(pin.digest), kind="manifest", sources=0, resolved=True)
    pull.pull(image)
    (tmp_path / "compose.yaml").write_text(
        f"services: {{app: {{image: '{pin.repository}@{pin.digest}', network_mode: none, read_only: true}}}}\n"
    )
    done = docker_twin.docker(
        "compose", "-p", "k25-images", "-f", str(tmp_path / "compose.yaml"), "run", "--rm", "app", "id", "-u"
    )
    assert done.stdout.strip() == "10001"

    assert said(tree, lock, tmp_path, "pin", "--check")[0] == 0
    # Somebody moves the tag.
    docker_twin.docker("tag", "k25-images/stub:1", ref)
    docker_twin.docker("push", "--quiet", ref, timeout_s=300)
    moved = ask((), lock)
    assert [answer.verdict for answer in moved] == ["moved"]
    assert f"the pin is {pin.digest}" in moved[0].line()
    code, out = said(tree, lock, tmp_path, "pin", "--check")
    assert (code, "the tag means sha256:" in out) == (4, True)
    assert said(tree, lock, tmp_path, "pin", "-n")[0] == 0
    assert read_lock(lock).pin("engine-1") == pin, "neither looks nor dry runs write"
    with pytest.raises(DriftError, match="the tag means another image here"):
        pull.verify(image)
    docker_twin.docker("image", "rm", ref)
    pull.pull(image)

    with pytest.raises(HostError, match=r"the registry has no image of this digest \(look at the pin"):
        pull.pull(image.model_copy(update={"digest": "sha256:" + "0" * 64}))
    with pytest.raises(HostError, match="no such tag"):
        resolve(f"{registry}/k25/engine:2")
    docker_twin.docker("image", "rm", f"{pin.repository}@{pin.digest}", check=False)
    lock.write_text(lock.read_text().replace(registry, "127.0.0.1:9"))
    code, out = said(tree, lock, tmp_path, "pin")
    assert (code, "not resolved, stays as it was: 127.0.0.1:9 cannot be reached" in out) == (3, True)
    assert read_lock(lock).pin("engine-1").digest == pin.digest


def said(tree: Path, lock: Path, place: Path, *words: str) -> tuple[int, str]:
    """Exit code and stdout of ``k25stack stack ...`` in a tree with this lock."""
    (place / "tree/images").mkdir(parents=True, exist_ok=True)
    if not (place / "tree/k25stack").exists():
        shutil.copytree(tree / "k25stack", place / "tree/k25stack")
    shutil.copy(lock, place / "tree/images/lock.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "k25stack", "stack", *words], cwd=place, text=True, capture_output=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(place / "tree")},
    )  # fmt: skip
    shutil.copy(place / "tree/images/lock.yaml", lock)
    return done.returncode, done.stdout
