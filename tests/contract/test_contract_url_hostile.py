"""Servers that mean no good, or are busy with others: one line or a finding, soon, and never a wrong figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from k25stack.bench import client
from k25stack.contract import logs, probe
from k25stack.contract.finding import Result, Verdict
from k25stack.contract.url import UrlQuestion, check_url
from k25stack.errors import DamageError, HostError, UsageError

METRICS = """\
vllm:num_requests_running{{model_name="m"}} 0
vllm:num_requests_waiting{{model_name="m"}} 0
vllm:generation_tokens_total{{model_name="m"}} {tokens}
vllm:prompt_tokens_total{{model_name="m"}} 1
vllm:spec_decode_num_drafts_total{{model_name="m"}} {calls}
vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} {proposed}
vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} {accepted}
"""
REPLY = {"choices": [{"text": "a b", "token_ids": [1, 2]}], "usage": {"completion_tokens": 13}}
KEY = "of-no-known-shape"
OTHERS = 400  # tokens that somebody else's request adds


class Server(ThreadingHTTPServer):
    """A vLLM by its metrics; ``how`` says what is wrong with it."""

    daemon_threads = True

    def __init__(self, how: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.how, self.posts, self.gets = how, 0, 0

    def counters(self) -> str:
        self.gets += 1
        step = {"busy": self.gets, "backwards": -self.gets}.get(self.how, 0)
        calls = 1000 + 8 * self.posts + step if self.how != "restarted" else 1000 - 100 * self.posts
        tokens = 13 * self.posts + (OTHERS * self.posts if self.how == "beside" else 0)
        shown: dict[str, Any] = {"tokens": tokens, "calls": calls, "proposed": 3 * calls, "accepted": calls // 2}
        return METRICS.format(**{**shown, **({"calls": "NaN"} if self.how == "NaN" else {})})


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, text: str | bytes, code: int = 200) -> None:
        body = text if isinstance(text, bytes) else text.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" " * (1 << 16))
        except OSError:
            return

    def do_GET(self) -> None:
        if self.server.how == "endless":
            self.endless()
        elif self.path == "/v1/models":
            several = ', {"id": "adapter"}' if self.server.how == "several models" else ""
            self.answer(f'{{"data": [{{"id": "m"}}{several}]}}')
        elif self.path == "/metrics":
            self.answer(self.server.counters())
        else:
            self.answer('{"version": "0.31.0"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts += 1
        if self.server.how == "endless reply":
            self.endless()
        elif self.server.how == "dies" and self.server.posts > 3:
            self.close_connection = True
        elif self.server.how == "echoes":
            self.answer(f"no such key: {self.headers.get('Authorization')}, api_key={KEY}, {KEY}", 403)
        elif self.server.how == "half" and self.server.posts % 2:
            self.answer("oops", 500)
        elif self.server.how == "terminal codes":
            self.answer("bad\n\x1b[2Jworse", 500)
        else:
            self.answer(b"\xff\xfe" if self.server.how == "no text" else json.dumps(REPLY))


@contextmanager
def serving(how: str) -> Iterator[tuple[Server, str]]:
    with Server(how) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SETTLES", 3)
    monkeypatch.setattr(client, "LARGEST_BODY", 1 << 20)


def judged(how: str) -> Result:
    with serving(how) as (_, url):
        result = check_url(url, UrlQuestion(rounds=40, seconds=20))
    json.dumps(result.as_dict(), allow_nan=False)
    return result


def verdict(result: Result, name: str) -> list[tuple[Verdict, str]]:
    return [(check.verdict, check.message) for check in result.checks if check.id == name]


def test_an_idle_server_is_counted() -> None:
    found = verdict(judged("fine"), "U3")
    assert found[0][0] is Verdict.PASS
    assert "accept length 1.500" in found[0][1]


@pytest.mark.parametrize("how", ["busy", "beside", "backwards"])
def test_a_server_that_others_use_is_not_judged_by_their_rounds(how: str) -> None:
    """Metrics that never come to rest, or hold another request's tokens, ended in a hang or in its figures."""
    result = judged(how)
    assert verdict(result, "U3") == []
    assert verdict(result, "U2")[0][0] is Verdict.UNKNOWN
    assert "others use this server" in verdict(result, "U2")[0][1]


def test_counters_that_go_back_are_no_figure() -> None:
    result = judged("restarted")
    assert verdict(result, "U3") == []
    assert verdict(result, "U1")[0][0] is Verdict.FAIL


def test_metrics_that_are_no_numbers_are_no_counters() -> None:
    assert [check.id for check in judged("NaN").checks if check.id in ("U2", "U3")] == ["U2"]


@pytest.mark.parametrize("how", ["endless reply", "no text", "terminal codes"])
def test_a_reply_that_is_none_is_told(how: str) -> None:
    assert judged(how).checks[0].verdict is Verdict.FAIL


def test_a_body_without_an_end_is_left() -> None:
    with serving("endless") as (_, url), pytest.raises(HostError, match="more than 1 MiB"):
        check_url(url)


