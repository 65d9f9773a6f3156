"""``k25stack check`` and ``draft inspect`` as a user meets them: kind by target, exit codes, JSON, one-line errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from contract_cases import edit_config, llama_case, write_case
from typer.testing import CliRunner

from k25stack.cli.check import check
from k25stack.cli.draft import app as draft_app
from k25stack.contract.finding import Verdict
from k25stack.contract.kinds import KINDS, Options, check_target
from k25stack.contract.main import program
from k25stack.errors import ContractError, UsageError
from k25stack.worker import Spec

cli = typer.Typer()
cli.command()(check)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_case(tmp_path / "draft", llama_case())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 24, "num_hidden_layers": 14}
    config |= {"vocab_size": 64, "max_position_embeddings": 512, "eos_token_id": 2}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_good_draft_exits_0_and_prints_one_line(draft: Path, target: Path) -> None:
    done = CliRunner().invoke(cli, [str(draft), "--target", str(target), "--deep"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("PASS: draft")


def test_a_broken_draft_exits_1_with_evidence_and_fix(draft: Path, target: Path) -> None:
    edit_config(draft, norm_before_residual=True)
    done = CliRunner().invoke(cli, [str(draft), "--target", str(target), "--engine", "sglang@0.5.23"])
    assert done.exit_code == 1
    assert "FAIL    C7   sglang@0.5.23" in done.stdout
    assert "fix: train with norm_before_residual False" in done.stdout


def test_json_is_one_object_of_the_result_shape(draft: Path) -> None:
    done = CliRunner().invoke(cli, [str(draft), "--json"])
    assert json.loads(done.stdout)["verdict"] == "pass"
    both = CliRunner().invoke(cli, [str(draft), str(draft), "--json"])
    assert [result["kind"] for result in json.loads(both.stdout)] == ["draft", "draft"]
    assert both.exit_code == 0


def test_layers_may_be_given(draft: Path, target: Path) -> None:
    (draft / "k25stack.json").unlink()
    assert CliRunner().invoke(cli, [str(draft), "--target", str(target)]).exit_code == 3
    assert CliRunner().invoke(cli, [str(draft), "--target", str(target), "--layers", "2,6,9"]).exit_code == 0
    assert CliRunner().invoke(cli, [str(draft), "--target", str(target), "--layers", "3,6,9"]).exit_code == 1
    wrong = CliRunner().invoke(cli, [str(draft), "--layers", "2;6"])
    assert isinstance(wrong.exception, UsageError)


def test_a_stack_with_a_mistake_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("nmae: x\n")
    result = check_target(str(tmp_path / "mine.yaml"), Options())
    assert (result.kind, result.verdict.value) == ("stack", "fail")
    assert "mine.yaml:1" in result.checks[0].message


def test_the_shipped_stacks_are_clean() -> None:
    for stack in sorted((Path(__file__).parents[2] / "stacks").glob("*.yaml")):
        wrong = [check for check in check_target(str(stack), Options()).checks if check.verdict is not Verdict.PASS]
        # A commit of the public draft is for whoever serves it to look up: the stack says so, and how.
        assert [(check.id, check.group) for check in wrong] in ([], [("S3", "sglang-eagle3-aq")]), stack
        assert all("--draft sglang-eagle3-aq -n" in check.fix for check in wrong)


@pytest.mark.parametrize("name", ["nothing", "empty", "target", "notes.txt"])
def test_other_things_are_a_usage_error(tmp_path: Path, target: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError) as caught:
        check_target(str(tmp_path / name), Options())
    assert caught.value.exit_code == 2
    assert all(kind.name in str(caught.value) for kind in KINDS)


def test_states_are_judged_by_their_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    result = check_target(str(tmp_path), Options())
    assert (result.kind, result.verdict.value) == ("states", "fail")


def test_inspect_counts_what_is_in_the_file(draft: Path) -> None:
    case = llama_case()
    done = CliRunner().invoke(draft_app, ["inspect", str(draft), "--json"])
    report = json.loads(done.stdout)
    assert report["parameters"] == case.spec.parameters()
    assert report["parameters_with_embedding"] == case.spec.parameters(with_embedding=True)
    assert report["kv_bytes_per_token"] == case.spec.kv_bytes_per_token()
    assert len(report["tensors"]) == 15
    assert report["layer_ids"] == {"top_level": [2, 6, 9], "nested": [1, 5, 8]}
    text = CliRunner().invoke(draft_app, ["inspect", str(draft)]).stdout
    assert f"{case.spec.parameters():,}" in text
    (draft / "k25stack.json").unlink()
    assert "no k25stack.json" in CliRunner().invoke(draft_app, ["inspect", str(draft)]).stdout


def test_the_step_writes_its_result_and_stops_a_broken_draft(draft: Path, target: Path, tmp_path: Path) -> None:
    inputs = {"draft": draft, "target": target}
    spec = Spec({"engines": ["reference", "sglang@0.5.20", "vllm@0.31.0"]}, inputs, tmp_path / "out", 1)
    spec.out.mkdir()
    assert program(spec)["verdict"] == "pass"
    assert json.loads((spec.out / "check.json").read_text())["kind"] == "draft"
    edit_config(draft, target_hidden_size=None)
    with pytest.raises(ContractError, match="target_hidden_size is null"):
        program(spec)
    assert json.loads((spec.out / "check.json").read_text())["verdict"] == "fail"


def test_a_file_that_may_not_be_read_is_a_finding(draft: Path) -> None:
    if os.geteuid() == 0:
        (draft / "config.json").unlink()
        (draft / "config.json").symlink_to(draft / "config.json")  # the superuser reads everything; a loop it cannot
    else:
        (draft / "config.json").chmod(0)
    assert check_target(str(draft), Options()).verdict.value == "fail"
