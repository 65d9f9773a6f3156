"""A draft's embedding is the target's, or it is kept where an engine reads it."""

from __future__ import annotations

from pathlib import Path

import convert_cases as cases
import pytest
from convert_cases import write_target
from safetensors.torch import load_file, save_file

from k25stack.draft.convert import Request, convert
from k25stack.draft.target import read_object
from k25stack.errors import UsageError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


def test_an_embedding_is_left_out_only_where_it_is_the_targets(tmp_path: Path, target: Path) -> None:
    source = cases.speculators(tmp_path / "source")
    own = load_file(source / "model.safetensors")["embed_tokens.weight"]

    def sglang(name: str) -> list[str]:
        notes: list[str] = convert(source, tmp_path / name, Request("sglang", target=target))["notes"]
        return notes

    assert "not compared" in sglang("unknown")[0]
    save_file({"model.embed_tokens.weight": own}, target / "model.safetensors")
    assert sglang("same") == ["embed_tokens is the target's: left out"]
    own[3, 5] += 1
    save_file({"model.embed_tokens.weight": own}, target / "model.safetensors")
    with pytest.raises(UsageError, match="is not the target's"):
        sglang("other")
    convert(source, tmp_path / "vllm", Request("vllm", target=target))


@pytest.mark.parametrize("to", ["vllm", "speculators"])
def test_a_trained_embedding_stays_one(tmp_path: Path, target: Path, to: str) -> None:
    """Through a format that ships it, it does not come out as the target's."""
    source = cases.speculators(tmp_path / "source", embed_requires_grad=True)
    convert(source, tmp_path / "there", Request(to, target=target))
    assert read_object(tmp_path / "there" / "config.json")["embed_requires_grad"] is True
    with pytest.raises(UsageError, match="embedding was trained"):
        convert(tmp_path / "there", tmp_path / "out", Request("sglang", target=target))
