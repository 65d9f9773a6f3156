"""The fake engine as a fixture, and recorded samples to replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).parent / "fake_engine.py"


@pytest.fixture(scope="session")
def fake_engine() -> Iterator[Callable[..., str]]:
    """Give the URL of a fake engine with these options; faultless ones serve several tests."""
    started: list[subprocess.Popen[str]] = []
    urls: dict[tuple[str, ...], str] = {}

    def start(*options: str) -> str:
        if options in urls:
            return urls[options]
        process = subprocess.Popen([sys.executable, str(FAKE), *options], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        if "--fault" not in options:
            urls[options] = url
        return url

    yield start
    for process in started:
        process.kill()
        process.wait()


def sample(doc: str, turn: int = 0, **changes: Any) -> dict[str, Any]:
    """One regenerated row."""
    return {
        "doc_id": doc,
        "turn": turn,
        "question_id": doc,
        "domain": "test",
        "split": "held_out",
        "prompt_ids": [1, 2, turn + 3],
        "response_ids": [5, 6],
        "finish": "length",
        "decode": {"kind": "greedy", "temperature": 0.0, "max_new_tokens": 20},
        **changes,
    }


def write_samples(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
