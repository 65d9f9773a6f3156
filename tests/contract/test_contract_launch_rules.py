"""Every rule over launch lines fires where it should, and only there: lines of recipes, wrong ones and right ones."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from k25stack.contract.launch import check_argv

SGLANG, VLLM = "sglang@0.5.20", "vllm@0.31.0"
PATH = "sglang serve --model-path /m "
DRAFT = PATH + "--speculative-draft-model-path a/k2.5-eagle3 --max-running-requests 8 "
EAGLE3 = DRAFT + "--speculative-algorithm EAGLE3 "
SERVE = "vllm serve /m --host 127.0.0.1 "
JSON = SERVE + "--speculative-config "
NEXTN = PATH + "--max-running-requests 8 --speculative-algorithm EAGLE --speculative-draft-model-path a/R1-NextN "


def config(**keys: object) -> str:
    return shlex.quote(json.dumps(keys))


RUN = "docker run -p 127.0.0.1:8000:8000"
CHAIN = config(method="eagle3", model="/d", num_speculative_tokens=3)


def wrong(line: str, engine: str, gpu: str = "") -> list[str]:
    checks = check_argv(shlex.split(line), engine, gpu).checks
    return [f"{check.id} {check.verdict.value}" for check in checks if check.verdict.value != "pass"]


@pytest.mark.parametrize(
    ("line", "engine", "expected"),
    [
        # Values that the parser takes as any text, and the engine stops at.
        (DRAFT + "--speculative-algorithm EAGEL3", SGLANG, ["L3 fail"]),
        (DRAFT + "--speculative-algorithm OURS", SGLANG, ["L3 warn"]),  # a plugin may have registered it
        (DRAFT + "--speculative-algorithm EAGLE-3", "sglang@0.5.16", ["L3 fail"]),
        (DRAFT + "--speculative-algorithm eagle3", SGLANG, []),
        (EAGLE3 + "--speculative-draft-attention-backend tirton", SGLANG, ["L3 fail"]),
        (EAGLE3 + "--speculative-draft-attention-backend triton", SGLANG, []),
        (PATH + "--log-level loud", SGLANG, ["L3 fail"]),
        (PATH + "--log-level warning", SGLANG, []),
        (JSON + config(method="eagle33", model="/d", num_speculative_tokens=3), VLLM, ["L3 fail"]),
        (JSON + config(method="eagle3", model="/d", num_spec_tokens=3), VLLM, ["L3 fail", "L12 fail"]),
        (JSON + config(method="medusa", model="/d", num_speculative_tokens=3), VLLM, []),
        (JSON + config(method="medusa", model="/d", num_speculative_tokens=3), "vllm@0.33.0", ["L3 fail"]),
        (SERVE + "-O9", VLLM, ["L3 fail"]),
        (SERVE + "-O2", VLLM, []),
        # Options that stop the engine without one another, or beside it.
        (SERVE + "--enable-auto-tool-choice", VLLM, ["L9 fail"]),
        (SERVE + "--enable-auto-tool-choice --tool-call-parser kimi_k2", VLLM, []),
        (SERVE + "--no-enable-auto-tool-choice", VLLM, []),
        (SERVE + "--enable-per-request-metrics --disable-log-stats", VLLM, ["L9 fail"]),
        (JSON + CHAIN + " --spec-method eagle3", VLLM, ["L9 fail"]),
        (SERVE + "--spec-method eagle3 --spec-model /d --spec-tokens 3", VLLM, []),
        # Words that a launcher takes for itself.
        ("sglang serve /m --model-type llm", SGLANG, []),
        ("sglang serve --model-type=llm /m", SGLANG, []),
        ("sglang serve --model-path /m --model-type", SGLANG, ["L6 fail"]),
        ("python3 -m sglang.launch_server --model-path /m --model-type llm", SGLANG, ["L1 fail"]),
        ("sglang serve /m", "sglang@0.5.9", ["L6 fail", "L6 fail", "L43 fail"]),
        ("vllm serve --host 127.0.0.1 --served-model-name k -- /m", VLLM, ["L6 fail"]),
        ("vllm serve --host 127.0.0.1 --served-model-name k --model /m", VLLM, []),
        ("vllm serve /m --host 127.0.0.1 --model /n", VLLM, ["L6 fail"]),
        ("python -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --served-model-name k --model /m", VLLM, []),
        # vLLM's keys of a JSON option replace a JSON text given before.
        (SERVE + "--speculative-config.method eagle3 --speculative-config.model /d "
         "--speculative-config.num_speculative_tokens 3", VLLM, []),
        (JSON + CHAIN + " --speculative-config.num_speculative_tokens 5", VLLM, ["L7 warn", "L13 fail"]),
        (SERVE + "--port.a 3", VLLM, ["L3 fail"]),
        (SERVE + "--enforce-eager.a 3", VLLM, ["L6 fail"]),
        # EAGLE and an EAGLE-3 draft.
        (DRAFT + "--speculative-algorithm EAGLE", SGLANG, ["L10 fail"]),
        (DRAFT + "--speculative-algorithm nextn", SGLANG, ["L10 fail"]),
        (EAGLE3, SGLANG, []),
        (NEXTN, SGLANG, []),
        (PATH + "--max-running-requests 8 --speculative-algorithm EAGLE", SGLANG, []),  # the target's own MTP layer
        (PATH + "--max-running-requests 8 --speculative-algorithm EAGLE --speculative-draft-model-path /drafts/7",
         SGLANG, ["L10 warn"]),
        # Requests that run at once.
        (PATH + "--speculative-algorithm EAGLE", SGLANG, ["L11 fail"]),
        (PATH + "--speculative-algorithm NGRAM", SGLANG, ["L11 fail"]),
        (PATH, SGLANG, []),
        (JSON + CHAIN, VLLM, []),
        # Steps, topk and draft tokens.
        *[(EAGLE3 + f"--speculative-num-steps {steps} --speculative-eagle-topk {topk} "
           f"--speculative-num-draft-tokens {rows}", SGLANG, expected)
          for steps, topk, rows, expected in (
              (3, 1, 4, []), (3, 1, 16, ["L12 warn"]), (5, 8, 32, []), (3, 4, 16, []), (2, 4, 21, []),
              (2, 4, 22, ["L12 fail"]), (1, 4, 5, []), (1, 4, 6, ["L12 fail"]), (0, 1, 1, ["L12 fail"]))],
        (EAGLE3 + "--speculative-num-steps 3", SGLANG, ["L12 fail"]),
        (EAGLE3 + "--speculative-num-draft-tokens 4", SGLANG, ["L12 fail"]),
        (EAGLE3 + "--speculative-num-steps 3 --speculative-eagle-topk 1", SGLANG, []),
        (EAGLE3 + "--speculative-num-steps 3 --speculative-eagle-topk 4", SGLANG, ["L12 fail"]),
        (EAGLE3 + "--speculative-adaptive --speculative-num-steps 3", SGLANG, []),
        (DRAFT + "--speculative-algorithm DFLASH --speculative-num-draft-tokens 16", SGLANG, []),
        (PATH + "--speculative-algorithm NGRAM --speculative-num-draft-tokens 16 --max-running-requests 8", SGLANG, []),
        # Drafts that are missing, or read by nothing.
        (PATH + "--max-running-requests 8 --speculative-algorithm EAGLE3", SGLANG, ["L13 fail"]),
        (PATH + "--speculative-draft-model-path a/b", SGLANG, ["L14 fail"]),
        (JSON + config(method="eagle", num_speculative_tokens=3), VLLM, ["L13 fail"]),
        (JSON + config(method="mtp", num_speculative_tokens=1), VLLM, []),
        (JSON + config(method="ngram", num_speculative_tokens=5, prompt_lookup_max=4), VLLM, []),
        (JSON + config(model="/d", num_speculative_tokens=3), VLLM, ["L14 warn"]),
        # What a draft takes over from its target.
        (EAGLE3 + "--quantization awq", SGLANG, ["L15 fail"]),
        (EAGLE3 + "--quantization awq --speculative-draft-model-quantization unquant", SGLANG, []),
        (NEXTN + "--quantization awq", SGLANG, []),  # a layer of the target's own checkpoint
        (EAGLE3 + "--attention-backend trtllm_mla", SGLANG, ["L16 fail"]),
        (EAGLE3 + "--attention-backend trtllm_mla --speculative-draft-attention-backend triton", SGLANG, []),
        (NEXTN + "--attention-backend trtllm_mla", SGLANG, []),
        (EAGLE3.replace("k2.5-eagle3", "k2.5-eagle3-mla") + "--attention-backend flashmla", SGLANG, []),
        (EAGLE3 + "--attention-backend fa3", SGLANG, []),
        # Numbers that cannot be, and batches without a graph.
        (PATH + "--mem-fraction-static 90", SGLANG, ["L3 fail"]),
        (PATH + "--mem-fraction-static 0.9 --pp-size 2", SGLANG, []),
        (PATH + "--tp-size 0", SGLANG, ["L3 fail"]),
        (SERVE + "--gpu-memory-utilization 1.2", VLLM, ["L3 fail"]),
        (PATH + "--max-running-requests 64 --cuda-graph-max-bs-decode 32", SGLANG, ["L22 warn"]),
        (PATH + "--max-running-requests 64 --cuda-graph-bs-decode 1 2 64", SGLANG, []),
        (PATH + "--max-running-requests 64 --cuda-graph-bs-decode 1 2", SGLANG, ["L22 warn"]),
        (PATH + "--max-running-requests 64 --cuda-graph-max-bs-decode 32 --cuda-graph-backend-decode disabled",
         SGLANG, []),
        (PATH + "--max-running-requests 64 --cuda-graph-max-bs-decode 32 --disable-cuda-graph", SGLANG, ["L4 warn"]),
        (PATH + "--max-running-requests 64 --cuda-graph-max-bs 32", "sglang@0.5.16", ["L4 warn", "L22 warn"]),
        # Code of a hub repository: a branch or a tag is no pin.
        ("sglang serve a/b --trust-remote-code", SGLANG, ["L40 warn"]),
        ("sglang serve a/b --trust-remote-code --revision main", SGLANG, ["L40 warn"]),
        (f"sglang serve a/b --trust-remote-code --revision {'4d01dfe0' * 5}", SGLANG, []),
        (PATH + "--trust-remote-code", SGLANG, []),
        # Doors and containers.
        (PATH + "--host 0.0.0.0", SGLANG, ["L41 fail"]),
        (PATH + "--host ::", SGLANG, ["L41 fail"]),
        (PATH + "--host ::1", SGLANG, []),
        (PATH + "--host 0.0.0.0 --api-key k --admin-api-key a", SGLANG, ["L42 warn"]),
        ("VLLM_API_KEY=k vllm serve /m", VLLM, []),
        ("vllm serve /m", VLLM, ["L41 fail"]),
        (f"{RUN} --ipc=host vllm/vllm-openai@sha256:0 /m -tp 8", VLLM, []),
        (f"{RUN} --ipc=host vllm/vllm-openai@sha256:0 serve /m -tp 8", VLLM, ["L44 fail"]),
        (f"{RUN} --ipc=host vllm/vllm-openai:latest /m -tp 8", VLLM, ["L46 warn"]),
        *[(f"{RUN} vllm/vllm-openai@sha256:0 /m {ranks}", VLLM, ["L45 fail"]) for ranks in ("-tp 8", "-pp 2", "-dp 2")],
        (f"{RUN} --shm-size 32g vllm/vllm-openai@sha256:0 /m -tp 8", VLLM, []),
        (f"{RUN} vllm/vllm-openai@sha256:0 /m", VLLM, []),
        (f"{RUN} lmsysorg/sglang@sha256:0 --model-path /m", SGLANG, ["L44 fail"]),
        # States.
        (PATH + "--enable-return-hidden-states", "sglang@0.5.16", ["L30 fail", "L31 warn"]),
        (PATH + "--enable-return-aux-hidden-states --disable-radix-cache", "sglang@0.5.23", ["L9 fail"]),
        (PATH + "--enable-return-aux-hidden-states --disable-radix-cache --speculative-algorithm EAGLE3 "
         "--return-aux-hidden-state-layer-ids 2 30 58", "sglang@0.5.23", []),
        (EAGLE3 + "--enable-return-aux-hidden-states --disable-radix-cache", "sglang@0.5.23", ["L9 fail"]),
    ],
)  # fmt: skip
def test_a_rule_fires_where_it_should_and_only_there(line: str, engine: str, expected: list[str]) -> None:
    assert wrong(line, engine) == expected


@pytest.mark.parametrize(
    ("option", "gpu", "found"),
    [
        ("--attention-backend trtllm_mla", "sm120", ["L20 fail"]),
        ("--attention-backend trtllm_mla", "sm100", []),
        ("--attention-backend trtllm_mla", "sm103", []),
        ("--attention-backend trtllm_mla", "sm121", ["L20 fail"]),
        ("--attention-backend trtllm_mla", "", []),
        ("--attention-backend trtllm_mha", "sm120", ["L20 fail"]),
        ("--decode-attention-backend trtllm_mha", "sm120", []),
        ("--prefill-attention-backend fa3", "sm120", ["L20 fail"]),
        ("--attention-backend fa3", "sm90", []),
        ("--attention-backend flashmla", "sm120", ["L20 fail"]),
        ("--attention-backend cutedsl_mla", "sm120", ["L20 fail"]),
        ("--attention-backend triton", "sm120", []),
        ("--attention-backend flashinfer", "sm120", []),
        ("--moe-runner-backend deep_gemm", "sm120", ["L20 fail"]),
        ("--moe-runner-backend marlin", "sm120", []),
    ],
)
def test_backends_by_card(option: str, gpu: str, found: list[str]) -> None:
    assert wrong(PATH + option, SGLANG, gpu) == found


def test_what_a_drafts_own_config_says_counts_before_its_name(tmp_path: Path) -> None:
    line = PATH + f"--max-running-requests 8 --speculative-draft-model-path {tmp_path} --attention-backend trtllm_mla "
    for architecture, plain, third in (
        ("LlamaForCausalLMEagle3", ["L10 fail", "L16 fail"], ["L16 fail"]),
        ("Eagle3DeepseekV2ForCausalLM", ["L10 fail"], []),
        ("DeepseekV3ForCausalLMNextN", [], []),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}), encoding="utf-8")
        assert wrong(line + "--speculative-algorithm EAGLE", SGLANG) == plain
        assert wrong(line + "--speculative-algorithm EAGLE3", SGLANG) == third


def test_a_key_in_a_file_is_not_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("api-key: k\nadmin-api-key: a\nhost: 0.0.0.0\n", encoding="utf-8")
    assert wrong(PATH + f"--config {tmp_path / 'keys.yaml'}", SGLANG) == []
