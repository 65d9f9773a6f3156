"""Drafts in several files: what the index names is what engines read, and it is what is judged and converted."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract_cases import ENGINES, kimi_case, put_tensors, tensors_of, write_case

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Result, Verdict
from k25stack.draft.convert import Request, convert
from k25stack.draft.inspect import inspect_draft
from k25stack.draft.weightfile import INDEX, MAP_BYTES, WeightFile, weight_paths
from k25stack.errors import DamageError

CASE = kimi_case()
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def judge(directory: Path) -> Result:
    return check_draft(directory, ENGINES, Question(layers=tuple(CASE.layers), target=CASE.target))


def sharded(directory: Path, index: Callable[[dict[str, str]], Any] | None) -> Path:
    """A good draft in two files; ``index`` makes the weight map to write from the right one, None: no index."""
    write_case(directory, CASE, record=False)
    tensors = tensors_of(directory)
    names = sorted(tensors)
    parts = {FILES[0]: names[:7], FILES[1]: names[7:]}
    for file, held in parts.items():
        put_tensors(directory, {name: tensors[name] for name in held})
        (directory / "model.safetensors").rename(directory / file)
    if index is not None:
        whole = {name: file for file, held in parts.items() for name in held}
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index(whole)}))
    return directory


@pytest.mark.parametrize("index", [None, dict])
def test_a_whole_draft_in_two_files_is_one(tmp_path: Path, index: Callable[[dict[str, str]], Any] | None) -> None:
    directory = sharded(tmp_path / "draft", index)
    assert [path.name for path in weight_paths(directory)] == list(FILES)
    assert judge(directory).verdict is Verdict.WARN  # it has no record; nothing else
    request = Request("portable", layers=tuple(CASE.layers), target=None, format="portable")
    (tmp_path / "target.json").write_text(
        json.dumps({"model_type": "kimi_k25", "hidden_size": 24, "num_hidden_layers": 61, "vocab_size": 64,
                    "max_position_embeddings": 512})
    )  # fmt: skip
    convert(directory, tmp_path / "out", Request(**{**vars(request), "target": tmp_path / "target.json"}))
    whole = write_case(tmp_path / "whole", CASE, record=False)
    for name in ("model.safetensors", "config.json"):  # the target says no token ids: the draft's own stay
        assert (tmp_path / "out" / name).read_bytes() == (whole / name).read_bytes()


def test_a_file_that_the_index_leaves_out_is_dropped_in_silence(tmp_path: Path) -> None:
    directory = sharded(tmp_path / "draft", lambda whole: {n: f for n, f in whole.items() if f == FILES[0]})
    found = [check for check in judge(directory).checks if check.verdict is Verdict.FAIL]
    assert found[0].id == "C0" and FILES[1] in found[0].message and found[0].source
    assert {check.group for check in found if check.id == "C2"} >= {"sglang@0.5.20", "vllm@0.31.0"}
    assert len(inspect_draft(directory)["tensors"]) == 7
    with pytest.raises(DamageError, match="is missing"):
        convert(directory, tmp_path / "out", Request("vllm", layers=tuple(CASE.layers)))


WRONG: list[Callable[[dict[str, str]], Any]] = [
    lambda whole: {**whole, "x": "elsewhere.safetensors"},
    lambda whole: {**whole, "x": "../draft/" + FILES[0]},
    lambda whole: dict.fromkeys(whole, "/etc/passwd"),
    lambda whole: dict.fromkeys(whole, 5),
    lambda whole: {},
    lambda whole: [],
    lambda whole: None,
    lambda whole: "x",
]


@pytest.mark.parametrize("index", WRONG)
def test_an_index_of_any_content_is_a_finding(tmp_path: Path, index: Callable[[dict[str, str]], Any]) -> None:
    directory = sharded(tmp_path / "draft", index)
    found = next(check for check in judge(directory).checks if check.verdict is Verdict.FAIL)
    assert (found.id, found.evidence) == ("C0", {"part": "weights"})
    assert INDEX in found.message
    for text in ("", "[", "[" * 100_000, "\xff"):
        (directory / INDEX).write_text(text, encoding="latin-1")
        assert judge(directory).verdict is Verdict.FAIL


def test_files_that_no_engine_sees_are_not_judged(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    (directory / "._model.safetensors").write_bytes(b"left by a file manager")
    assert judge(directory).verdict is Verdict.PASS


def lying(directory: Path, header: dict[str, Any], size: int) -> Path:
    """A draft whose weight file has this header and holes for its data."""
    write_case(directory, CASE)
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    return directory


@pytest.mark.parametrize(("name", "dtype", "width"), [("d2t", "I64", 8), ("t2d", "BOOL", 1)])
def test_a_map_of_gigabytes_is_not_read(tmp_path: Path, name: str, dtype: str, width: int) -> None:
    size = 1 << 40
    header = {name: {"dtype": dtype, "shape": [size // width], "data_offsets": [0, size]}}
    directory = lying(tmp_path / "draft", header, size)
    found = next(check for check in judge(directory).checks if check.evidence.get("part") == "maps")
    assert "more than a vocabulary map" in found.message
    assert MAP_BYTES < 1 << 30


@pytest.mark.parametrize("name", ["a\nPASS: draft x", "\x1b[2J", "\u202ex", "\ud800", "x" * 10_000])
def test_names_that_no_trainer_writes_are_refused(tmp_path: Path, name: str) -> None:
    header = {name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    directory = lying(tmp_path / "draft", header, 1)
    with pytest.raises(DamageError, match="no name of a tensor") as caught:
        WeightFile.open(directory / "model.safetensors")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"])
def test_sizes_beyond_any_model_are_a_finding(tmp_path: Path, key: str) -> None:
    """Their products could not even be printed."""
    directory = write_case(tmp_path / "draft", CASE)
    config = json.loads((directory / "config.json").read_text()) | {key: 10**4000}
    (directory / "config.json").write_text(json.dumps(config))
    found = next(check for check in judge(directory).checks if check.id == "C0")
    assert found.verdict is Verdict.FAIL and "bits" in found.message
