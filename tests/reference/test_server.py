"""The HTTP surface, over a real server process: replies, streams, refusals, disconnects, shutdown."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_draft

from k25stack.engines import get
from k25stack.speculation import RoundCounts

MODEL = "tiny"
ENGINE = get("reference")
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


class Server:
    """A server process on a free port."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "k25stack.reference.server", "--port", "0", "--threads", "1", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV, start_new_session=True
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        assert self.ready.startswith("ready http://127.0.0.1:"), self.process.communicate()
        self.port = int(self.ready.split()[1].rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON (or text) of one exchange; ``body`` as JSON unless it is bytes already."""
        connection = self.connect()
        payload = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(text) if is_json else text

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers.get_content_type() == "text/event-stream"
        events = [line[6:] for line in response.read().decode().split("\n\n") if line]
        connection.close()
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def counters(self) -> Any:
        return ENGINE.counters(self.call("GET", ENGINE.metrics_path)[1])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    server = Server(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def server(tiny_target_dir: Path, tiny_draft_dir: Path) -> Iterator[Server]:
    with serving("--target", str(tiny_target_dir), "--draft", str(tiny_draft_dir), "--served-model-name", MODEL,
                 "--slots", "4", "--max-len", "512", "--same-rows", "--dtype", "float32") as running:  # fmt: skip
        yield running


@pytest.fixture(scope="module")
def plain(tiny_target_dir: Path) -> Iterator[Server]:
    """The same without a draft."""
    with serving("--target", str(tiny_target_dir), "--served-model-name", MODEL, "--slots", "4", "--max-len", "512",
                 "--same-rows", "--dtype", "float32") as running:  # fmt: skip
        yield running


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "abc", "max_tokens": 24, "temperature": 0, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "hello"}
    return {"model": MODEL, "messages": [message], "max_tokens": 24, "temperature": 0, **fields}


def test_models_and_health(server: Server) -> None:
    status, listed = server.call("GET", ENGINE.models_path)
    assert status == 200
    assert [model["id"] for model in listed["data"]] == [MODEL]
    assert listed["data"][0]["max_model_len"] == 512
    assert server.call("GET", ENGINE.health_path)[0] == 200
    assert server.call("GET", "/health_generate")[0] == 200
    assert "k=3" in server.ready


def test_same_tokens_with_and_without_a_draft(server: Server, plain: Server) -> None:
    for prompt in tiny_draft.prompts(4, seed=5):
        body = completion(prompt=list(prompt), return_token_ids=True)
        (status, with_draft), (_, without) = (s.call("POST", "/v1/completions", body) for s in (server, plain))
        assert status == 200
        ours, theirs = with_draft["choices"][0], without["choices"][0]
        assert ours == theirs
        assert len(ours["token_ids"]) == with_draft["usage"]["completion_tokens"]
        counts = ENGINE.request_counters(with_draft)
        assert counts is not None
        assert 1 + counts.verify_calls + counts.accepted <= with_draft["usage"]["completion_tokens"]
        assert ENGINE.request_counters(without) is None


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", completion()), ("/v1/chat/completions", chat())])
def test_a_stream_says_what_the_whole_reply_says(server: Server, path: str, body: dict[str, Any]) -> None:
    _, whole = server.call("POST", path, body)
    chunks = server.stream(path, {**body, "stream_options": {"include_usage": True}, "return_token_ids": True})
    *parts, last = chunks
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert set(whole["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens", "spec"}
    choices = [part["choices"][0] for part in parts]
    if "chat" in path:
        assert choices[0]["delta"]["role"] == "assistant"
        text = "".join(choice["delta"]["content"] for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(parts) - 1) + ["length"]
    # One event per prefill and round, however many tokens: that is why tokens are counted by usage.
    assert sum(len(choice["token_ids"]) for choice in choices) == 24
    assert len(choices) == 1 + last["usage"]["spec"]["verify_calls"] + last["usage"]["spec"]["cut"]
    assert all("usage" not in part for part in parts)


def test_usage_in_every_chunk_on_request(server: Server) -> None:
    body = completion(stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in server.stream("/v1/completions", body)]
    assert counts == sorted(counts)
    assert counts[-1] == 24


def test_a_stop_string_ends_the_text_before_it(server: Server) -> None:
    _, whole = server.call("POST", "/v1/completions", completion(max_tokens=60))
    text = whole["choices"][0]["text"]
    stop = text[6:9]
    _, cut = server.call("POST", "/v1/completions", completion(max_tokens=60, stop=[stop]))
    assert cut["choices"][0]["text"] == text[: text.find(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


def test_a_seed_gives_the_same_sample(server: Server) -> None:
    def sample(seed: int) -> str:
        body = chat(temperature=1.3, top_p=0.95, seed=seed)
        text: str = server.call("POST", "/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
        return text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_ignore_eos_runs_to_max_tokens(server: Server) -> None:
    for prompt in tiny_draft.prompts(2, seed=8):
        body = completion(prompt=list(prompt), ignore_eos=True, max_tokens=60)
        _, reply = server.call("POST", "/v1/completions", body)
        assert reply["usage"]["completion_tokens"] == 60
        assert reply["choices"][0]["finish_reason"] == "length"


def test_metrics_are_the_sum_of_the_replies(server: Server) -> None:
    before = server.counters()
    replies: list[Any] = []

    def ask(prompt: tuple[int, ...]) -> None:
        replies.append(server.call("POST", "/v1/completions", completion(prompt=list(prompt), max_tokens=40))[1])

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in tiny_draft.prompts(7, seed=30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    window = server.counters().since(before)
    total = RoundCounts.zero(tiny_draft.K)
    for reply in replies:
        counts = ENGINE.request_counters(reply)
        assert counts is not None
        total += counts
    assert window.rounds() == total
    assert window.generated_tokens == sum(reply["usage"]["completion_tokens"] for reply in replies)
    assert window.prompt_tokens == sum(reply["usage"]["prompt_tokens"] for reply in replies)
    assert (window.running, window.waiting) == (0, 0)


def test_without_a_draft_there_are_no_speculative_series(plain: Server) -> None:
    assert plain.counters().rounds() is None


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/completions", b"{not json", 400, "not JSON"),
        ("/v1/completions", b"\xff\xfe", 400, "not JSON"),
        ("/v1/completions", [1], 400, "not a JSON object"),
        ("/v1/completions", completion(model="other"), 404, "no model 'other'"),
        ("/v1/completions", completion(prompt=None), 400, "prompt must be"),
        ("/v1/completions", completion(prompt=["a", "b"]), 400, "prompt must be"),
        ("/v1/completions", completion(prompt=[1, 2.5]), 400, "prompt must be"),
        ("/v1/completions", completion(prompt=[1, 512]), 400, "outside 0..511"),
        ("/v1/completions", completion(prompt=[]), 400, "empty"),
        ("/v1/completions", completion(prompt="x" * 600), 400, "the context holds 512 tokens, the prompt has 600"),
        ("/v1/completions", completion(max_tokens=510), 400, "and 510 more are asked for"),
        ("/v1/completions", completion(max_tokens="9"), 400, "max_tokens must be"),
        ("/v1/completions", completion(max_tokens=0), 400, "max_tokens must be"),
        ("/v1/completions", completion(temperature=-1), 400, "temperature is -1"),
        ("/v1/completions", completion(top_p=0), 400, "top_p is 0"),
        ("/v1/completions", completion(stop=[""]), 400, "stop must be"),
        ("/v1/completions", completion(n=2), 400, "has no n"),
        ("/v1/completions", completion(stream="yes"), 400, "stream must be"),
        ("/v1/chat/completions", chat(messages=[]), 400, "messages must be"),
        ("/v1/chat/completions", chat(messages=[{"role": "robot", "content": "x"}]), 400, "role must be"),
        ("/v1/chat/completions", chat(messages=[{"role": "user", "content": [{"type": "image"}]}]), 400, "text parts"),
        ("/v1/chat/completions", chat(tools=[{"type": "function"}]), 400, "has no tools"),
        ("/v1/embeddings", {}, 404, "/v1/embeddings"),
    ],
)
def test_bad_requests_are_refused_with_an_error_object(
    server: Server, path: str, body: Any, status: int, said: str
) -> None:
    got, reply = server.call("POST", path, body)
    assert got == status
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert said in reply["error"]["message"]
    assert reply["error"]["type"] == "invalid_request_error"


def test_text_parts_and_ids_in_a_list_are_accepted(server: Server) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    body = chat(messages=[{"role": "user", "content": parts}])
    assert (
        server.call("POST", "/v1/chat/completions", body)[1]["choices"]
        == (server.call("POST", "/v1/chat/completions", chat())[1]["choices"])
    )
    assert server.call("POST", "/v1/completions", completion(prompt=[[5, 6]]))[0] == 200


def test_a_client_that_leaves_aborts_its_request(server: Server) -> None:
    before = finished(server, "abort")
    connection = server.connect()
    body = completion(prompt=[5], max_tokens=500, ignore_eos=True, stream=True)
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()
    # The next request shares the engine's steps with what is left of the first: by its end the abort is through.
    server.call("POST", "/v1/completions", completion(prompt=[6], max_tokens=200, ignore_eos=True))
    assert finished(server, "abort") == before + 1
    assert server.counters().running == 0


def finished(server: Server, reason: str) -> int:
    text = server.call("GET", ENGINE.metrics_path)[1]
    return int(next(line for line in text.splitlines() if f'reason="{reason}"' in line).split()[-1])


def test_sigterm_lets_running_requests_finish_and_exits_0(tiny_target_dir: Path) -> None:
    with serving("--target", str(tiny_target_dir), "--served-model-name", MODEL, "--max-len", "512") as running:
        connection = running.connect()
        connection.request(
            "POST", "/v1/completions", json.dumps(completion(max_tokens=100, ignore_eos=True, stream=True))
        )
        response = connection.getresponse()
        first = response.readline()
        running.process.send_signal(signal.SIGTERM)
        rest = (first + response.read()).decode()
        assert rest.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in rest
        assert running.process.wait(60) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""


def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a server that must not start."""
    command = [sys.executable, "-m", "k25stack.reference.server", "--threads", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=120, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = refused("--target", str(tmp_path), "--port", port)
    assert code == 3
    assert said.startswith(f"error: 127.0.0.1:{port}: cannot listen: Address already in use")
    assert said.count("\n") == 1


def test_what_the_grace_is_too_short_for_is_aborted(tiny_target_dir: Path) -> None:
    with serving("--target", str(tiny_target_dir), "--served-model-name", MODEL, "--grace", "0") as running:
        connection = running.connect()
        connection.request(
            "POST", "/v1/completions", json.dumps(completion(max_tokens=900, ignore_eos=True, stream=True))
        )
        response = connection.getresponse()
        first = response.readline()
        assert running.stop() == 0
        rest = (first + response.read()).decode()
        assert '"finish_reason":"abort"' in rest
        assert rest.endswith("data: [DONE]\n\n")
