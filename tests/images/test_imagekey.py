"""The key of an image changes with each thing that decides the image, and with nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from k25stack.stack.build import CONTEXT, Wanted, build_argv, content_key
from k25stack.stack.imagekey import sources
from k25stack.stack.images import LOCK, read_lock

ROOT = LOCK.parents[1]
NAMES = list(read_lock().builds)
ENGINES = ("sglang", "vllm", "train")
PATCH = "Image: {}\nUpstream: https://github.com/o/n/pull/1\nSha256: 0\n\n--- a/x.py\n+++ b/x.py\n"


PINNED = Wanted()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What images are made of, with little of our package."""

    def without_rooms(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if (Path(folder) / name).is_dir()] if folder == str(ROOT / "k25stack") else []

    place = tmp_path_factory.mktemp("original")
    for name in (*CONTEXT, ".dockerignore"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=without_rooms)
        else:
            shutil.copy2(ROOT / name, place / name)
    return place


@pytest.fixture
def tree(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "tree")
    return tmp_path / "tree"


def keys(root: Path, wanted: Wanted = PINNED) -> dict[str, str]:
    lock = read_lock(root / "images/lock.yaml")
    return {name: content_key(lock, name, wanted, root) for name in NAMES}


def changed(root: Path, before: dict[str, str], wanted: Wanted = PINNED) -> set[str]:
    after = keys(root, wanted)
    return {name for name in NAMES if after[name] != before[name]}


def test_it_is_twelve_hex_digits_of_one_image_wherever_the_checkout_lies(original: Path, tree: Path) -> None:
    before = keys(original)
    assert all(re.fullmatch(r"[0-9a-f]{12}", key) for key in before.values()), "what run.sh takes"
    assert len(set(before.values())) == len(NAMES)
    assert keys(tree) == before


@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("images/own/requirements.lock", {*NAMES}),  # wheel lock; proxy and monitoring mount its directory
        ("images/own/patches.py", {*NAMES}),
        ("images/common/bytecode.sh", {*NAMES}),
        ("images/engine/Dockerfile", {*ENGINES}),
        ("images/cpu/Dockerfile", {"cpu"}),
        ("images/cpu/requirements.lock", {"cpu"}),
        ("images/proxy/Dockerfile", {"proxy"}),
        ("requirements-torch.lock", {"cpu"}),
        ("k25stack/errors.py", {*ENGINES, "cpu"}),
        ("pyproject.toml", {*ENGINES, "cpu"}),
        ("images/patches/README.md", set()),  # not in the build's context
        ("images/parsers/build.py", set()),
    ],
)
def test_it_changes_with_every_file_that_goes_into_the_image_and_no_other(
    file: str, images: set[str], original: Path, tree: Path
) -> None:
    path = tree / file
    path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert changed(tree, keys(original)) == images


def test_it_changes_with_a_patch_of_this_image_alone(original: Path, tree: Path) -> None:
    patch = tree / "images/patches/answer.patch"
    patch.write_text(PATCH.format("sglang"), encoding="utf-8")
    assert changed(tree, keys(original)) == {"sglang"}, "train has the same base and Dockerfile"
    one = keys(tree)
    patch.write_text(PATCH.format("sglang") + "+another\n", encoding="utf-8")
    assert changed(tree, one) == {"sglang"}
    patch.write_text("no header\n", encoding="utf-8")
    assert changed(tree, keys(original)) == {*ENGINES}, "it would end each of these builds"


def test_it_changes_with_the_base(original: Path, tree: Path) -> None:
    lock = tree / "images/lock.yaml"
    pin = read_lock(lock).pin("vllm-0.31.0")
    lock.write_text(lock.read_text(encoding="utf-8").replace(str(pin.digest), "sha256:" + "ab" * 32), encoding="utf-8")
    assert changed(tree, keys(original)) == {*ENGINES, "cpu"}, "the pins themselves are in the images with our programs"
    lock.write_bytes((original / "images/lock.yaml").read_bytes())
    other = Wanted(base="them/other@sha256:" + "cd" * 32)
    assert changed(tree, keys(original), other) == {*NAMES}
    assert keys(tree, other) == keys(tree, Wanted(base="mirror/other@sha256:" + "cd" * 32)), "a name is no content"


def test_it_changes_with_what_chooses_packages_and_not_with_how_it_is_built(original: Path, tree: Path) -> None:
    before = keys(original)
    assert changed(tree, before, Wanted(snapshot="20261101T000000Z")) == {*NAMES}
    how = Wanted(tag="x:1", ca_bundle="/a", pip_conf="/b", archive="/o", no_cache=True, containerd=True)
    assert changed(tree, before, how) == set()


def test_modes_and_names_count_times_and_compiled_files_do_not(original: Path, tree: Path) -> None:
    before = keys(original)
    (tree / "k25stack/__pycache__").mkdir()
    (tree / "k25stack/__pycache__/errors.cpython-311.pyc").write_bytes(b"x")
    (tree / "k25stack/errors.py").touch()
    (tree / "k25stack/errors.py").chmod(0o664)
    assert changed(tree, before) == set()
    (tree / "k25stack/errors.py").chmod(0o755)
    assert changed(tree, before) == {*ENGINES, "cpu"}
    (tree / "k25stack/errors.py").chmod(0o644)
    (tree / "k25stack/errors.py").rename(tree / "k25stack/errors_.py")
    assert changed(tree, before) == {*ENGINES, "cpu"}


def test_what_a_dockerfile_takes_from_the_checkout_is_found() -> None:
    text = (ROOT / "images/engine/Dockerfile").read_text(encoding="utf-8")
    assert set(sources(text)) == {
        "images/common", "images/own", "images/patches", "pyproject.toml", "README.md", "LICENSE", "k25stack",
        "images/lock.yaml",
    }  # fmt: skip
    for build in read_lock().builds.values():
        named = list(sources((ROOT / build.file).read_text(encoding="utf-8")))
        assert named and all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_of_a_build_shows_it(name: str) -> None:
    lock = read_lock()
    key = content_key(lock, name, Wanted())
    assert f"KEY={key}" in build_argv(lock, name, Wanted(), "r", key=key)


def test_the_script_of_a_job_keeps_kernels_by_it() -> None:
    template = (ROOT / "templates/script.sh.j2").read_text(encoding="utf-8")
    (line,) = [line for line in template.splitlines() if "K25_IMAGE_KEY" in line]
    for key, directory in (("0123456789ab", "/c/0123456789ab"), ("", "/c/base"), ("../../x", "/c/base")):
        said = subprocess.run(
            ["bash", "-uc", f"jit=/c/base; {line}\necho $jit"], env={"K25_IMAGE_KEY": key}, text=True,
            capture_output=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        assert said.strip() == directory
