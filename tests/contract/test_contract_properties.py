"""Random small drafts pass; any single corruption is caught; garbage is a finding, never a traceback."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_cases import ENGINES, Case, llama_case, put_tensors, tensors_of, write_case
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Result, Verdict
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.draft.weights import load_draft


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv, group, half = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    hidden, ffn = kv * group * draw(st.integers(1, 4)), draw(st.integers(1, 40))
    draft = draw(st.integers(2, 30))
    vocab = draft + draw(st.integers(0, 40))
    spec = DraftSpec(hidden, kv * group, kv, 2 * half, ffn, draft, vocab, max_position=256)
    family, layers = draw(st.sampled_from([("llama", [1, 3, 6]), ("llama", [2, 6, 9]), ("deepseek", [2, 30, 58])]))
    target = TargetFacts("kimi_k25" if family == "deepseek" else "llama", family, hidden, 61, vocab, 200, (0,))
    return Case(spec, target, layers, draw(st.integers(0, 1000)))


@contextmanager
def packaged(case: Case, record: bool = True) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="draft-") as root:
        yield write_case(Path(root) / "draft", case, record)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good draft; tests that break it work on a copy."""
    return write_case(tmp_path_factory.mktemp("whole") / "draft", llama_case())


@contextmanager
def copied(whole: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="draft-") as root:
        yield Path(shutil.copytree(whole, Path(root) / "draft"))


def judge(directory: Path, case: Case, deep: bool = True) -> Result:
    return check_draft(directory, ENGINES, Question(layers=tuple(case.layers), target=case.target, deep=deep))


def of_engines(found: list[tuple[str, str, Verdict]]) -> list[tuple[str, str, Verdict]]:
    """Without C9, which is about the record."""
    return [one for one in found if one[0] != "C9"]


def judgements(result: Result) -> list[tuple[str, str, Verdict]]:
    return [(check.id, check.group, check.verdict) for check in result.checks]


@given(cases())
@settings(max_examples=15, deadline=None)
def test_any_packaged_draft_passes_and_loads(case: Case) -> None:
    with packaged(case) as directory:
        result = judge(directory, case)
        assert [check for check in result.checks if check.verdict is not Verdict.PASS] == []
        assert load_draft(directory).spec == DraftSpec(**{**case.spec.as_dict(), "max_position": 256})


def corrupt(tensors: dict[str, torch.Tensor], name: str, how: str, draw: st.DataObject) -> bool:
    """Change one tensor; False when this change means nothing for it."""
    tensor = tensors[name]
    if how == "rename":
        tensors[name.replace("weight", "wait") if "weight" in name else "x_" + name[::-1]] = tensors.pop(name)
    elif how == "drop":
        del tensors[name]
    elif how == "transpose":
        if tensor.dim() != 2 or torch.equal(tensor, tensor.T.reshape(tensor.shape)):
            return False
        tensors[name] = tensor.T.contiguous()
    elif how == "rows":
        if tensor.shape[0] == 1:
            return False
        tensors[name] = tensor[:-1].clone()
    elif how == "dtype":
        tensors[name] = tensor.to(torch.float16 if tensor.is_floating_point() else torch.uint8)
    elif name == "d2t":
        place = draw.draw(st.integers(0, len(tensor) - 1))
        tensor[place] += draw.draw(st.sampled_from([-3, -1, 1, 2, 1000]))
    elif name == "t2d":
        place = draw.draw(st.integers(0, len(tensor) - 1))
        tensor[place] = ~tensor[place]
    else:
        return False
    return True


@given(cases(), st.sampled_from(["rename", "drop", "transpose", "rows", "dtype", "edit"]), st.data())
@settings(max_examples=40, deadline=None)
def test_any_single_corruption_is_caught(case: Case, how: str, data: st.DataObject) -> None:
    with packaged(case) as directory:
        tensors = tensors_of(directory)
        name = data.draw(st.sampled_from(sorted(tensors)))
        if not corrupt(tensors, name, how, data):
            return
        square = how == "transpose" and len(set(case.spec.tensors()[name])) == 1
        healthy = judgements(judge(directory, case))
        put_tensors(directory, tensors)
        assert judge(directory, case, deep=square).verdict is Verdict.FAIL  # a square matrix needs the recorded hash
        # ... and without the record, by the rules of the engines alone
        (directory / "k25stack.json").unlink()
        assert square or of_engines(judgements(judge(directory, case))) != of_engines(healthy)


