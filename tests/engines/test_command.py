"""Launch lines, scripts and containers: what is the engine's, and what is around it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from pathlib import Path

import pytest

from k25stack.engines.command import docker_bytes, image_engine, read_command, typed
from k25stack.engines.sources import read_launch, read_script, read_source
from k25stack.errors import UsageError


@pytest.mark.parametrize(
    ("line", "engine", "version", "words"),
    [
        ("python3 -m sglang.launch_server --model-path m", "sglang", "", "--model-path m"),
        ("/usr/bin/python -m sglang.launch_server --x", "sglang", "", "--x"),
        ("sglang serve m --tp-size 8", "sglang", "", "m --tp-size 8"),
        ("sglang serve --model-path m", "sglang", "", "--model-path m"),
        ("vllm serve m -tp 8", "vllm", "", "m -tp 8"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", "", "--model m"),
        ("nohup numactl -N0 vllm serve m", "vllm", "", "m"),
        ("docker run --gpus all -e A=b vllm/vllm-openai:v0.31.0 m -tp 8", "vllm", "0.31.0", "m -tp 8"),
        ("docker run --rm -it a/sglang:v0.5.20-cu130 python3 -m sglang.launch_server --x", "sglang", "0.5.20", "--x"),
        ("podman run --entrypoint= ghcr.io:5000/me/vllm-openai:dev vllm serve m", "vllm", "", "m"),
        ("sudo -E docker run -itd -p8000:8000 -eA=b -v/a:/b -w /x vllm/vllm-openai:v0.31.0 m", "vllm", "0.31.0", "m"),
        ("docker container run --gpus=all -d vllm/vllm-openai:v0.31.0 m --port 1", "vllm", "0.31.0", "m --port 1"),
        ("docker compose run it python3 -m sglang.launch_server --x", "sglang", "", "--x"),
        ("bash -lc 'cd /x && exec vllm serve m -tp 8 > log 2>&1 &'", "vllm", "", "m -tp 8"),
        ("docker run -it a/sglang:v0.5.20 bash -c 'python3 -m sglang.launch_server --x'", "sglang", "0.5.20", "--x"),
        ("docker run --entrypoint bash vllm/vllm-openai:v0.31.0 -c 'vllm serve m'", "vllm", "0.31.0", "m"),
        ("bash -c 'echo hello'", "", "", "bash -c 'echo hello'"),
        ("bash -c \"vllm serve 'm\"", "", "", "bash -c 'vllm serve '\"'\"'m'"),  # quotes that do not match
        ("--model-path m", "", "", "--model-path m"),
        ("ls -l", "", "", "ls -l"),
    ],
)  # fmt: skip
def test_a_line_is_taken_apart(line: str, engine: str, version: str, words: str) -> None:
    command = read_command(shlex.split(line))
    assert (command.engine, command.version, shlex.join(command.words)) == (engine, version, words)
    assert command.repeated == ()


@pytest.mark.parametrize(
    "line",
    [
        "docker run vllm/vllm-openai:v0.31.0 serve m",
        "docker run vllm/vllm-openai:v0.31.0 vllm serve m",
        "vllm serve serve m",
    ],
)
def test_serve_said_twice_is_seen(line: str) -> None:
    command = read_command(shlex.split(line))
    assert command.repeated
    assert command.words == ["m"]


def test_environment_before_the_line_and_of_the_container() -> None:
    assert read_command(shlex.split("A=1 env B='x y' vllm serve m")).env == {"A": "1", "B": "x y"}
    assert read_command(shlex.split("nohup env A=1 bash -c 'B=2 vllm serve m'")).env == {"A": "1", "B": "2"}
    inner = read_command(shlex.split("docker run -e A=1 -eC=3 img sh -c 'B=2 vllm serve m'"))
    assert inner.env == {"A": "1", "B": "2", "C": "3"}
    command = read_command(shlex.split("docker run -e A=1 --env=B=2 -p 127.0.0.1:8000:8000 --shm-size 32g img m"))
    assert command.env == {"A": "1", "B": "2"}
    assert command.container is not None
    assert (command.container.shm_bytes, command.container.ports) == (32 << 30, ["127.0.0.1:8000:8000"])


def test_images_tell_engine_and_version() -> None:
    assert image_engine("lmsysorg/sglang:v0.5.20@sha256:00") == ("sglang", "0.5.20")
    assert image_engine("registry:5000/vllm/vllm-openai") == ("vllm", "")
    assert image_engine("debian:12.1.0") == ("", "")
    assert (docker_bytes("64m"), docker_bytes("1024"), docker_bytes("much")) == (64 << 20, 1024, None)


def test_a_line_in_one_pair_of_quotes_is_the_line() -> None:
    line = "python3 -m sglang.launch_server \\\n  --model-path '/a b' --tp-size 8 > log &"
    assert typed([line]) == ["python3", "-m", "sglang.launch_server", "--model-path", "/a b", "--tp-size", "8"]
    for words in (["drafts/mine"], ["vllm", "serve", "m"], [], ["it's no line"]):
        assert typed(words) == words


SCRIPT = """#!/bin/bash
set -euo pipefail
export NCCL_P2P_LEVEL=SYS   # across the sockets
MODEL=${1:-/models/kimi}
TP="8"
CUDA_VISIBLE_DEVICES=0,1 python3 -m sglang.launch_server \\
    --model-path "$MODEL" --tp-size ${TP} \\
    --api-key $KEY > server.log 2>&1 &
