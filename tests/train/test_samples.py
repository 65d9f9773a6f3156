"""Typed records: what is written is read, a wrong line is named, unequal decode modes are told apart."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.errors import DamageError, UsageError
from k25stack.train.samples import (
    DecodeMode,
    Prompt,
    Sample,
    read_prompts,
    read_samples,
    write_records,
)

MODES = st.builds(
    DecodeMode,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(-1, 99),
    thinking=st.booleans(),
    system_prompt=st.none() | st.text(max_size=9),
    template_args=st.dictionaries(st.text(max_size=3), st.integers() | st.booleans(), max_size=2),
    max_new_tokens=st.integers(1, 9999),
)
IDS = st.lists(st.integers(0, 200_000), max_size=9).map(tuple)
SAMPLES = st.builds(
    Sample,
    doc_id=st.text(min_size=1, max_size=5),
    turn=st.integers(0, 1),
    question_id=st.text(max_size=5),
    domain=st.text(max_size=5),
    split=st.sampled_from(["train", "validation", "held_out"]),
    prompt_ids=IDS,
    response_ids=IDS,
    finish=st.sampled_from(["stop", "length"]),
    decode=MODES.map(DecodeMode.as_dict),
    template_hash=st.just("t"),
    target_revision=st.just("r"),
    engine=st.just("k25stack-reference"),
    engine_version=st.just("0.1.0"),
)
PROMPT = Prompt("d", "q", "chat", "train", ("one", "two\u2028\n"), "{question}")


@settings(max_examples=40, deadline=None)
@given(samples=st.lists(SAMPLES, min_size=1, max_size=4))
def test_samples_survive_the_disk(samples: list[Sample]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "samples.jsonl"
        write_records(path, samples)
        assert read_samples(path) == read_samples(Path(directory)) == samples
        assert [s.mode.as_dict() for s in samples] == [s.decode for s in samples]
        first = path.read_bytes()
        write_records(path, samples)
        assert path.read_bytes() == first


def test_prompts_survive_the_disk(tmp_path: Path) -> None:
    write_records(tmp_path / "prompts.jsonl", [PROMPT])
    assert read_prompts(tmp_path) == [PROMPT]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"prompts\.jsonl:2: not a prompt"),
        ('{"doc_id": "a"}', r"prompts\.jsonl:2: not a prompt"),
        ("[]", r"prompts\.jsonl:2: not a prompt"),
        (json.dumps({**vars(PROMPT), "split": "test"}), r"prompts\.jsonl:2: unknown split 'test'"),
        (json.dumps({**vars(PROMPT), "more": 1}), r"prompts\.jsonl:2: not a prompt"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    write_records(tmp_path / "prompts.jsonl", [PROMPT])
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DamageError, match=message):
        read_prompts(tmp_path)


def test_no_file_and_no_record_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no samples\.jsonl"):
        read_samples(tmp_path)
    (tmp_path / "samples.jsonl").touch()
    with pytest.raises(UsageError, match="no record in it"):
        read_samples(tmp_path)


@settings(max_examples=40, deadline=None)
@given(mode=MODES, other=MODES)
def test_a_mode_is_comparable_to_itself_and_differences_are_named(mode: DecodeMode, other: DecodeMode) -> None:
    assert mode.differences(DecodeMode.from_dict(json.loads(json.dumps(mode.as_dict())))) == []
    named = mode.differences(other)
    assert (named == []) == (mode.as_dict() == other.as_dict())
    assert set(named) == set(other.differences(mode))
    assert replace(mode, max_new_tokens=mode.max_new_tokens + 1).differences(mode) == ["max_new_tokens"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"temprature": 1}, "unknown field temprature"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"kind": "greedy", "temperature": 1.0}, "kind greedy with temperature 1.0"),
    ],
)
def test_a_wrong_mode_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DecodeMode.from_dict(raw)


def test_the_conversation_holds_system_history_and_the_next_turn() -> None:
    mode = DecodeMode(system_prompt="be brief", thinking=True, template_args={"x": 1})
    assert [m["content"] for m in mode.messages(["a", "b", "c"], ["A"])] == ["be brief", "a", "A", "b"]
    assert [m["role"] for m in DecodeMode().messages(["a"])] == ["user"]
    assert mode.template_arguments() == {"tools": None, "thinking": True, "enable_thinking": True, "x": 1}
