"""The supervisor as pid 1 of a real container."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import until

pytestmark = pytest.mark.twins
ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"  # this one, mounted
HEALTHY = (  # an engine of one file: answers 200 to everything
    "import http.server as s\n"
    "class H(s.BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200); self.end_headers()\n"
    "s.HTTPServer(('127.0.0.1', 30000), H).serve_forever()\n"
)
Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def container(docker_twin: Any, tmp_path: Path) -> Iterator[Start]:
    """Run the supervisor over an engine given as Python text; the name is the container's."""
    names: list[str] = []

    def start(name: str, code: str, *options: str) -> subprocess.CompletedProcess[str]:
        policy = tmp_path / "policy.json"
        policy.write_text(json.dumps({"restart": {"max": 0}, "heartbeat_s": 1.0, "grace_s": 8.0}))
        names.append(name)
        done: subprocess.CompletedProcess[str] = docker_twin.docker(
            "run", "--name", name, "--network", "none", "--read-only", "--cap-drop", "ALL", "--user", "10001:10001",
            "--security-opt", "no-new-privileges:true",
            "-v", f"{sys.base_prefix}:/python:ro", "-v", f"{ROOT / 'k25stack'}:/k/k25stack:ro",
            "-v", f"{policy}:/policy.json:ro", "-e", "PYTHONPATH=/k", "-e", "PYTHONDONTWRITEBYTECODE=1",
            "-e", "LD_LIBRARY_PATH=/python/lib", *options,
            docker_twin.base, PYTHON, "-m", "k25stack.watch.main", "--policy", "/policy.json", "--", PYTHON, "-c", code,
            check=False,
        )  # fmt: skip
        if done.returncode in (126, 127):
            pytest.skip(f"this Python does not run in the base image: {done.stderr.strip()[-200:]}")
        return done

    yield start
    docker_twin.docker("rm", "-f", *names, check=False)


def name() -> str:
    return f"k25-watch-{uuid.uuid4().hex[:8]}"


def test_out_of_memory_is_told_from_a_kill(container: Start) -> None:
    limit = ("--memory", "96m", "--memory-swap", "96m")
    greedy = container(name(), "x = [bytearray(1 << 20) for _ in range(400)]", *limit)
    assert greedy.returncode == 1
    assert "out of memory: this container counted an out-of-memory kill (raise the memory limit" in greedy.stderr
    killed = container(name(), "import os; os.kill(os.getpid(), 9)", *limit)
    assert killed.returncode == 1 and "exit 137: killed by SIGKILL" in killed.stderr


def test_pid_1_is_probed_reaps_and_stops_in_order(container: Start, docker_twin: Any) -> None:
    one = name()
    container(one, f"import os; os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'sleep 1000 & true &')\n{HEALTHY}", "-d")

    def inside(*argv: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = docker_twin.docker("exec", one, *argv, check=False)
        return done

    probe = (PYTHON, "-m", "k25stack.watch.main", "--probe", "http://127.0.0.1:8099/ready")
    until(lambda: inside(*probe).returncode == 0)
    states = inside("sh", "-c", "cat /proc/[0-9]*/stat").stdout
    assert "(sleep)" in states and ") Z " not in states
    docker_twin.docker("stop", "-t", "15", one)
    assert docker_twin.docker("inspect", "-f", "{{.State.ExitCode}}", one).stdout.strip() == "0"
