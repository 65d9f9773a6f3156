"""The rendered proxy in a real nginx: keys, paths, limits, streams; what is wrong with a key file stops the start."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.compose import proxy_twin
from tests.compose.proxy_twin import Proxy

ASK = json.dumps({"model": "m", "prompt": [1, 2], "max_tokens": 12, "stream": True}).encode()


def test_a_stream_passes_with_the_key(proxy: Proxy) -> None:
    status, text = proxy.ask("/v1/completions", proxy.keys["default"], ASK)
    assert status == 200
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert sum(len(choice["text"]) for event in events for choice in event["choices"]) == 12
    assert text.rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("key", [None, "", "k25-wrong", "x" * 52])
def test_without_the_key_nothing_passes(proxy: Proxy, key: str | None) -> None:
    for path, body in (("/v1/completions", ASK), ("/v1/models", None), ("/metrics", None)):
        status, text = proxy.ask(path, key, body)
        assert status == 401
        assert json.loads(text)["error"]["type"] == "authentication_error"


def test_a_key_is_told_apart_by_case(proxy: Proxy) -> None:
    assert proxy.ask("/v1/models", proxy.keys["default"].upper())[0] == 401


@pytest.mark.parametrize(
    "path", ["/", "/generate", "/v1/rerank", "/v1/models/x", "/flush_cache", "/server_info", "/v1/../metrics/x"]
)
def test_off_the_list_is_404_with_and_without_a_key(proxy: Proxy, path: str) -> None:
    for key in (None, proxy.keys["operator"]):
        status, text = proxy.ask(path, key)
        assert (status, json.loads(text)["error"]["type"]) == (404, "not_found")


def test_only_operators_read_metrics(proxy: Proxy) -> None:
    assert proxy.ask("/metrics", proxy.keys["default"])[0] == 403
    status, text = proxy.ask("/metrics", proxy.keys["operator"])
    assert status == 200 and "requests_running" in text


def test_methods_are_fixed(proxy: Proxy) -> None:
    assert proxy.ask("/v1/models", proxy.keys["default"], b"{}", "POST")[0] == 405
    assert proxy.ask("/v1/completions", proxy.keys["default"], method="GET")[0] == 405
    assert proxy.ask("/metrics", proxy.keys["operator"], b"{}", "POST")[0] == 405


def test_a_body_has_a_limit(proxy: Proxy) -> None:
    status, text = proxy.ask("/v1/completions", proxy.keys["default"], b"x" * (33 << 20))
    assert status == 413 and "32 MiB" in text


def test_an_absent_engine_is_503_and_says_when_to_ask_again(proxy: Proxy) -> None:
    status, text = proxy.ask("/ready")  # nobody listens on the supervisor's port here
    assert status == 503 and "GET /ready" in text


def test_no_key_reaches_the_log(proxy: Proxy) -> None:
    proxy.ask("/v1/models", proxy.keys["default"])
    log = (proxy.directory / "log").read_text()
    assert '"who":"default"' in log
    assert not any(key in log for key in proxy.keys.values())


def test_a_flood_with_one_key_is_slowed(proxy: Proxy, tmp_path: Path) -> None:
    del proxy  # says whether nginx is here
    env, _ = proxy_twin.prepare(tmp_path, 9, requests_per_s=1, burst=2)
    assert "rate=1r/s" in (tmp_path / "nginx.conf").read_text() and env["CONFIG"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann user short", "shorter than 32"),
        ("ann boss " + "a" * 40, "neither user nor operator"),
        ("ann user " + "a" * 40 + '";}', "other characters"),
        ("Ann user " + "a" * 40, "the name has other characters"),
        ("ann user", "not three words"),
        ("ann user " + "a" * 40 + "\nbob user " + "a" * 40, "the key stands twice"),
        ("ann user " + "a" * 40 + "\nann user " + "b" * 40, "the name stands twice"),
        ("# nobody", "no key"),
    ],
)
def test_a_bad_key_file_stops_the_start(proxy: Proxy, tmp_path: Path, line: str, said: str) -> None:
    env, _ = proxy_twin.prepare(tmp_path, 9)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "secrets" / name).write_bytes((proxy.directory / "secrets" / name).read_bytes())
    (tmp_path / "secrets" / "api-keys").write_text(line + "\n")
    done = subprocess.run(
        ["sh", str(proxy_twin.START)], env=env, text=True, capture_output=True, timeout=20, check=False
    )
    assert done.returncode == 64
    assert said in done.stderr and "api-keys" in done.stderr
    assert "a" * 40 not in done.stderr
