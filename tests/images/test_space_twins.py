"""Images for which there is no room: a pull and a build on an engine whose data directory is a small tmpfs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docker_twin import DockerTwin

from k25stack.errors import HostError
from k25stack.stack import pull
from k25stack.stack.build import Wanted, build
from k25stack.stack.host import Image
from k25stack.stack.registry import resolve
from tests.jobs.engines import TINY, SmallEngine

pytestmark = [pytest.mark.twins, pytest.mark.timeout(300)]


@pytest.fixture
def small(docker_twin: DockerTwin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallEngine]:
    engine = SmallEngine(tmp_path, "32m")
    engine.start()
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    try:
        yield engine
    finally:
        engine.clear()


@pytest.fixture
def pushed(docker_twin: DockerTwin, stub: str, registry: str) -> Image:
    ref = f"{registry}/k25/large:1"
    docker_twin.docker("tag", stub, ref)
    docker_twin.docker("push", "--quiet", ref, timeout_s=300)
    docker_twin.docker("image", "rm", ref)
    return Image(ref=ref, digest=resolve(ref).digest, kind="manifest", sources=0, resolved=True)


def test_a_pull_names_the_full_disk_and_goes_on_once_it_is_larger(pushed: Image, small: SmallEngine) -> None:
    with pytest.raises(HostError) as caught:
        pull.pull(pushed)
    assert f"no space left on the disk of {small.data} (free some there" in str(caught.value)
    assert small.docker("image", "ls", "-q").stdout == "", "what came is no image"
    small.resize("512m")
    pull.pull(pushed)


def test_a_build_names_the_full_disk(small: SmallEngine, wanted: Wanted, tree: Path) -> None:
    small.image()
    (tree / "images/patches/fill.bin").write_bytes(os.urandom(64 << 20))
    try:
        with pytest.raises(HostError) as caught:
            build("sglang", replace(wanted, base=TINY, tag="k25-images/full:x"), lambda line: None, tree)
    finally:
        (tree / "images/patches/fill.bin").unlink()
    assert str(small.data) in str(caught.value) and "no space left on device" in str(caught.value)
    assert "(free some there: docker builder prune, docker image prune)" in str(caught.value)
    assert small.docker("image", "ls", "-q", "k25-images/full").stdout == ""
