"""The choice of the draft vocabulary, its maps, its coverage, and the match with another one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from draft_cases import EOS, VOCAB, make_vocab, random_rows, row, write_samples, write_target
from hypothesis import given
from hypothesis import strategies as st

from k25stack.draft.remap import remap, target_ids
from k25stack.draft.vocab import Counts, choose, coverage, maps, program, vocab_hash
from k25stack.draft.weightfile import WeightFile
from k25stack.errors import DamageError, UsageError
from k25stack.worker import Spec


def counted(*rows: dict) -> Counts:
    counts = Counts()
    for one in rows:
        counts.add(one)
    return counts


def test_order_of_choice_and_ties() -> None:
    counts = counted(
        row("train", "a", [90, 90, 91, 50], [50, 50, 40, 40, 60, 30]),
        row("validation", "a", [99], [99] * 100),  # never counted
    )
    # eos 7, then 40 and 50 (twice each), 30 and 60 (once, lower id first), prompts 90 then 91, then 0, 1, ...
    assert choose(counts, 1, VOCAB, always=[7]) == [7]
    assert choose(counts, 2, VOCAB, always=[7]) == [7, 40]
    assert choose(counts, 3, VOCAB, always=[7]) == [7, 40, 50]
    assert choose(counts, 4, VOCAB, always=[7]) == [7, 30, 40, 50]
    assert choose(counts, 7, VOCAB, always=[7]) == [7, 30, 40, 50, 60, 90, 91]
    assert choose(counts, 9, VOCAB, always=[7]) == [0, 1, 7, 30, 40, 50, 60, 90, 91]
    assert choose(counts, VOCAB, VOCAB, always=[7]) == list(range(VOCAB))


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1), st.integers(1, VOCAB), st.randoms())
def test_choice_ignores_row_order_and_keeps_eos(tokens: list[int], size: int, rng) -> None:
    parts = [row("train", "a", [], [token]) for token in tokens]
    first = choose(counted(*parts), size, VOCAB, always=[EOS])
    rng.shuffle(parts)
    assert choose(counted(*parts), size, VOCAB, always=[EOS]) == first
    assert EOS in first
    assert first == sorted(set(first))
    assert len(first) == size
    d2t, t2d = maps(first, VOCAB)
    assert [value + index for index, value in enumerate(d2t)] == first
    assert [token for token, held in enumerate(t2d) if held] == first


def test_coverage_counts_by_split_and_domain() -> None:
    counts = counted(
        row("train", "chat", [], [1, 1, 2]), row("held_out", "chat", [], [1, 3]), row("held_out", "code", [], [2, 2, 3])
    )
    report = coverage(counts, maps([1, 2], 5)[1])
    assert (report["of"], report["overall"]) == ("held_out", 0.6)
    assert report["by_split"] == {"held_out": 0.6, "train": 1.0}
    assert report["by_domain"] == {"chat": 0.5, "code": pytest.approx(2 / 3)}
    assert report["tokens"][0] == {"split": "held_out", "domain": "chat", "tokens": 2, "share": 0.5}
    assert report["out_of_vocabulary"] == [{"id": 3, "count": 2}]


def test_without_held_out_text_all_of_it_is_counted() -> None:
    report = coverage(counted(row("train", "chat", [], [1, 3])), maps([1], 5)[1])
    assert (report["of"], report["overall"]) == ("all", 0.5)


def test_the_step_writes_the_same_bytes_again(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    first = make_vocab(tmp_path / "one", target, random_rows())
    again = make_vocab(tmp_path / "two", target, random_rows())
    for name in ("vocab.safetensors", "coverage.json"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    file = WeightFile.open(first / "vocab.safetensors")
    ids = target_ids(file, 32)
    report = json.loads((first / "coverage.json").read_text())
    assert report["vocab_hash"] == vocab_hash(ids) == file.header.metadata["vocab_hash"]
    assert 0 < report["by_split"]["held_out"] <= 1


@pytest.mark.parametrize("size", [0, VOCAB + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(UsageError, match="choose between"):
        choose(counted(row("train", "a", [], [1])), size, VOCAB, always=[7])


def test_no_train_text_is_refused() -> None:
    with pytest.raises(UsageError, match="no response tokens"):
        choose(counted(row("held_out", "a", [], [1])), 5, VOCAB)


def test_ids_outside_the_target_are_damage() -> None:
    with pytest.raises(DamageError, match="outside the target"):
        choose(counted(row("train", "a", [], [VOCAB])), 5, VOCAB)


def test_a_torn_sample_line_is_named(tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "samples", random_rows())
    with (samples / "samples.jsonl").open("a") as file:
        file.write('{"split": "train", "resp')
    spec = Spec({"size": 8}, {"target": write_target(tmp_path / "t"), "samples": samples}, tmp_path / "out", 1)
    with pytest.raises(DamageError, match=r"samples.jsonl:9: not a sample row"):
        program(spec)


@given(st.sets(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 40), min_size=1))
def test_remap_keeps_exactly_the_shared_rows(old: set[int], new: set[int]) -> None:
    old_ids, new_ids = sorted(old), sorted(new)
    match = remap(old_ids, new_ids, Counter(new_ids))
    assert match.shared == len(old & new)
    assert match.dropped == len(old - new)
    assert match.coverage == pytest.approx(len(old & new) / len(new))
    for token, place in zip(new_ids, match.rows, strict=True):
        assert (place == -1) == (token not in old)
        assert place == -1 or old_ids[place] == token
