"""`k25stack serve` on the Docker twin: images, a workspace, and the command line."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STACK = ROOT / "stacks" / "smollm2-vllm-cpu.yaml"
CPU_IMAGE = os.environ.get("K25_CPU_IMAGE", "k25stack/cpu:local")
PROJECT = "k25stack-cpu"
FAKE = """\
FROM {base}
USER 0:0
COPY tests /opt/fake/tests
COPY vllm /opt/vllm/bin/vllm
USER 10001:10001
"""
ENGINE = """\
#!/bin/sh
exec /opt/k25stack/bin/python /opt/fake/tests/watch/fake_engine.py \\
  --engine vllm --host 0.0.0.0 --port 30000 --step-ms {step}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fake_image(docker: Callable[..., Any], directory: Path, name: str, step_ms: int) -> str:
    """The CPU image with a paced engine in place of the real one."""
    context = directory / name
    for room in ("watch", "bench"):
        shutil.copytree(ROOT / "tests" / room, context / "tests" / room, ignore=shutil.ignore_patterns("__pycache__"))
    (context / "Dockerfile").write_text(FAKE.format(base=CPU_IMAGE))
    (context / "vllm").write_text(ENGINE.format(step=step_ms))
    (context / "vllm").chmod(0o755)
    tag = f"k25-compose-{name}:local"
    docker("build", "--quiet", "--tag", tag, str(context), timeout_s=300)
    return tag


@dataclass
class Twin:
    """A workspace whose servers run on the twin."""

    root: Path
    env: dict[str, str]
    port: int = field(default_factory=free_port)

    def k25(self, *argv: str, check: bool = True, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
        """Run the command line in the workspace."""
        done = subprocess.run(
            [sys.executable, "-m", "k25stack.cli.main", *argv], cwd=self.root, env={**os.environ, **self.env},
            text=True, capture_output=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def serve(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.k25("serve", str(STACK), *argv, "--port", str(self.port), "-y", check=check)

    def docker(self, *argv: str, timeout_s: float = 120) -> str:
        done = subprocess.run(
            ["docker", *argv], env={**os.environ, **self.env}, text=True, capture_output=True, timeout=timeout_s,
            check=True,
        )  # fmt: skip
        return done.stdout.strip()

    @property
    def directory(self) -> Path:
        return self.root / "state" / "serve" / "smollm2-vllm-cpu"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def current(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "current.json").read_text()))

    def key(self, role: str = "user") -> str:
        return self.k25("serve", "key", str(STACK), "--role", role).stdout.strip()

    def curl(self, path: str, key: str = "", body: dict[str, Any] | None = None) -> tuple[int, str]:
        """(status, body) through the proxy, as a person would ask."""
        words = [
            "curl",
            "--silent",
            "--no-buffer",
            "--noproxy",
            "*",
            "--cacert",
            str(self.directory / "tls.crt"),
            "--max-time",
            "200",
        ]
        words += ["--write-out", "\n%{http_code}", *(["--header", f"Authorization: Bearer {key}"] if key else [])]
        if body is not None:
            words += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
        done = subprocess.run([*words, self.url + path], text=True, capture_output=True, timeout=220, check=True)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text

    def left(self) -> dict[str, list[str]]:
        """Containers, networks and volumes of the project."""
        label = f"label=com.docker.compose.project={PROJECT}"
        asked = {"containers": ["ps", "--all", "--quiet"], "networks": ["network", "ls", "--quiet"],
                 "volumes": ["volume", "ls", "--quiet"]}  # fmt: skip
        return {name: self.docker(*words, "--filter", label).split() for name, words in asked.items()}

    def prometheus(self, port: int, query: str) -> list[dict[str, Any]]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=10) as reply:
            return list(json.loads(reply.read())["data"]["result"])


def plain_compose(twin: Twin, directory: Path, *words: str) -> str:
    """`docker compose` as a person types it in ``compose/``, with nothing of this project on the host."""
    done = subprocess.run(
        ["docker", "compose", "-f", "compose.cpu.yaml", "--env-file", "cpu.env", *words], cwd=directory, text=True,
        capture_output=True, timeout=300, check=False, env={**os.environ, **twin.env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
