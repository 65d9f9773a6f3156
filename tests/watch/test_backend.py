"""The process backend starts a job that has a policy under the supervisor."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from k25stack.engines.supervise import policy
from k25stack.jobs import Job, ProcessBackend
from k25stack.pipeline.service import answers, free_port
from k25stack.proc import children
from k25stack.watch.policy import Ready, Restart, Warm

from .conftest import BODY, FAKE, until


@pytest.mark.twins
def test_a_job_with_a_policy_is_healed_and_stopped(tmp_path: Path) -> None:
    port, own = free_port(), free_port()
    made = policy("vllm", "fake", port, ready=Ready(port=own), restart=Restart(2, 0.05), heartbeat_s=1.0, grace_s=5.0)
    raw = made.as_dict() | {"warm": Warm(f"http://127.0.0.1:{port}/v1/completions", BODY).__dict__}
    backend = ProcessBackend(tmp_path / "jobs")
    argv = (sys.executable, str(FAKE), "--port", str(port), "--engine", "vllm")
    handle = backend.submit(Job("run", "serve", "key", argv, tmp_path / "log", policy=raw))
    try:
        until(lambda: answers(f"http://127.0.0.1:{own}/ready"))
        first = engine_of(tmp_path / "log")
        os.kill(first, signal.SIGKILL)
        until(lambda: engine_of(tmp_path / "log") != first)
        until(lambda: answers(f"http://127.0.0.1:{own}/ready"))
    finally:
        state = backend.stop(handle, 10.0)
    assert (state.phase, state.code) == ("exited", 0)
    assert not answers(f"http://127.0.0.1:{port}/health") and engine_of(tmp_path / "log") not in children()


def engine_of(log: Path) -> int:
    """Pid of the engine's last start."""
    return int(log.read_text().rpartition("starting: pid ")[2].split()[0])
