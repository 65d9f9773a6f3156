"""What trainers' own formats, windows and trained lengths mean to each engine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from contract_cases import Case, edit_config, llama_case, put_tensors, tensors_of, write_case
from typer.testing import CliRunner

from k25stack.cli.draft import app
from k25stack.cli.main import main
from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Check, Verdict
from k25stack.draft.convert import Request, convert

SGLANG, VLLM = "sglang@0.5.23", "vllm@0.33.0"


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Path, Case]:
    case = llama_case()
    return write_case(tmp_path / "draft", case), case


def failing(directory: Path, case: Case, *engines: str, **question: Any) -> dict[tuple[str, str], Check]:
    result = check_draft(directory, engines or (SGLANG, VLLM), Question(target=case.target, **question))
    return {(check.id, check.group): check for check in result.checks if check.verdict is not Verdict.PASS}


def test_vllm_reads_a_speculators_draft_and_sglang_does_not(llama: tuple[Path, Case], tmp_path: Path) -> None:
    directory, case = llama
    convert(directory, tmp_path / "there", Request("speculators"))
    found = failing(tmp_path / "there", case, layers=(2, 6, 9))
    assert not [key for key in found if key[1] == VLLM and found[key].verdict is Verdict.FAIL], found
    assert found["C1", SGLANG].verdict is Verdict.FAIL
    assert "convert it" in found["C1", SGLANG].message
    assert failing(tmp_path / "there", case, VLLM, layers=(2, 6, 9)) == {}


@pytest.mark.parametrize("form", ["sglang", "vllm", "portable", "speculators", "specforge"])
def test_what_a_conversion_says_to_do_next_finds_nothing_wrong(
    llama: tuple[Path, Case], tmp_path: Path, form: str
) -> None:
    directory, _ = llama
    done = CliRunner().invoke(app, ["convert", str(directory), "--to", form, "-o", str(tmp_path / "there")])
    next_, *words = shlex.split(done.stderr)
    assert (next_, words[:2]) == ("Next:", ["k25stack", "check"])
    assert main(words[1:]) == 0


def test_a_left_out_residual_norm_is_no_answer_in_speculators(llama: tuple[Path, Case], tmp_path: Path) -> None:
    directory, _ = llama
    convert(directory, tmp_path / "there", Request("speculators"))
    edit_config(tmp_path / "there", norm_before_residual=...)
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "there"), "--to", "sglang", "-o", str(tmp_path / "back")])
    assert "norm_before_residual is left out" in str(done.exception)


@pytest.mark.parametrize("name", ["rms_norm_eps", "hidden_act", "intermediate_size"])
def test_vllm_fills_no_layer_of_a_speculators_draft_in(llama: tuple[Path, Case], tmp_path: Path, name: str) -> None:
    directory, case = llama
    convert(directory, tmp_path / "there", Request("speculators"))
    layer = json.loads((tmp_path / "there" / "config.json").read_text())["transformer_layer_config"]
    del layer[name]
    edit_config(tmp_path / "there", transformer_layer_config=layer)
    assert f"lacks {name}" in failing(tmp_path / "there", case, layers=(2, 6, 9))["C1", VLLM].message


def test_the_report_counts_every_tensor(llama: tuple[Path, Case]) -> None:
    directory, case = llama
    result = check_draft(directory, (SGLANG, VLLM), Question(target=case.target))
    counts = {check.group: check.evidence for check in result.checks if check.id == "C2" and check.group != "files"}
    for evidence in counts.values():
        assert (evidence["consumed"], evidence["ignored"], evidence["missing"]) == (14, 1, 0)
    tensors = tensors_of(directory)
    tensors["embed_tokens.weight"] = tensors["fc.weight"][:1, :24].repeat(64, 1)
    put_tensors(directory, tensors)
    result = check_draft(directory, (SGLANG, VLLM), Question(target=case.target))
    counts = {check.group: check.evidence for check in result.checks if check.id == "C2" and check.group != "files"}
    assert counts[SGLANG]["overwritten"] == 1
    assert counts[VLLM]["consumed"] == 15


WINDOWS: list[tuple[dict[str, Any], set[str]]] = [
    ({"sliding_window": 2048}, {SGLANG, VLLM}),  # vLLM looks at layer_types alone
    ({"sliding_window": 2048, "layer_types": ["sliding_attention"]}, {SGLANG}),
    ({"sliding_window": 2048, "layer_types": ["full_attention"]}, set()),
    ({"sliding_window": 2048, "use_sliding_window": False}, set()),
    ({"sliding_window": "2048"}, {SGLANG, VLLM}),
]


@pytest.mark.parametrize(("changes", "groups"), WINDOWS)
def test_a_window_is_judged_by_what_the_engine_reads(
    llama: tuple[Path, Case], changes: dict[str, Any], groups: set[str]
) -> None:
    directory, case = llama
    edit_config(directory, **changes)
    found = failing(directory, case)
    assert {group for check, group in found if check == "C7"} == groups


def test_the_two_meanings_of_norm_output(llama: tuple[Path, Case]) -> None:
    directory, case = llama
    edit_config(directory, norm_output=True)
    (directory / "k25stack.json").unlink()
    found = failing(directory, case, layers=(2, 6, 9))
    assert found["C7", "files"].verdict is Verdict.WARN
    assert "SpecForge" in found["C7", "files"].message


def test_served_beyond_the_trained_length(llama: tuple[Path, Case]) -> None:
    directory, case = llama
    edit_config(directory, max_position_embeddings=4096)
    found = failing(directory, case, context=4096)
    assert found["C8", "files"].verdict is Verdict.WARN
    assert found["C8", "files"].evidence == {"trained": 512, "served": 4096}


def test_convert_on_the_command_line(llama: tuple[Path, Case], tmp_path: Path) -> None:
    directory, _ = llama
    words = ["convert", str(directory), "--to", "vllm", "-o", str(tmp_path / "out")]
    dry = CliRunner().invoke(app, [*words, "-n"])
    assert dry.stdout.startswith("would write")
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(done.stdout)["tensors"] == 15
    assert "Next: k25stack check" in done.stderr
