"""D10: the states of one text, extracted twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from states_cases import LAYERS, Answered, answered, checks, meta, write

from k25stack.contract.finding import Check, Verdict
from k25stack.contract.states import StatesQuestion, check_states
from k25stack.reference.target import Target


@pytest.fixture(scope="module")
def samples(tiny_target_dir: Path) -> list[Answered]:
    return answered(tiny_target_dir)


@pytest.fixture
def states(tmp_path: Path, tiny_target_dir: Path, samples: list[Answered]) -> Path:
    return write(tmp_path / "one", tiny_target_dir, samples, meta())


def beside(states: Path, other: Path) -> Check:
    return checks(check_states(states, StatesQuestion(beside=other)))["D10"]


def run_again(directory: Path, samples: list[Answered]) -> list[Answered]:
    """The same text through a target once more, all documents in one batch instead of one by one."""
    target = Target.load(directory)
    tokens = [torch.tensor(sample.prompt_ids + sample.response_ids) for sample, *_ in samples]
    bounds = torch.tensor([0, *torch.tensor([len(ids) for ids in tokens]).cumsum(0).tolist()])
    out = target.prefill_packed(torch.cat(tokens), bounds, (*LAYERS, 6))
    rows = [slice(begin, end) for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    return [
        (sample, out.aux[place, : 3 * 64], out.aux[place, 3 * 64 :], out.last[place])
        for (sample, *_), place in zip(samples, rows, strict=True)
    ]


def rounded(aux: torch.Tensor) -> torch.Tensor:
    """Every seventh row one bf16 step further."""
    moved = aux.clone()
    moved[::7] = (moved[::7].view(torch.int16) + 1).view(torch.bfloat16)
    return moved


def test_one_engine_twice(tmp_path: Path, tiny_target_dir: Path, samples: list[Answered], states: Path) -> None:
    again = write(tmp_path / "two", tiny_target_dir, run_again(tiny_target_dir, samples), meta())
    found = beside(states, again)
    assert min(found.evidence["cosine"].values()) > 0.9999
    assert found.verdict is (Verdict.PASS if found.evidence["equal_bits"] == 1 else Verdict.WARN)
    assert beside(states, states).message == "the same states to the bit"


@pytest.mark.parametrize(("engine", "verdict"), [("k25stack-reference", Verdict.WARN), ("vllm", Verdict.PASS)])
def test_rounding_is_a_fault_of_one_engine_alone(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Answered], states: Path, engine: str, verdict: Verdict
) -> None:
    other = write(tmp_path / "two", tiny_target_dir, samples, meta(engine=engine),
                  change=lambda document: replace(document, aux=rounded(document.aux)))  # fmt: skip
    found = beside(states, other)
    assert found.verdict is verdict
    assert 0.8 < found.evidence["equal_bits"] < 0.9


def test_another_layer_is_named(tmp_path: Path, tiny_target_dir: Path, samples: list[Answered], states: Path) -> None:
    def turned(aux: torch.Tensor) -> torch.Tensor:
        return torch.cat([aux[:, :64], aux[:, 128:], aux[:, 64:128]], 1)

    other = write(tmp_path / "two", tiny_target_dir, samples, meta(engine="vllm"),
                  change=lambda document: replace(document, aux=turned(document.aux)))  # fmt: skip
    found = beside(states, other)
    assert found.verdict is Verdict.FAIL
    assert "layer 3 " in found.message and "layer 5 " in found.message
    assert "layer 2 " not in found.message and "last" not in found.message


def test_other_weights(
    tmp_path: Path, tiny_target_dir: Path, other_target_dir: Path, samples: list[Answered], states: Path
) -> None:
    other = write(tmp_path / "two", other_target_dir, run_again(other_target_dir, samples), meta())
    assert beside(states, other).verdict is Verdict.FAIL


def test_what_cannot_be_compared(tmp_path: Path, tiny_target_dir: Path, samples: list[Answered], states: Path) -> None:
    renamed = [(replace(sample, doc_id=f"x{sample.doc_id}"), *rest) for sample, *rest in samples]
    others = write(tmp_path / "two", tiny_target_dir, renamed, meta())
    assert beside(states, others).verdict is Verdict.UNKNOWN
    longer = write(tmp_path / "three", tiny_target_dir, samples, meta(layers=(2, 3, 4)))
    assert (beside(states, longer).verdict, beside(states, longer).message) == (
        Verdict.FAIL, "not comparable: layers differ")  # fmt: skip
    (others / "manifest.json").write_text("{}")
    assert beside(states, others).verdict is Verdict.UNKNOWN
