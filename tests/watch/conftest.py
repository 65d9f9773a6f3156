"""A supervised fake engine: both are processes of their own, seen from outside as an operator sees them."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k25stack.engines.supervise import policy
from k25stack.ledger import read_file
from k25stack.pipeline.service import free_port
from k25stack.watch.policy import Policy, Ready, Restart

FAKE = Path(__file__).with_name("fake_engine.py")
T = 0.6  # heartbeat of the fast tests


def until(condition: Callable[[], Any], within_s: float = 60.0) -> Any:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


class Watched:
    """One supervisor and its engine."""

    def __init__(self, root: Path, engine: str, *, beat: float, warm: tuple[str, ...] = (), **changes: Any) -> None:
        self.root = root
        self.port, ready = free_port(), free_port()
        self.url, self.own = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{ready}"
        values: dict[str, Any] = {
            "ready_s": 60.0, "heartbeat_s": beat, "grace_s": 8.0, "restart": Restart(2, 0.05),
            "ready": Ready(port=ready), "history": root / "watch.jsonl",
        }  # fmt: skip
        made = policy(engine, "fake", self.port, **{**values, **changes})
        # without names: one request, as policies of old have it; some faults of the fake engine set in after it
        asked = tuple(one for one in made.warm if one.name in warm)
        old = {"warm": {"url": f"{self.url}/v1/completions", "body": BODY}}
        raw = replace(made, warm=asked).as_dict() if warm else made.as_dict() | old
        (root / "policy.json").write_text(json.dumps(raw))
        self.engine = engine
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, argv: list[str] | None = None) -> Watched:
        fake = [sys.executable, str(FAKE), "--port", str(self.port), "--engine", self.engine, *options]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "k25stack.watch.main", "--policy", str(self.root / "policy.json"), "--",
                 *(argv or fake)], stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def ready(self, within_s: float = 60.0) -> Watched:
        until(lambda: self.answer("/ready")[0] == 200, within_s)
        return self

    def answer(self, path: str) -> tuple[int, str]:
        """Status and text of the supervisor's own page; (0, "") when nobody listens."""
        try:
            with urllib.request.urlopen(self.own + path, timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.answer("/status")[1]))

    def state(self, name: str, within_s: float = 60.0) -> dict[str, Any]:
        """The status once the supervisor is in that state."""
        return dict(
            until(lambda: self.answer("/status")[0] and (now := self.status())["state"] == name and now, within_s)
        )

    def pid(self) -> int:
        return int(self.status()["child"]["pid"])

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, within_s: float = 60.0) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def log(self) -> str:
        return (self.root / "log").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.root / "watch.jsonl"
        records = read_file(path) if path.exists() else []
        return [{**record.data, "time": record.time} for record in records if record.data["event"] == name]

    def ask(self, tokens: int = 20, timeout_s: float = 60.0, **fields: Any) -> bytes:
        """A streamed completion to its end, or as far as it came."""
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps({**BODY, "max_tokens": tokens, **fields}).encode()
        )
        got = b""
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                while piece := reply.read1():
                    got += piece
        except (OSError, http.client.HTTPException):
            pass  # cut
        return got

    def ask_aside(self, tokens: int = 20, into: list[bytes] | None = None, **fields: Any) -> threading.Thread:
        """The same in a thread; the answer is appended to ``into``."""
        answers: list[bytes] = [] if into is None else into
        thread = threading.Thread(target=lambda: answers.append(self.ask(tokens, **fields)), daemon=True)
        thread.start()
        return thread


BODY = {"prompt": [1, 2], "max_tokens": 8, "stream": True}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(engine: str = "sglang", *, beat: float = T, **changes: Any) -> Watched:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(Watched(root, engine, beat=beat, **changes))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.signal(signal.SIGTERM)
            one.signal(signal.SIGTERM)
            try:
                one.process.wait(10)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()


__all__ = ["BODY", "Policy", "Watched", "until"]
