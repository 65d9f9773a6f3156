"""What the real transformers refuses to read is found before an engine hands it the config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract_cases import kimi_case, llama_case, write_case

from k25stack.contract.checks_types import EVERY_CLASS, EVERY_VERSION, OWN, types
from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question, gather
from k25stack.contract.finding import Verdict
from k25stack.contract.rules import engine_rules

CASE = llama_case()
QUESTION = Question(layers=tuple(CASE.layers), target=CASE.target)
TABLES = {kind: (EVERY_VERSION, EVERY_CLASS, own) for kind, own in OWN.items()}
NAMES = {kind: sorted(name for table in tables for names in table.values() for name in names)
         for kind, tables in TABLES.items()}  # fmt: skip
# transformers passes over a type that is no text and positions that are false; what torch has no type for is refused.
STRICTER = {"dtype", "torch_dtype", "rope_scaling"}
VALUES: list[Any] = [None, True, 0, 1, -1, 1.5, "x", "1", [], [1], ["x"], {}, {"a": 1}]
WHOLE: list[dict[str, Any]] = [
    {"layer_types": ["full_attention"] * 36},
    {"layer_types": ["full_attention"]},
    {"layer_types": "full_attention"},
    {"rope_scaling": {"rope_type": "yarn"}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    {"rope_scaling": {"rope_type": "longrope"}},
    {"rope_parameters": {"rope_type": "linear"}},
    {"num_attention_heads": 5},
    {"torch_dtype": "torch.bfloat16"},
    {"eos_token_id": [1, 2]},
]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("types") / "draft", CASE)


@pytest.mark.parametrize("name", NAMES["llama"])
def test_no_type_that_transformers_refuses_passes(draft: Path, name: str) -> None:
    inner = name == "id2label"  # of which only the type is looked at
    assert unseen(draft, [{name: value} for value in VALUES if not (inner and value == {"a": 1})]) == []


def test_no_config_that_transformers_refuses_passes(draft: Path) -> None:
    assert unseen(draft, WHOLE) == []


@pytest.mark.parametrize("model_type", NAMES)
def test_each_row_is_the_one_of_its_class(tmp_path: Path, model_type: str) -> None:
    """Either way: a check that refuses every config would pass the tests above."""
    draft = write_case(tmp_path / "draft", CASE if model_type == "llama" else kimi_case())
    good = json.loads((draft / "config.json").read_text())
    rules, found = engine_rules("sglang@0.5.23"), []
    for name, value in ((name, value) for name in NAMES[model_type] if name not in STRICTER for value in VALUES):
        (draft / "config.json").write_text(json.dumps({**good, "model_type": model_type, name: value}))
        if bool(list(types(gather(draft), rules, QUESTION))) != refused(draft):
            found.append((name, value))
    assert found == [("id2label", {"a": 1})]  # of which only the type is looked at


def unseen(draft: Path, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The changes of a good config that transformers refuses and the check does not."""
    file = draft / "config.json"
    good = file.read_text()
    found = []
    try:
        for change in changes:
            file.write_text(json.dumps({**json.loads(good), **change}))
            told = check_draft(draft, ["sglang@0.5.23"], QUESTION)
            if refused(draft) and told.verdict is not Verdict.FAIL:
                found.append(change)
    finally:
        file.write_text(good)
    return found


def refused(directory: Path) -> bool:
    """True when transformers raises, whatever it raises: no engine starts then."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(directory)
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        return True
    return False
