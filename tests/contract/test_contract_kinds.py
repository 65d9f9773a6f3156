"""``k25stack check`` and ``draft inspect`` as a user meets them: kind by target, exit codes, JSON, one-line errors."""

from __future__ import annotations

import errno
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from contract_cases import edit_config, llama_case, write_case
from typer.testing import CliRunner

from k25stack.cli.check import check
from k25stack.cli.draft import app as draft_app
from k25stack.contract.checks_files import readable
from k25stack.contract.facts import Question, gather
from k25stack.contract.finding import Verdict
from k25stack.contract.kinds import KINDS, Options, check_target
from k25stack.contract.main import program
from k25stack.draft.inspect import inspect_draft
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


def test_the_next_command_can_be_typed_in_as_it_stands(draft: Path) -> None:
    odd = draft.rename(draft.with_name("our draft's"))
    done = CliRunner().invoke(cli, [str(odd)])
    assert shlex.split(done.stderr.strip()) == ["Next:", "k25stack", "draft", "inspect", str(odd)]


def test_a_target_is_no_draft_to_inspect(tiny_target_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"a model of . layers, no draft"):
        inspect_draft(tiny_target_dir)


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


@pytest.mark.parametrize(
    ("cards", "argv", "fix"),
    [
        (7, "{}", "tensor_parallel: 4"),
        (8, "{}", ""),
        (6, "{dp-size: 2, enable-dp-attention: true}", "tensor_parallel: 4"),
        (8, "{dp-size: 2, enable-dp-attention: true}", ""),
    ],
)
def test_heads_that_the_cards_cannot_share_are_told_before_the_engine_stops(
    tmp_path: Path, cards: int, argv: str, fix: str
) -> None:
    base = Path(__file__).parents[2] / "stacks" / "kimi-k2.5-8x-rtx-pro-6000.yaml"
    profile = f"{{engine: sglang, version: 0.5.20, tensor_parallel: {cards}, argv: {argv}}}"
    (tmp_path / "mine.yaml").write_text(f"extends: {base}\nname: mine\nserving: {{profiles: {{mine: {profile}}}}}\n")
    checks = check_target(str(tmp_path / "mine.yaml"), Options(profile="mine")).checks
    assert [check.fix for check in checks if check.id == "S4"] == ([fix] if fix else [])


@pytest.mark.parametrize("name", ["nothing", "empty", "target", "notes.txt"])
def test_other_things_are_a_usage_error(tmp_path: Path, target: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError) as caught:
        check_target(str(tmp_path / name), Options())
    assert caught.value.exit_code == 2
    assert all(kind.name in str(caught.value) for kind in KINDS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["draft/config.json"], "give its directory: draft"),
        (["states/manifest.json"], "give its directory: states"),
        (["states", "--draft", "target"], "--draft target: no draft"),
        (["states", "--draft", "states"], "--draft states: no draft"),
        (["http://127.0.0.1:1", "--draft", "target"], "--draft target: no draft"),
        (["draft", "--states", "nowhere"], "--states nowhere: no manifest.json"),
        (["draft", "--target", "draft"], "draft/config.json: the config of a draft (give the target's"),
        (["draft", "--engine", "sglang==0.5.23"], "with a version as sglang@0.5.23"),
        (["localhost:30000"], "http://localhost:30000)"),
        (["HTTP://127.0.0.1:30000/v1"], "http://127.0.0.1:30000/v1)"),
    ],
)
def test_a_slip_of_the_hand_is_no_broken_draft(
    draft: Path, target: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    (target.parent / "states").mkdir()
    (target.parent / "states" / "manifest.json").write_text("{}")
    monkeypatch.chdir(draft.parent)
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, UsageError) and told in str(done.exception)


def test_weights_that_may_not_be_read_are_not_to_be_copied_anew(draft: Path) -> None:
    facts = replace(gather(draft), weights_problem=f"model.safetensors: {os.strerror(errno.EACCES)}")
    assert [check.fix for check in readable(facts, Question())] == ["check the permissions, for the engine too"]


def test_a_pointer_in_place_of_weights_is_told_as_what_it_is(draft: Path) -> None:
    (draft / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n")
    done = CliRunner().invoke(cli, [str(draft)])
    assert done.exit_code == 1 and "a Git LFS pointer, not the weights (git lfs pull)" in done.stdout


@pytest.mark.parametrize("version", ["v0.5.23", "0.5.23.post1", "v0.5.23-cu130"])
def test_a_tag_is_the_version_that_it_names(draft: Path, version: str) -> None:
    assert check_target(str(draft), Options(engines=(f"sglang@{version}",))).verdict is Verdict.PASS


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
