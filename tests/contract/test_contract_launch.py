"""Launch lines that would fail or mislead: each trap is named, with evidence, a fix and a source."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k25stack.contract.finding import Result, Verdict
from k25stack.contract.launch import check_argv, gpu_name, is_launch
from k25stack.contract.launch_draft import judge_tree
from k25stack.contract.stack import check_stack
from k25stack.errors import UsageError

STACKS = Path(__file__).resolve().parents[2] / "stacks"
SGLANG = "python3 -m sglang.launch_server --model-path /m --served-model-name m "
DRAFT = (
    "--max-running-requests 8 --speculative-algorithm EAGLE3 --speculative-draft-model-path a/eagle3 "
    "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
)
VLLM = "vllm serve /m --host 127.0.0.1 "


def judge(line: str, engine: str = "sglang@0.5.20", gpu: str = "sm120") -> Result:
    return check_argv(shlex.split(line), engine, gpu)


def wrong(line: str, engine: str = "sglang@0.5.20", gpu: str = "sm120") -> list[tuple[str, str]]:
    return [(check.id, check.verdict.value) for check in judge(line, engine, gpu).checks if check.verdict != "pass"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", []),
        (DRAFT, []),
        (DRAFT + "--attention-backend triton --cuda-graph-max-bs-decode 8", []),
        ("--atention-backend triton", [("L1", "fail")]),
        ("--cuda-graph-max-bs 8", [("L1", "fail")]),
        ("--tp 8", [("L2", "fail")]),
        ("--attention-backend tritom", [("L3", "fail")]),
        ("--tp-size eight", [("L3", "fail")]),
        ("--disable-cuda-graph", [("L4", "warn")]),
        ("--num-continuous-decode-steps 4", [("L5", "warn")]),
        ("stray", [("L6", "fail")]),
        ("--tp-size", [("L6", "fail")]),
        ("--tp-size 4 --tp-size 8", [("L7", "warn")]),
        (DRAFT.replace("EAGLE3", "EAGLE"), [("L10", "fail")]),
        (DRAFT.replace("EAGLE3", "nextn"), [("L10", "fail")]),
        (DRAFT.replace("EAGLE3", "EAGLE").replace("a/eagle3", "a/other"), [("L10", "warn")]),
        (DRAFT.replace("--max-running-requests 8", ""), [("L11", "fail")]),
        (DRAFT.replace("tokens 4", "tokens 16"), [("L12", "warn")]),
        (DRAFT.replace("--speculative-num-steps 3", ""), [("L12", "fail")]),
        (DRAFT.replace("--speculative-draft-model-path a/eagle3", ""), [("L13", "fail")]),
        ("--speculative-draft-model-path a/eagle3", [("L14", "fail")]),
        (DRAFT + "--quantization compressed-tensors", [("L15", "fail")]),
        (DRAFT + "--quantization compressed-tensors --speculative-draft-model-quantization unquant", []),
        (DRAFT + "--load-format dummy", [("L17", "warn")]),
        (DRAFT + "--speculative-token-map f", [("L18", "warn")]),
        (DRAFT + "--speculative-use-rejection-sampling", [("L18", "warn")]),
        ("--attention-backend trtllm_mla", [("L20", "fail")]),
        ("--decode-attention-backend cutedsl_mla", [("L20", "fail")]),
        ("--attention-backend fa3", [("L20", "fail")]),
        ("--moe-runner-backend flashinfer_trtllm", [("L20", "fail")]),
        ("--kv-cache-dtype fp8_e4m3", [("L21", "warn")]),
        (DRAFT + "--cuda-graph-max-bs-decode 4", [("L22", "warn")]),
        ("--enable-return-hidden-states", [("L30", "fail"), ("L31", "warn")]),
        ("--enable-return-hidden-states --disable-radix-cache", [("L31", "warn")]),
        ("--trust-remote-code", []),  # of a local directory
        ("--host 0.0.0.0", [("L41", "fail")]),
        ("--host 0.0.0.0 --api-key k", [("L41", "warn"), ("L42", "warn")]),
        ("--host 192.0.2.7", [("L41", "fail")]),
    ],
)
def test_one_trap_at_a_time(more: str, expected: list[tuple[str, str]]) -> None:
    assert wrong(SGLANG + more) == expected


def test_a_draft_inherits_the_targets_backend() -> None:
    line = SGLANG + DRAFT + "--attention-backend flashmla "
    assert wrong(line, gpu="sm90") == [("L16", "fail")]
    assert wrong(line + "--speculative-draft-attention-backend triton", gpu="sm90") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (VLLM, []),
        (VLLM + """--speculative-config '{"method":"eagle3","model":"a/b","num_speculative_tokens":3}'""", []),
        (VLLM + """--speculative-config '{"model":"a/b","num_speculative_tokens":3}'""", [("L14", "warn")]),
        (VLLM + """--speculative-config '{"method":"eagle3","model":"a/b"}'""", [("L12", "fail")]),
        (VLLM + "--speculative-config.method eagle3 --speculative-config.num_speculative_tokens 3", [("L13", "fail")]),
        (VLLM + "--attention-backend FLASHMLA", [("L20", "fail")]),
        (VLLM + "--attention-backend flashinfer_mla", [("L20", "fail")]),
        (VLLM + """--speculative-config '{"method":"extract_hidden_states"}'""", [("L31", "fail")]),
        ("vllm serve /m", [("L41", "fail")]),  # its default is every interface
        ("VLLM_API_KEY=k vllm serve /m", []),
        ("VLLM_ATTENTION_BACKEND=TRITON_MLA " + VLLM, [("L47", "warn")]),
        ("serve /m --host 127.0.0.1", [("L44", "fail"), ("L6", "fail")]),
    ],
)
def test_vllm_lines(line: str, expected: list[tuple[str, str]]) -> None:
    assert sorted(wrong(line, "vllm@0.31.0")) == expected


def test_containers() -> None:
    good = (
        "docker run --shm-size 32g -p 127.0.0.1:30000:30000 lmsysorg/sglang:v0.5.20@sha256:00 "
        "python3 -m sglang.launch_server --model-path /m --host 0.0.0.0 --tp-size 8"
    )
    assert wrong(good, "") == []
    assert wrong(good.replace("127.0.0.1:", ""), "") == [("L41", "fail")]
    assert wrong(good.replace("32g", "1g"), "") == [("L45", "fail")]
    assert wrong(good.replace("@sha256:00", ""), "") == [("L46", "warn")]
    bare = "docker run lmsysorg/sglang:v0.5.20@sha256:00 --model-path /m"
    assert wrong(bare, "sglang") == [("L44", "fail")]
    again = "docker run -p 127.0.0.1:8000:8000 vllm/vllm-openai:v0.31.0@sha256:00 serve /m"
    assert wrong(again, "") == [("L44", "fail")]


def test_remote_code_and_the_version() -> None:
    hub = "sglang serve a/b --trust-remote-code "
    assert wrong(hub) == [("L40", "warn")]
    assert wrong(hub + "--revision 0123abc") == [("L40", "warn")]  # the hub takes a commit whole or not at all
    assert wrong(hub + f"--revision {'0123abcd' * 5}") == []
    assert wrong("sglang serve --model-path /m", "sglang@0.5.9") == [("L43", "fail")]
    assert wrong("sglang serve /m", "sglang@0.5.21") == [("L0", "warn")]


def test_the_environment_is_judged_too() -> None:
    assert wrong("NCCL_P2P_LEVEL=sys " + SGLANG) == [("N2", "fail")]
    assert wrong("SGLANG_SIMULATE_ACC_LEN=2.5 " + SGLANG) == [("L47", "warn")]


def test_a_drafts_own_config_decides_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    line = SGLANG + DRAFT.replace("EAGLE3", "EAGLE").replace("a/eagle3", str(tmp_path))
    assert wrong(line) == [("L10", "fail")]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle"]}))
    assert wrong(line) == []
    (tmp_path / "config.json").write_text("{bad")
    assert wrong(line) == [("L10", "warn")]


@pytest.mark.parametrize(
    ("tree", "verdict"),
    [
        ((None, None, None), "pass"),
        ((3, 1, 4), "pass"),
        ((3, 1, None), "pass"),
        ((3, 1, 16), "warn"),
        ((5, 4, 8), "pass"),
        ((2, 2, 7), "pass"),  # 2 + 4 nodes and the root
        ((2, 2, 8), "fail"),
        ((3, 4, None), "fail"),
        ((None, 1, 4), "fail"),
        ((3, None, None), "fail"),
        ((0, 1, 1), "fail"),
    ],
)
def test_draft_tokens_add_up(tree: tuple[int | None, int | None, int | None], verdict: str) -> None:
    judged, problem, fix = judge_tree(*tree)
    assert judged.value == verdict
    assert bool(problem) is bool(fix) is (verdict != "pass")


def test_every_finding_tells_its_trap_the_evidence_a_fix_and_a_source() -> None:
    line = (
        "NCCL_P2P_LEVEL=sys sglang serve a/b --tp 8 --atention-backend x --disable-cuda-graph --host 0.0.0.0 "
        "--num-continuous-decode-steps 4 --speculative-algorithm EAGLE --speculative-draft-model-path a/eagle3 "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16 "
        "--quantization compressed-tensors --attention-backend trtllm_mla --trust-remote-code"
    )
    result = judge(line)
    found = [check for check in result.checks if check.verdict is not Verdict.PASS]
    assert {"L1", "L2", "L4", "L5", "L10", "L11", "L12", "L15", "L16", "L20", "L40", "L41", "N2"} == {
        c.id for c in found
    }
    for check in found:
        assert check.message and check.evidence and check.fix and check.source, check.id
    assert {"T1", "T9", "T10"} <= {word.strip("():,") for check in found for word in check.message.split()}
    assert result.exit_code == 1


@pytest.mark.parametrize("path", sorted(STACKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_profile_is_clean_on_its_own_version(path: Path) -> None:
    found = [check for check in check_stack(path).checks if check.id != "S3"]  # pins: test_contract_kinds.py
    assert [(check.id, check.group, check.message) for check in found if check.verdict is not Verdict.PASS] == []


def test_a_stack_is_judged_for_another_card_too() -> None:
    result = check_stack(STACKS / "kimi-k2.5-slice-h200.yaml", "random", gpu="sm120")
    assert result.verdict is Verdict.PASS
    assert any("sm120" in check.message for check in result.checks)
    with pytest.raises(UsageError, match="no card"):
        check_stack(STACKS / "kimi-k2.5-slice-h200.yaml", gpu="tpu")


def test_names_of_cards() -> None:
    assert {gpu_name(text) for text in ("sm120", "SM_120", "12.0", "120", "sm120a")} == {"sm120"}
    assert gpu_name("") == ""


def test_a_line_must_tell_its_engine_and_version() -> None:
    for line, engine in (("--x", ""), ("sglang serve m", ""), ("sglang serve m", "vllm@0.31.0"), ("--x", "tgi@1.0")):
        with pytest.raises(UsageError):
            check_argv(shlex.split(line), engine)
    assert is_launch(["vllm", "serve", "m"])
    assert is_launch(["--x"])
    assert not is_launch(["host", "stack.yaml", "http://127.0.0.1:30000"])


def test_the_command_line_takes_a_launch_after_two_dashes() -> None:
    from k25stack.cli.main import app

    words = ["check", "--json", "--gpu", "sm120", "--engine", "sglang@0.5.20", "--", *shlex.split(SGLANG + "--tp 8")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    shown = json.loads(done.stdout)
    assert (shown["kind"], shown["verdict"]) == ("launch", "fail")
    assert {"id", "group", "verdict", "message", "evidence", "fix", "source"} == set(shown["checks"][0])
