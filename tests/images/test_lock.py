"""images/lock.yaml is the one source of pins: stacks take theirs from it, and writing a digest changes nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k25stack.errors import HostError, StackError, UsageError
from k25stack.stack import dump_stack, load_stack
from k25stack.stack import images as pins
from k25stack.stack.images import LOCK, read_lock, rewrite, split_ref
from k25stack.stack.pins import ask, write_pins
from k25stack.stack.registry import Resolved, address

ROOT = LOCK.parents[1]
OTHER = "sha256:" + "ab" * 32


def stack_file(tmp_path: Path, image: str, more: str = "") -> Path:
    file = tmp_path / "stack.yaml"
    base = (ROOT / "stacks/smollm2-cpu.yaml").resolve()
    link = Path(*[".."] * len(tmp_path.parts[1:]), *base.parts[1:])
    file.write_text(
        f"extends: {link}\nname: pinned\n{more}engines:\n  vllm: {{version: 0.31.0, image: {image}}}\n",
        encoding="utf-8",
    )
    return file


def test_a_stack_gets_the_pin_that_it_names_and_keeps_it(tmp_path: Path) -> None:
    stack = load_stack(stack_file(tmp_path, "vllm-0.31.0"))
    pin = read_lock().pin("vllm-0.31.0")
    assert list(stack.images) == ["vllm-0.31.0"], "only what is named"
    image = stack.images["vllm-0.31.0"]
    assert (image.ref, image.digest, image.cuda, image.min_driver) == (pin.ref, pin.digest, pin.cuda, pin.min_driver)
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump_stack(stack), encoding="utf-8")
    assert str(pin.digest) in resolved.read_text(encoding="utf-8")
    assert load_stack(resolved) == stack


def test_a_stack_may_describe_an_image_itself(tmp_path: Path) -> None:
    own = f"images:\n  vllm-0.31.0: {{ref: own/vllm:1, digest: {OTHER}, sources: 0, resolved: true}}\n"
    assert load_stack(stack_file(tmp_path, "vllm-0.31.0", own)).images["vllm-0.31.0"].digest == OTHER


def test_an_image_without_a_digest_is_refused_with_the_command_that_pins_it(tmp_path: Path) -> None:
    refused = r"stack.yaml:4:\d+: image 'dcgm-exporter' has no digest.*pin it: k25stack stack pin dcgm-exporter"
    with pytest.raises(StackError, match=refused):
        load_stack(stack_file(tmp_path, "dcgm-exporter"))
    with pytest.raises(StackError, match="no image 'vllm-9' under images"):
        load_stack(stack_file(tmp_path, "vllm-9"))


def test_the_lock_is_as_strict_as_a_stack(tmp_path: Path) -> None:
    text = LOCK.read_text(encoding="utf-8")
    unknown = r"images.sglang-0.5.20.source: unknown key.* \(did you mean sources\?\)"
    for old, new, message in [
        ("    sources: 4\n", "    source: 4\n", unknown),
        ("base: vllm-0.31.0", "base: vllm", r"builds.vllm.base: no image 'vllm' under images"),
        ('cuda: "13.0"', "cuda: 13.0", r"should be text, not 13.0 \(put it in quotes\)"),
        ("digest: sha256:06e4", "digest: sha256:xx", "does not match"),
        ("sources: 0\n    resolved: false", "sources: 0\n    resolved: true", "resolved without a digest"),
    ]:  # fmt: skip
        assert old in text, old
        (tmp_path / "lock.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(StackError, match=rf"lock.yaml:\d+:\d+: .*{message}"):
            read_lock(tmp_path / "lock.yaml")
    with pytest.raises(StackError, match="no such file: the image pins"):
        read_lock(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", list(read_lock().images))
def test_writing_a_digest_changes_that_line_alone(name: str, tmp_path: Path) -> None:
    before = LOCK.read_text(encoding="utf-8")
    after = rewrite(before, name, {"digest": OTHER, "resolved": "true"})
    changed = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
    assert [b.strip() for _, b in changed] == [f"digest: {OTHER}", "resolved: true"]
    (tmp_path / "lock.yaml").write_text(after, encoding="utf-8")
    found = read_lock(tmp_path / "lock.yaml")
    assert found.pin(name) == read_lock().pin(name).model_copy(update={"digest": OTHER, "resolved": True})
    assert {key: pin for key, pin in found.images.items() if key != name} == {
        key: pin for key, pin in read_lock().images.items() if key != name
    }


def test_what_cannot_be_resolved_says_so_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "lock.yaml"
    path.write_bytes(LOCK.read_bytes())
    first = read_lock(path).pin("sglang-0.5.20")

    def registry(ref: str) -> Resolved:
        if ref == first.ref:
            return Resolved(str(first.digest), "index")
        if ref.startswith("vllm/"):
            return Resolved(OTHER, "index")
        raise HostError("cannot be reached", remedy="network")

    answers = {answer.name: answer for answer in ask((), path, registry)}
    verdicts = {name: answer.verdict for name, answer in answers.items()}
    assert (verdicts["sglang-0.5.20"], verdicts["vllm-0.31.0"], verdicts["grafana-12.3.0"]) == (
        "same",
        "moved",
        "unresolved",
    )
    assert "stays as it was: cannot be reached (network)" in answers["grafana-12.3.0"].line()
    assert write_pins(list(answers.values()), path) == ["sglang-0.5.20", "vllm-0.31.0"]
    after = read_lock(path)
    assert (after.pin("sglang-0.5.20").resolved, after.pin("vllm-0.31.0").digest) == (True, OTHER)
    assert after.pin("grafana-12.3.0") == read_lock().pin("grafana-12.3.0")
    assert write_pins(ask((), path, registry), path) == [], "a second time changes nothing"
    with pytest.raises(UsageError, match=r"no image 'sglang'.*there are sglang-0\.5\.20"):
        ask(("sglang",), path, registry)


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("debian:bookworm-slim", ("registry-1.docker.io", "library/debian", "bookworm-slim")),
        ("debian", ("registry-1.docker.io", "library/debian", "latest")),
        ("docker.io/lmsysorg/sglang:v1", ("registry-1.docker.io", "lmsysorg/sglang", "v1")),
        ("nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3", ("nvcr.io", "nvidia/k8s/dcgm-exporter", "4.5.3")),
        ("127.0.0.1:5055/own/thing", ("127.0.0.1:5055", "own/thing", "latest")),
        ("localhost/own/thing:2", ("localhost", "own/thing", "2")),
    ],
)
def test_references_are_read_as_docker_reads_them(ref: str, parts: tuple[str, str, str]) -> None:
    assert address(ref) == parts


def test_a_port_is_no_tag() -> None:
    assert split_ref("127.0.0.1:5055/own/thing") == ("127.0.0.1:5055/own/thing", "latest")


def test_no_digest_stands_anywhere_else() -> None:
    digests = {str(pin.digest).removeprefix("sha256:") for pin in read_lock().images.values() if pin.digest}
    files = [path for path in (ROOT / "images").rglob("*") if path.is_file() and path != LOCK]
    assert [path for path in files if any(digest in path.read_text(errors="replace") for digest in digests)] == []


def test_names_of_our_own_images() -> None:
    assert list(read_lock().builds) == ["sglang", "vllm", "train", "cpu", "proxy", "monitoring"]
    assert all((ROOT / build.file).is_file() for build in read_lock().builds.values())
    assert re.fullmatch(r"k25stack/\{\}:local", pins.OWN)