@given(st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_a_file_cut_anywhere_is_caught(whole: Path, share: float) -> None:
    with copied(whole) as directory:
        file = directory / "model.safetensors"
        raw = file.read_bytes()
        file.write_bytes(raw[: min(int(share * len(raw)), len(raw) - 1)])
        assert judge(directory, llama_case(), deep=False).verdict is Verdict.FAIL


@given(st.binary(max_size=400), st.sampled_from(["config.json", "model.safetensors", "k25stack.json"]))
@settings(max_examples=60, deadline=None)
def test_garbage_is_a_finding(whole: Path, garbage: bytes, name: str) -> None:
    with copied(whole) as directory:
        (directory / name).write_bytes(garbage)
        assert judge(directory, llama_case()).verdict is Verdict.FAIL


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_value_in_any_config_key_is_judged(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as directory:
        config = json.loads((directory / "config.json").read_text())
        key = data.draw(st.sampled_from(sorted([*config, "sliding_window", "bias", "dtype", "use_aux_norm"])))
        value = data.draw(json_values)
        if key == "eagle_config" and data.draw(st.booleans()):
            value = {data.draw(st.sampled_from([*config["eagle_config"], "norm_before_fc", "layer_ids"])): value}
        (directory / "config.json").write_text(json.dumps({**config, key: value}))
        result = judge(directory, llama_case())
        assert json.loads(json.dumps(result.as_dict()))["kind"] == "draft"


HEADER_LIES = {
    "deep nesting": b'{"a":' * 50_000,
    "no object": b"[1,2]",
    "nan shape": b'{"a":{"dtype":"BF16","shape":[NaN],"data_offsets":[0,2]}}',
    "huge shape": b'{"a":{"dtype":"BF16","shape":[99999999999,99999999999],"data_offsets":[0,2]}}',
    "negative": b'{"a":{"dtype":"BF16","shape":[-1],"data_offsets":[0,2]}}',
    "backwards": b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[2,0]}}',
    "past the end": b'{"a":{"dtype":"BF16","shape":[50],"data_offsets":[0,100]}}',
    "unknown type": b'{"a":{"dtype":"COMPLEX","shape":[1],"data_offsets":[0,2]}}',
    "type is a list": b'{"a":{"dtype":["BF16"],"shape":[1],"data_offsets":[0,2]}}',
    "twice": b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
    b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
    "metadata": b'{"__metadata__":{"a":1}}',
    "not utf-8": b'{"\xff":1}',
    "string offsets": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":"ab"}}',
}


@pytest.mark.parametrize("lie", HEADER_LIES)
def test_headers_that_lie_are_found(tmp_path: Path, lie: str) -> None:
    case = llama_case()
    directory = write_case(tmp_path / "draft", case)
    text = HEADER_LIES[lie]
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0\0")
    result = judge(directory, case)
    assert result.verdict is Verdict.FAIL
    assert any(check.id == "C0" and check.evidence.get("part") == "weights" for check in result.checks)


@pytest.mark.parametrize(
    "text", ['{"hidden_size": NaN}', '{"a": 1, "a": 2}', "[]", "null", "", "{" * 90_000, '{"a": 1e999}']
)
def test_configs_that_are_no_config_are_found(tmp_path: Path, text: str) -> None:
    case = llama_case()
    directory = write_case(tmp_path / "draft", case)
    (directory / "config.json").write_text(text)
    assert judge(directory, case).verdict is Verdict.FAIL


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    import pickle

    case = llama_case()
    directory = write_case(tmp_path / "draft", case)
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    result = judge(directory, case)
    assert result.verdict is Verdict.FAIL
    assert any("pickle" in check.message for check in result.checks)
    (directory / "pytorch_model.bin").rename(directory / "model.safetensors")
    assert judge(directory, case).verdict is Verdict.FAIL
    assert not (tmp_path / "ran").exists()


def test_odd_things_in_the_place_of_files(tmp_path: Path) -> None:
    case = llama_case()
    directory = write_case(tmp_path / "draft", case)
    for name in ("config.json", "model.safetensors", "k25stack.json"):
        (directory / name).unlink()
        (directory / name).mkdir()
    assert judge(directory, case).verdict is Verdict.FAIL
    assert judge(tmp_path, case).verdict is Verdict.FAIL  # no draft at all
