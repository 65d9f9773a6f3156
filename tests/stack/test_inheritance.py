"""``extends`` for files and for profiles: deep merge, taking away, circles, and what is not inherited."""

from __future__ import annotations

from pathlib import Path

import pytest

from k25stack.errors import StackError
from k25stack.stack import Stack, load_stack
from tests.stack.conftest import STACKS, Spoil


def extend(tmp_path: Path, body: str, base: str = "smollm2-cpu") -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {STACKS / base}.yaml\n{body}", encoding="utf-8")
    return path


def load(tmp_path: Path, body: str, base: str = "smollm2-cpu") -> Stack:
    return load_stack(extend(tmp_path, body, base))


def test_an_empty_extension_is_the_base(tmp_path: Path) -> None:
    assert load(tmp_path, "") == load_stack(STACKS / "smollm2-cpu.yaml")


def test_mappings_merge_and_lists_are_replaced(tmp_path: Path) -> None:
    stack = load(tmp_path, "name: mine\ntraining: {epochs: 9, optimizer: {lr: 0.02}}\nbench: {concurrency: [2]}\n")
    base = load_stack(STACKS / "smollm2-cpu.yaml")
    assert (stack.name, stack.training.epochs, stack.training.optimizer.lr) == ("mine", 9, 0.02)
    assert stack.training.optimizer.warmup_steps == base.training.optimizer.warmup_steps
    assert stack.bench.concurrency == (2,)
    assert stack.bench.repeats == base.bench.repeats


def test_another_kind_replaces_the_whole_source(tmp_path: Path) -> None:
    stack = load(tmp_path, "target: {source: {kind: dir, path: models/mine}}\n")
    assert stack.target.source.model_dump() == {"kind": "dir", "path": "models/mine"}


def test_a_base_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "middle.yaml").write_text(f"extends: {STACKS}/smollm2-cpu.yaml\ntraining: {{seed: 1}}\n")
    (tmp_path / "top.yaml").write_text("extends: sub/middle.yaml\nname: top\n")
    stack = load_stack(tmp_path / "top.yaml")
    assert (stack.name, stack.training.seed) == ("top", 1)


def test_an_error_in_the_base_names_the_base(tmp_path: Path, spoil: Spoil) -> None:
    base = spoil("steps: 3", "stpes: 3")
    path = tmp_path / "top.yaml"
    path.write_text("extends: spoiled.yaml\nname: top\n")
    with pytest.raises(StackError) as caught:
        load_stack(path)
    assert str(caught.value).startswith(f"{base}:")


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("extends: none.yaml\n", "no file 'none.yaml' to extend"),
        ("extends: [a.yaml]\n", "extends names one stack file"),
        ("extends: top.yaml\n", "extends goes in a circle: top.yaml -> top.yaml"),
    ],
)
def test_a_link_that_leads_nowhere(tmp_path: Path, body: str, what: str) -> None:
    path = tmp_path / "top.yaml"
    path.write_text(body)
    with pytest.raises(StackError, match=r"top\.yaml:1:10: " + what.replace("[", r"\[")):
        load_stack(path)


def test_a_circle_of_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(StackError, match=r"circle: a\.yaml -> b\.yaml -> a\.yaml"):
        load_stack(tmp_path / "a.yaml")


PROFILES = """
serving:
  profiles:
    first:
      extends: own
      argv: {x: 1, y: 2, list: [1, 2]}
      env: {A: '1', B: '2'}
      notes: [of the first]
    second:
      extends: first
      argv: {y: null, z: true, list: [3]}
      env: {A: null, C: '3'}
      speculative: {k: 2}
"""


def test_a_profile_takes_over_changes_and_takes_away(tmp_path: Path) -> None:
    second = load(tmp_path, PROFILES).profile("second")
    assert second.argv == {"x": 1, "list": (3,), "z": True}
    assert second.env == {"B": "2", "C": "3"}
    assert second.max_running == 16
    assert second.speculative is not None
    assert (second.speculative.k, second.speculative.draft, second.speculative.rows) == (2, "own", 3)


def test_role_and_notes_are_a_profiles_own(tmp_path: Path) -> None:
    stack = load(tmp_path, PROFILES)
    assert (stack.profile("own").role, stack.profile("first").role) == ("draft", "none")
    assert (stack.profile("first").notes, stack.profile("second").notes) == (("of the first",), ())


def test_a_profile_of_the_base_may_be_extended_and_changed(tmp_path: Path) -> None:
    stack = load(tmp_path, "serving: {profiles: {baseline: {max_running: 4}}}\n")
    assert {profile.max_running for profile in stack.serving.profiles.values()} == {4}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("{a: {extends: a}}", "circle: a -> a"),
        ("{a: {extends: b}, b: {extends: a}}", "circle: a -> b -> a"),
        ("{a: {extends: 5}}", "extends names one profile"),
        ("{a: {extends: ownn}}", "no profile 'ownn' to extend"),
        ("{a: {extends: own, engine: vllm}}", "a profile of another engine"),
    ],
)
def test_profile_links_that_lead_nowhere(tmp_path: Path, body: str, what: str) -> None:
    with pytest.raises(StackError, match=what):
        load(tmp_path, f"serving: {{profiles: {body}}}\n")


def test_version_and_image_come_from_the_engine_unless_named(tmp_path: Path) -> None:
    body = "serving: {profiles: {newer: {extends: sglang-nccl, version: 0.5.23}}}\n"
    stack = load(tmp_path, body, "kimi-k2.5-8x-rtx-pro-6000")
    assert (stack.profile("sglang-nccl").version, stack.profile("sglang-nccl").image) == ("0.5.20", "sglang-0.5.20")
    assert (stack.profile("newer").version, stack.profile("newer").image) == ("0.5.23", None)


def test_a_stack_never_changes(tmp_path: Path) -> None:
    from pydantic import ValidationError

    stack = load(tmp_path, "")
    with pytest.raises(ValidationError):
        stack.training.seed = 5  # type: ignore[misc]
