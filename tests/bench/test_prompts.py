"""Held-out prompts are replayed to the token, in a seeded order."""

from __future__ import annotations

from pathlib import Path

import pytest

from k25stack.bench.prompts import from_samples, questions
from k25stack.errors import DamageError, UsageError

from .conftest import sample, write_samples


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    made = [sample(f"d{i}", turn, domain="ab"[i % 2]) for i in range(10) for turn in range(2)]
    made.append(sample("train", split="train"))
    made.append(sample("warm", decode={"kind": "sampled", "temperature": 0.7}))
    return write_samples(tmp_path / "samples.jsonl", made)


def test_only_greedy_rows_of_the_split(rows: Path) -> None:
    found = from_samples(rows, "held_out")
    assert {prompt.key for prompt in found.prompts} == {f"d{i}/{turn}" for i in range(10) for turn in range(2)}
    assert found.max_tokens == 20
    assert found.prompts[0].ids[:2] == (1, 2)
    assert {prompt.cluster for prompt in found.prompts} == {f"d{i}" for i in range(10)}


def test_directory_or_file_and_the_same_seed_give_the_same_order(rows: Path) -> None:
    first, again, other = (
        from_samples(path, "held_out", seed=s) for path, s in ((rows, 1), (rows.parent, 1), (rows, 2))
    )
    assert first == again
    assert first.hash == again.hash
    assert first.hash != other.hash
    assert set(first.prompts) == set(other.prompts)


def test_a_first_part_holds_all_domains(rows: Path) -> None:
    assert {prompt.domain for prompt in from_samples(rows, "held_out").taken(8).prompts} == {"a", "b"}


def test_any_first_part_has_the_mix_of_the_whole(tmp_path: Path) -> None:
    counts = {"a": 60, "b": 33, "c": 7}
    made = [sample(f"{name}{i}", domain=name) for name, count in counts.items() for i in range(count)]
    found = from_samples(write_samples(tmp_path / "samples.jsonl", made), "held_out", seed=3).prompts
    for first in range(1, 101):
        for name, count in counts.items():
            held = sum(prompt.domain == name for prompt in found[:first])
            assert abs(held - count * first / 100) < 1.5


def test_domains_filter(rows: Path) -> None:
    assert {prompt.domain for prompt in from_samples(rows, "held_out", ["b"]).prompts} == {"b"}
    with pytest.raises(UsageError, match="no greedy held_out row of c"):
        from_samples(rows, "held_out", ["c"])


def test_mixed_decode_modes_are_refused(tmp_path: Path) -> None:
    other = sample("x", decode={"kind": "greedy", "max_new_tokens": 99})
    with pytest.raises(UsageError, match="2 decode modes"):
        from_samples(write_samples(tmp_path / "samples.jsonl", [sample("a"), other]), "held_out")


@pytest.mark.parametrize(("line", "says"), [("{", "not a JSON line"), ('{"doc_id": "x"}', "not a sample: no turn")])
def test_broken_lines_are_named(tmp_path: Path, line: str, says: str) -> None:
    path = write_samples(tmp_path / "samples.jsonl", [sample("a")])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DamageError, match=says) as caught:
        from_samples(path, "held_out")
    assert caught.value.where.endswith("samples.jsonl:2")


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run the regenerate step"):
        from_samples(tmp_path / "samples.jsonl", "held_out")


def test_shipped_questions_are_chat_prompts_of_several_domains() -> None:
    shipped = questions()
    assert len(shipped.prompts) == 24
    assert {prompt.domain for prompt in shipped.prompts} == {"code", "reason", "write"}
    assert all(prompt.messages and not prompt.ids for prompt in shipped.prompts)
