"""A policy comes back as it was written, and a wrong one is one line that names the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k25stack.engines.supervise import SUPERVISED, policy
from k25stack.errors import UsageError
from k25stack.watch.policy import Policy, Ready, from_json, load


def test_every_key_has_a_default() -> None:
    assert from_json({}) == Policy()


@pytest.mark.parametrize("engine", sorted(SUPERVISED))
def test_what_the_engines_room_writes_is_read_back(engine: str, tmp_path: Path) -> None:
    made = policy(engine, "m", 30000, ready=Ready("0.0.0.0", 8099), history=tmp_path / "w.jsonl", heartbeat_s=5.0,
                  lease=tmp_path / "gpu.lease")  # fmt: skip
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(made.as_dict()))
    assert load(path) == made


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "an object is expected, not list"),
        ({"helth_url": "x"}, "unknown key 'helth_url'"),
        ({"engine": "llama"}, "engine: unknown engine 'llama'"),
        ({"health_url": "127.0.0.1:30000"}, "health_url: not http://HOST:PORT/PATH"),
        ({"health_url": "http://h:x/health"}, "health_url: not http://HOST:PORT/PATH"),
        ({"heartbeat_s": 0}, "heartbeat_s: a number from 0.1"),
        ({"misses": 1.5}, "misses: a whole number from 1"),
        ({"misses": True}, "misses: a whole number"),
        ({"counters": {"tokens": "a"}}, "counters: tokens: a list of names is expected"),
        ({"warm": {"url": "http://h:1/x"}}, "warm: keys url, body are needed"),
        ({"warm": {"url": "http://h:1/x", "body": []}}, "warm: body: an object is expected"),
        ({"ready": {"port": 70000}}, "ready: port: a whole number from 0 to 65535"),
        ({"history": "/x/watch.json"}, "history: a ledger file is named <writer>.jsonl"),
        ({"lease": "run/gpu.lease"}, "lease: an absolute path is expected"),
        ({"load_markers": {"read": "("}}, "marker read is no pattern"),
        ({"metrics_url": "http://h:1/metrics"}, "metrics_url without counters"),
    ],
)
def test_bad_policies_are_one_line(raw: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_json(raw, "policy.json")
    message = str(caught.value)
    assert message.startswith("policy.json") and words in message and "\n" not in message


def test_a_file_that_is_no_json_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{")
    for name, words in (("p.json", "not JSON"), ("q.json", "cannot be read")):
        with pytest.raises(UsageError, match=words):
            load(tmp_path / name)