ODD_LOGS = ["accept len: 1.2.3, accept rate: 0.25.", "accept len: 2.50, accept rate: 0.62.", "accept len: 1.00, accept "
            "rate: 0.24", "accept len: ..., accept rate: ..", "accept len: 9, accept rate: 9"]  # fmt: skip


@pytest.mark.parametrize("rows", [None, 0, 1, -3, 4])
@pytest.mark.parametrize("text", ODD_LOGS)
def test_a_log_of_any_figures(tmp_path: Path, text: str, rows: int | None) -> None:
    (tmp_path / "log").write_text(text + "\n")
    assert next(check.id for check in logs.check_log(tmp_path / "log", rows)) == "U8"


def test_a_log_is_a_file() -> None:
    for path in (Path("/dev/zero"), Path("/")):
        with pytest.raises(HostError):
            list(logs.check_log(path))


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///x",
        "http://h/?key=a",
        "http://h/#a",
        "http://[::1",
        "http://h:99999",
        "http://h:0",
        "http://h:x",
        "ftp://h",
        "h:1",
        "",
    ],
)
def test_what_is_no_address_is_said_before_anything_is_asked(url: str) -> None:
    with pytest.raises(UsageError, match="not an http address"):
        check_url(url)


ROW = {"doc_id": "d", "turn": 1, "domain": "x", "split": "held_out", "prompt_ids": [1], "decode": {"kind": "greedy"}}
NO_ROWS: list[Any] = ["[]", "5", "null", "[" * 100_000, b"\xff\xfe", *({**ROW, key: None} for key in ROW), {**ROW,
                      "prompt_ids": ["1"]}, {**ROW, "decode": "greedy"}, {**ROW, "doc_id": []}]  # fmt: skip


def test_samples_of_any_content_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    for one in NO_ROWS:
        file.write_bytes(one if isinstance(one, bytes) else (one if isinstance(one, str) else json.dumps(one)).encode())
        with pytest.raises(DamageError) as caught:
            check_url("http://127.0.0.1:9", UrlQuestion(samples=file))
        assert str(caught.value).isprintable()
    for path in (Path("/dev/zero"), tmp_path / "nowhere"):
        with pytest.raises(UsageError):
            check_url("http://127.0.0.1:9", UrlQuestion(samples=path))


def test_a_login_in_an_address_is_not_kept() -> None:
    with serving("fine") as (_, url):
        result = check_url(url.replace("//", "//me:secret@"), UrlQuestion(rounds=40, seconds=20))
    assert "secret" not in json.dumps(result.as_dict())


@pytest.mark.parametrize(
    "url", ["http://me:secret@127.0.0.1:9", "http://me:secret@127.0.0.1:9/?a", "http://me:se@cret@["]
)
def test_a_login_in_an_address_is_not_told_either(url: str) -> None:
    """The message of an address where nobody answers held the password."""
    with pytest.raises((HostError, UsageError)) as caught:
        check_url(url)
    assert "cret" not in str(caught.value)
    with serving("fine") as (_, good):
        result = check_url(good, UrlQuestion(rounds=40, seconds=20, baseline=url))
    assert "cret" not in json.dumps(result.as_dict())


def test_a_login_and_a_key_are_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K25_API_KEY", KEY)
    with pytest.raises(UsageError, match="unset K25_API_KEY"):
        check_url("http://me:secret@127.0.0.1:9")


def test_a_key_that_a_server_repeats_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K25_API_KEY", KEY)
    result = judged("echoes")
    assert result.verdict is Verdict.FAIL
    assert KEY not in json.dumps(result.as_dict())


def test_a_server_that_dies_half_way_fails_and_keeps_what_was_seen() -> None:
    """It passed with a warning, or ended in one line without the rounds that were seen."""
    with serving("dies") as (_, url):
        result = check_url(url, UrlQuestion(rounds=10_000, seconds=20))
    assert verdict(result, "U1") == [(Verdict.FAIL, "it stopped answering: the last 8 of 11 requests failed")]
    assert "over 24 rounds" in verdict(result, "U3")[0][1]


def test_a_server_that_fails_every_other_request_fails() -> None:
    assert verdict(judged("half"), "U1")[0][0] is Verdict.FAIL


def test_the_first_of_several_models_is_named() -> None:
    found = verdict(judged("several models"), "U1")[0]
    assert (found[0], "m, the first of its 2 models" in found[1]) == (Verdict.PASS, True)


@pytest.mark.parametrize("tail", ["/", "//", "/v1", "/v1/"])
def test_the_address_of_the_openai_routes_serves_too(tail: str) -> None:
    with serving("fine") as (_, url):
        assert verdict(check_url(url + tail, UrlQuestion(rounds=40, seconds=20)), "U3")[0][0] is Verdict.PASS


@pytest.mark.parametrize("name", ["draft", "target", "log"])
def test_a_path_that_is_not_there_is_told_before_anything_is_asked(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} /nowhere: no such file"):
        check_url("http://127.0.0.1:9", UrlQuestion(**{name: Path("/nowhere")}))