wait
"""


def test_a_script_gives_its_variables_and_says_what_is_not_set() -> None:
    command, unclear = read_script(SCRIPT, "s.sh")
    assert command.words == ["--model-path", "/models/kimi", "--tp-size", "8", "--api-key", "$KEY"]
    assert command.env == {"NCCL_P2P_LEVEL": "SYS", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert unclear == ["not set in the script: $KEY"]


def test_a_script_is_never_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    script = tmp_path / "s.sh"
    script.write_text(f"X=$(touch {touched})\nvllm serve m --port $X\n")
    _, unclear = read_source(script)
    assert not touched.exists()
    assert any("output of a command" in line for line in unclear)


@pytest.mark.parametrize("text", ["echo hello\n", "", "[1, 2]", "{bad", "vllm serve 'open", "[" * 5000])
def test_a_file_without_a_launch_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UsageError, match="file"):
        read_source(path)


INSPECT = [
    {
        "Config": {
            "Image": "vllm/vllm-openai:v0.31.0",
            "Entrypoint": ["vllm", "serve"],
            "Cmd": ["moonshotai/Kimi-K2.5", "--tensor-parallel-size", "8"],
            "Env": ["NCCL_PROTO=LL", "PATH=/usr/bin"],
        },
        "HostConfig": {
            "ShmSize": 67108864,
            "IpcMode": "private",
            "NetworkMode": "bridge",
            "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8000"}]},
            "Binds": ["/models:/models:ro"],
        },
    }
]


def test_docker_inspect_is_read(tmp_path: Path) -> None:
    path = tmp_path / "inspect.json"
    path.write_text(json.dumps(INSPECT))
    command, unclear, origin = read_launch([str(path)])
    assert (command.engine, command.version, unclear, origin) == ("vllm", "0.31.0", [], str(path))
    assert command.words[:1] == ["moonshotai/Kimi-K2.5"]
    assert command.container is not None
    assert command.container.ports == ["0.0.0.0:8000:8000"]
    assert command.repeated == ()


def test_docker_inspect_with_the_entrypoint_repeated() -> None:
    item = json.loads(json.dumps(INSPECT))
    item[0]["Config"]["Cmd"] = ["serve", "m"]
    command, _ = read_source_text(item)
    assert command.repeated == ("serve",)


def read_source_text(value: object) -> tuple[object, list[str]]:
    from k25stack.engines.sources import read_inspect

    return read_inspect(json.dumps(value), "inspect")


WEIRD: list[object] = [None, True, 5, -1.5, "", "vllm serve m", [], [None], [5], {}, {"a": 1}, [["a"]], "\ud800"]


@pytest.mark.parametrize("part", ["Config", "HostConfig"])
def test_docker_inspect_of_any_shape_is_read_or_refused(part: str) -> None:
    for key in (*INSPECT[0][part], "Privileged"):
        for one in WEIRD:
            item = json.loads(json.dumps(INSPECT))
            item[0][part][key] = one
            for value in (item, [{**item[0], part: one}], item[0]):
                with contextlib.suppress(UsageError):
                    read_source_text(value)


def test_only_a_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (Path("/dev/zero"), tmp_path / "fifo", tmp_path):
        with pytest.raises(UsageError, match="no file"):
            read_source(path)
