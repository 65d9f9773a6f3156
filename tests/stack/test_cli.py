"""``k25stack stack``: stdout is data, stderr is for people, nothing is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from k25stack.cli.stack import app
from k25stack.errors import StackError, UsageError
from k25stack.stack import load_stack
from tests.stack.conftest import STACKS, Spoil

CPU = str(STACKS / "smollm2-cpu.yaml")
BIG = str(STACKS / "kimi-k2.5-8x-rtx-pro-6000.yaml")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_show_prints_a_stack_that_loads(tmp_path: Path) -> None:
    done = run("show", CPU)
    path = tmp_path / "shown.yaml"
    path.write_text(done.stdout, encoding="utf-8")
    assert load_stack(path) == load_stack(CPU)
    assert "Next: k25stack run" in done.stderr


def test_show_json_is_the_same_stack(tmp_path: Path) -> None:
    shown = json.loads(run("show", CPU, "--json").stdout)
    assert shown == load_stack(CPU).model_dump(mode="json")
    assert json.loads(run("show", CPU, "--json", "-p", "own").stdout)["speculative"]["draft"] == "own"


def test_an_unknown_profile_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no profile 'mine'.*baseline, random, own"):
        run("show", CPU, "-p", "mine")


def test_render_prints_environment_and_command(tmp_path: Path) -> None:
    done = run("render", BIG, "-p", "sglang-nccl")
    assert done.stdout.startswith("NCCL_PROTO=LL NCCL_ALGO=Ring NCCL_P2P_LEVEL=SYS python3 -m sglang.launch_server ")
    assert done.stderr == ""
    made = run("render", BIG, "-p", "sglang-eagle3-own", "--draft", "drafts/a b", "--port", "31000")
    assert "--speculative-draft-model-path 'drafts/a b'" in made.stdout
    assert "--port 31000" in made.stdout


def test_render_says_what_a_run_would_make() -> None:
    done = run("render", CPU, "-p", "own")
    assert " --target TARGET " in done.stdout
    assert " --draft DRAFT " in done.stdout
    assert "TARGET stands for" in done.stderr
    assert "DRAFT stands for" in done.stderr


def test_render_json_names_the_image_by_digest() -> None:
    shown = json.loads(run("render", BIG, "--json").stdout)
    assert shown["engine"] == "sglang@0.5.20"
    assert shown["image"].startswith("lmsysorg/sglang:v0.5.20@sha256:06e4f2ed")
    assert shown["findings"] == []


def test_render_fails_on_an_option_the_engine_does_not_have(spoil: Spoil) -> None:
    path = spoil("attention-backend: triton #", "atention-backend: triton #", "kimi-k2.5-8x-rtx-pro-6000")
    done = run("render", str(path))
    assert done.exit_code == 1
    assert "error: --atention-backend" in done.stderr
    assert "did you mean attention-backend?" in done.stderr


def test_a_dead_option_is_a_warning(spoil: Spoil) -> None:
    path = spoil("attention-backend: triton #", "num-continuous-decode-steps: 4 #", "kimi-k2.5-8x-rtx-pro-6000")
    done = run("render", str(path))
    assert done.exit_code == 0
    assert "warning: --num-continuous-decode-steps: sglang 0.5.20 accepts it and reads it nowhere" in done.stderr


def test_new_writes_a_small_file_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert run("new", str(path), "--from", "kimi-k2.5-slice-h200").exit_code == 0
    assert load_stack(path).name == "mine"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_new_whole_keeps_the_comments(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    run("new", str(path), "--from", BIG, "--whole", "--name", "other")
    assert load_stack(path).name == "other"
    assert path.read_text(encoding="utf-8").count("#") == Path(BIG).read_text(encoding="utf-8").count("#")


def test_new_dry_run_writes_nothing_and_existing_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert "extends: " in run("new", str(path), "-n").stdout
    assert not path.exists()
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="the file exists"):
        run("new", str(path))
    assert path.read_text(encoding="utf-8") == "mine"


def test_new_refuses_a_base_that_is_no_stack(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"no such stack file.*smollm2-cpu"):
        run("new", str(tmp_path / "mine.yaml"), "--from", "nothing")
    with pytest.raises(UsageError, match="cannot name a stack"):
        run("new", str(tmp_path / "Mine Stack.yaml"))
