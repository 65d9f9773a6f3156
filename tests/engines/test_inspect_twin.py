"""``stack import`` of real containers: a Docker Engine's own account of how they were made."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from docker_twin import DockerTwin

from k25stack.engines.importtext import import_launch

pytestmark = [pytest.mark.twins, pytest.mark.timeout(300)]
SGLANG, VLLM = "k25-inspect/sglang:v0.5.20", "k25-inspect/vllm-openai:v0.31.0"
LINE = ["python3", "-m", "sglang.launch_server", "--model-path", "/m", "--tp-size", "8", "--api-key", "sk-secretsecret"]
JSON = '{"method":"eagle3","model":"/d","num_speculative_tokens":3}'
SCRIPT = (
    "set -e; export NCCL_PROTO=LL\n# now\nexec sglang serve /m --tp-size 2 \\\n --attention-backend triton > /log 2>&1"
)


@pytest.fixture(scope="module")
def docker(docker_twin: DockerTwin) -> Iterator[Any]:
    def run(*words: str, text: str = "") -> str:
        done = subprocess.run(["docker", *words], env={**os.environ, **docker_twin.env}, input=text,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("tag", docker_twin.base, SGLANG)
    run("build", "-q", "-t", VLLM, "-", text=f'FROM {docker_twin.base}\nENV A_TOKEN=zz\nENTRYPOINT ["vllm", "serve"]\n')
    yield run
    run("rmi", "-f", SGLANG, VLLM)


@pytest.mark.parametrize(
    ("words", "profile", "told"),
    [
        (["--shm-size", "32g", "--ipc", "host", "-p", "30000:30000", "-e", "NCCL_P2P_LEVEL=SYS",
          "-e", "HF_TOKEN=hf_aaaaaaaa", "--ulimit", "memlock=-1", SGLANG, *LINE],
         {"engine": "sglang", "version": "0.5.20", "tensor_parallel": 8, "env": {"NCCL_P2P_LEVEL": "SYS"}},
         ["--ipc host", "-p 0.0.0.0:30000:30000", "Ulimits", "HF_TOKEN", "--api-key"]),
        (["--network", "host", "-e", "NCCL_PROTO=Simple", SGLANG, "bash", "-lc", SCRIPT],
         {"engine": "sglang", "version": "0.5.20", "tensor_parallel": 2, "argv": {"attention-backend": "triton"},
          "env": {"NCCL_PROTO": "LL"}}, ["--network host"]),
        ([VLLM, "/m", "-tp", "8", "--max-num-seqs", "4", "--speculative-config", JSON],
         {"engine": "vllm", "version": "0.31.0", "tensor_parallel": 8, "max_running": 4,
          "speculative": {"algorithm": "eagle3", "k": 3, "topk": 1, "draft": "/d"}}, ["A_TOKEN"]),
        (["--entrypoint", "/bin/sh", VLLM, "-c", "FOO=1 vllm serve /m -tp 2 & wait"],
         {"engine": "vllm", "version": "0.31.0", "tensor_parallel": 2, "env": {"FOO": "1"}}, []),
    ],
)  # fmt: skip
def test_a_real_container_becomes_a_profile(
    docker: Any, tmp_path: Any, words: list[str], profile: dict[str, Any], told: list[str]
) -> None:
    made = docker("create", *words).strip()
    try:
        path = tmp_path / "inspect.json"
        path.write_text(docker("inspect", made), encoding="utf-8")
    finally:
        docker("rm", made)
    text, notes = import_launch([str(path)], "", "kimi-k2.5-8x-rtx-pro-6000", "mine", None)
    assert yaml.safe_load(text)["serving"]["profiles"]["mine"] == profile
    unmapped = [note for title, note in notes if title == "not mapped"]
    assert [one for one in told if not any(note.startswith(one) for note in unmapped)] == []
    assert not any(secret in text for secret in ("sk-secret", "hf_aaaa", "=zz"))
    assert json.loads(path.read_text())[0]["Config"]["Image"] in words
