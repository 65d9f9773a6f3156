"""Words of a config that one engine reads and another does not, and drafts beyond what the tables hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract_cases import ALL_ENGINES, edit_config, llama_case, put_tensors, tensors_of, write_case

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Verdict

CASE = llama_case()
QUESTION = Question(layers=tuple(CASE.layers), target=CASE.target)
OLD = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
READS_OLDER = {"sglang@0.5.16", "sglang@0.5.20", "sglang@0.5.23"}


def found(directory: Path, name: str) -> dict[str, Verdict]:
    """Engine -> the worst verdict of this check."""
    checks = [check for check in check_draft(directory, ALL_ENGINES, QUESTION).checks if check.id == name]
    return {
        engine: max((check.verdict for check in checks if check.group.startswith(engine)), key=lambda one: one.rank)
        for engine in ALL_ENGINES
    }


@pytest.mark.parametrize("older_names", [True, False])
def test_the_older_word_for_norms_before_fc_is_sglangs_alone(tmp_path: Path, older_names: bool) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    norms = {f"{old}.weight" if older_names else f"{new}.weight": tensors_of(directory)["norm.weight"]
             for old, new in OLD.items()}  # fmt: skip
    put_tensors(directory, {**tensors_of(directory), **norms})
    edit_config(directory, use_aux_norm=True)
    for name in ("C2", "C7"):
        passes = {engine for engine, verdict in found(directory, name).items() if verdict is Verdict.PASS}
        assert passes == READS_OLDER, name
    edit_config(directory, use_aux_norm=False, fc_norm=True)
    reads = {engine for engine, verdict in found(directory, "C7").items() if verdict is Verdict.PASS}
    assert reads == READS_OLDER | {"vllm@0.31.0", "vllm@0.32.0", "vllm@0.33.0"}


def test_several_layers_are_not_called_dropped_where_they_are_loaded(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    tensors = tensors_of(directory)
    second = {name.replace("midlayer", "layers.1"): one.clone() for name, one in tensors.items() if "midlayer" in name}
    put_tensors(directory, {**tensors, **second})
    edit_config(directory, num_hidden_layers=2)
    verdicts = found(directory, "C2")
    assert {engine for engine, verdict in verdicts.items() if verdict is Verdict.UNKNOWN} == {
        "sglang@0.5.16", "sglang@0.5.20", "sglang@0.5.23", "vllm@0.31.0", "vllm@0.32.0", "vllm@0.33.0"
    }  # fmt: skip
    assert verdicts["sglang@0.5.9"] is verdicts["reference"] is Verdict.FAIL
    assert found(directory, "C7")["sglang@0.5.9"] is Verdict.FAIL
