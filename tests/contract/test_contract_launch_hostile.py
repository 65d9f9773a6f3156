"""Launch lines of every kind: typed by people in a hurry, wrapped in shells and containers, or no launch at all."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.contract.finding import Verdict
from k25stack.contract.launch import check_argv, is_launch
from k25stack.engines.command import read_command
from k25stack.engines.imported import import_command
from k25stack.errors import K25Error

ENGINE = "sglang@0.5.20"
LAUNCH = "python3 -m sglang.launch_server --model-path /m --tp-size 8 --speculative-algorithm EAGLE "
LAUNCH += "--speculative-draft-model-path /d/eagle3 --max-running-requests 8 "
LAUNCH += "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"


def wrong(words: list[str], engine: str = ENGINE) -> list[tuple[str, str]]:
    checks = check_argv(words, engine, "sm120").checks
    assert all(check.message and check.evidence and check.fix and check.source
               for check in checks if check.verdict is not Verdict.PASS)  # fmt: skip
    return [(check.id, check.verdict.value) for check in checks if check.verdict is not Verdict.PASS]


@pytest.mark.parametrize(
    "words",
    [
        shlex.split(LAUNCH),
        [LAUNCH],
        [LAUNCH.replace(" --tp-size", " \\\n    --tp-size") + " > log 2>&1 &"],
        ["bash", "-c", LAUNCH],
        ["sudo", "-E", "bash", "-lc", f"cd /x && exec {LAUNCH} | tee log"],
        ["nohup", "numactl", "--cpunodebind=0", *shlex.split(LAUNCH)],
        ["srun", "-N1", "sh", "-c", f"A=b {LAUNCH}"],
    ],
)
def test_a_trap_is_seen_however_the_line_is_wrapped(words: list[str]) -> None:
    assert is_launch(words)
    assert wrong(words) == [("L10", "fail")]


@pytest.mark.parametrize("run", ["docker run", "sudo docker run", "docker container run -d", "podman run"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_trap_is_seen_inside_a_container(run: str, wrapped: bool) -> None:
    image = ["--ipc=host", "-eA=b", "-p127.0.0.1:1:1", "-it", "lmsysorg/sglang:v0.5.20@sha256:00"]
    inner = ["bash", "-c", LAUNCH] if wrapped else shlex.split(LAUNCH)
    assert wrong([*run.split(), *image, *inner], "") == [("L10", "fail")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve /m --host 127.0.0.1 --tp 8", [("L1", "fail")]),
        ("vllm serve /m --host 127.0.0.1 --speculative-config '[1]'", [("L3", "fail")]),
        ("vllm serve /m --host 127.0.0.1 --speculative-config '{bad'", [("L3", "fail")]),
        ("""vllm serve /m --host 127.0.0.1 --speculative-config '{"method":"eagle3","model":"/d","""
         """"num_speculative_tokens":"3"}'""", [("L3", "fail")]),
    ],
)  # fmt: skip
def test_what_vllm_would_stop_at(line: str, expected: list[tuple[str, str]]) -> None:
    assert wrong(shlex.split(line), "vllm@0.31.0") == expected


def test_a_config_file_is_judged_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model-path: /m\nspeculative-algorithm: EAGLE3\nspeculative-draft-model-path: /d\n")
    assert wrong(["sglang", "serve", "--config", str(file)]) == [("L11", "fail")]
    assert wrong(["sglang", "serve", f"--config={file}"]) == [("L8", "fail")]
    assert wrong(["sglang", "serve", "--config", "/on/the/host.yaml"]) == [("L8", "unknown")]


WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["--speculative-config", "--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk",
         "--max-running-requests", "--max-num-seqs", "-tp", "--tp-size", "--host", "--config", "--api-key", "--port",
         "--speculative-config.method", "--spec-model", "--model-path", "--load-format", "--kv-cache-dtype", "-O", "--",
         '{"method":"eagle3","model":[1],"num_speculative_tokens":{}}', '{"method":{},"model":{}}', "[1]", "null",
         '{"method":"extract_hidden_states","draft_model_config":{"hf_config":5}}', "EAGLE3", "NEXTN", "triton", "-1",
         "9" * 30, "::", "\ud800", "a\nb", "bash", "-c", "docker", "run", "vllm", "serve", "sglang", "python3", "-m",
         "sglang.launch_server", "A=b", "NCCL_ALGO=^", "NCCL_PROTO=;;", "NCCL_MAX_NCHANNELS=\u00b2", "-e", "-it", "&"]
    ),
)  # fmt: skip


@given(st.lists(WORDS, max_size=10), st.sampled_from([ENGINE, "vllm@0.31.0", ""]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_words_are_judged_or_refused_in_one_line(words: list[str], engine: str, joined: bool) -> None:
    words = [" ".join(words)] if joined else words
    for read in (
        lambda: json.dumps(check_argv(words, engine, "sm120").as_dict(), allow_nan=False),
        lambda: import_command(read_command(words), *engine.split("@")),
        lambda: is_launch(words),
    ):
        with contextlib.suppress(K25Error):
            read()
