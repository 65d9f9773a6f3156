"""Kinds of requests, one of each: does the server answer them, and is it still the same server afterwards.

A draft is in the way of all of them: structured output masks logits in the verify pass, an abort ends a request
between two rounds, a prompt at the context limit leaves no room for draft tokens.  Each kind is followed by a short
greedy answer that must be the one from before.  What a server refuses in order (HTTP 4xx or 501) is told apart from
what fails.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from k25stack import engines
from k25stack.bench.ondemand import detect
from k25stack.bench.sse import EventParser
from k25stack.errors import HostError, UsageError

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REFUSED = (400, 404, 422, 501)
FREE_S = 20.0  # in which an aborted request must be gone from the running ones
TAIL = 8  # tokens left behind a prompt at the limit
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "minimum": 0}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "description": "The weather of a city.", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}  # fmt: skip
Outcome = Literal["passed", "refused", "failed"]


@dataclass(frozen=True)
class KindResult:
    """How one kind ended.  ``refused``: the server said in order that it does not do this."""

    kind: str
    outcome: Outcome
    detail: str
    seconds: float


class Wrong(Exception):
    """The server answered, and not as the protocol says."""


class Refusal(Exception):
    """The server refused the request in order."""


# No answer, a torn one, or one of another form.
FAULTS = (Wrong, aiohttp.ClientError, HostError, OSError, ValueError, KeyError, TypeError, IndexError)


def run_kinds(url: str, names: tuple[str, ...] = (), timeout_s: float = 120.0) -> tuple[KindResult, ...]:
    """Ask the server at ``url`` one request of each kind (all of them without ``names``).

    Raises HostError when nobody answers there, UsageError for an unknown kind.  ``K25_API_KEY`` and ``K25_CA_FILE`` are
    used as everywhere in this room.
    """
    for name in names:
        if name not in KINDS:
            raise UsageError(f"no kind {name!r}", remedy=f"one of {', '.join(KINDS)}")
    return asyncio.run(_run(url.rstrip("/"), detect(url), names or tuple(KINDS), timeout_s))


async def _run(url: str, engine: str, names: tuple[str, ...], timeout_s: float) -> tuple[KindResult, ...]:
    from k25stack.bench.client import Client, session

    async with session() as connections:
        adapter = engines.get(engine)
        client = Client(url, connections, adapter.request_counters)
        models = await client.models(adapter.models_path)
        if not models:
            raise HostError("the server lists no model", where=url, remedy="see its log")
        server = Server(client, str(models[0]["id"]), models[0].get("max_model_len"), adapter, timeout_s)
        try:
            before = await server.sign_of_life()
        except (Refusal, *FAULTS) as error:
            raise HostError(f"no answer to a plain request: {error}", where=url, remedy="see its log") from None
        return tuple([await _one(server, name, before) for name in names])


async def _one(server: Server, name: str, before: str) -> KindResult:
    begun = time.monotonic()
    outcome: Outcome = "passed"
    try:
        detail = await KINDS[name](server)
    except Refusal as refusal:
        outcome, detail = "refused", str(refusal)
    except FAULTS as error:
        known = isinstance(error, Wrong | HostError)
        outcome, detail = "failed", str(error) if known else f"{type(error).__name__}: {error}"
    try:
        after = await server.sign_of_life()
    except (Refusal, *FAULTS) as error:
        outcome, detail = "failed", f"{detail}; afterwards the server did not answer: {error}"
    else:
        if after != before:
            outcome, detail = "failed", f"{detail}; afterwards the same greedy request gave {after!r}, not {before!r}"
    return KindResult(name, outcome, detail, round(time.monotonic() - begun, 2))


class Server:
    """One server: what its model is called and how long its context is (tokens; None: it does not say)."""

    def __init__(self, client: Any, model: str, context: int | None, adapter: Any, timeout_s: float) -> None:
        self.client, self.model, self.context, self.adapter, self.timeout_s = client, model, context, adapter, timeout_s

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        """A greedy chat request."""
        message = {"role": "user", "content": text}
        return {"model": self.model, "messages": [message], "max_tokens": 48, "temperature": 0.0, **fields}

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply.  Raises Refusal or Wrong for any other status than 200."""
        async with self.post(path, body) as response:
            text = await response.text()
            self.judge(response.status, text)
        reply = json.loads(text)
        if not isinstance(reply, dict):
            raise Wrong("the answer is no JSON object")
        return reply

    def post(self, path: str, body: dict[str, Any]) -> Any:
        limit = aiohttp.ClientTimeout(total=self.timeout_s)
        return self.client.session.post(self.client.url + path, json=body, timeout=limit)

    @staticmethod
    def judge(status: int, text: str) -> None:
        said = f"HTTP {status}: {' '.join(text.split())[:160]}"
        if status in REFUSED:
            raise Refusal(said)
        if status != 200:
            raise Wrong(said)

    async def sign_of_life(self) -> str:
        """A short greedy answer, always to the same question."""
        reply = await self.ask(CHAT, self.chat("Count from one to five.", max_tokens=12))
        return str(reply["choices"][0]["message"]["content"])

    async def events(self, response: aiohttp.ClientResponse, most: int | None = None) -> list[bytes]:
        """Events of a stream, all or the first ``most``."""
        parser, found = EventParser(), []
        async for piece in response.content.iter_any():
            found += parser.feed(piece)
            if most is not None and len(found) >= most:
                break
        return found

    async def running(self) -> float:
        counters = self.adapter.counters(await self.client.text(self.adapter.metrics_path))
        return float(counters.running)


async def streaming(server: Server) -> str:
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    async with server.post(CHAT, server.chat("Name three rivers.", **fields)) as response:
        if response.status != 200:
            server.judge(response.status, await response.text())
        events = await server.events(response)
    if not events or events[-1] != b"[DONE]":
        raise Wrong("the stream ended without [DONE]")
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join((choice.get("delta") or {}).get("content") or "" for chunk in chunks for choice in chunk["choices"])
    usage: dict[str, Any] = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), {})
    if not text or not usage.get("completion_tokens"):
        raise Wrong("no text or no usage came in the stream")
    return f"{usage['completion_tokens']} tokens in {len(chunks)} events"


async def json_schema(server: Server) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    reply = await server.ask(CHAT, server.chat("A city and how many live there?", response_format=form, max_tokens=96))
    choice = reply["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut by max_tokens inside the object"
    found = json.loads(choice["message"]["content"])
    if set(found) != {"city", "people"} or not isinstance(found["city"], str) or not isinstance(found["people"], int):
        raise Wrong(f"not of the schema: {found}")
    return json.dumps(found, ensure_ascii=False)


async def tool_call(server: Server) -> str:
    named = {"type": "function", "function": {"name": TOOL["name"]}}
    tools = [{"type": "function", "function": TOOL}]
    reply = await server.ask(CHAT, server.chat("What is the weather in Paris?", tools=tools, tool_choice=named))
    calls = reply["choices"][0]["message"].get("tool_calls") or []
    if not calls:
        return "answered in text: the model made no call"
    function = calls[0]["function"]
    if function["name"] != TOOL["name"]:
        raise Wrong(f"a call of {function['name']!r}, which is no tool of this request")
    json.loads(function["arguments"])
    return f"{function['name']}({function['arguments']})"


async def abort(server: Server) -> str:
    most = 1024 if server.context is None else min(1024, server.context // 2)
    body = server.chat("Tell a very long story.", stream=True, max_tokens=most, ignore_eos=True)
    async with server.post(CHAT, body) as response:
        if response.status != 200:
            server.judge(response.status, await response.text())
        seen = len(await server.events(response, most=3))
        response.close()
    begun = time.monotonic()
    while await server.running() > 0:
        if time.monotonic() - begun > FREE_S:
            raise Wrong(f"{FREE_S:g} s after the client went away the request still runs")
        await asyncio.sleep(0.1)
    return f"closed after {seen} events, gone from the running requests {time.monotonic() - begun:.1f} s later"


async def several(server: Server) -> str:
    reply = await server.ask(CHAT, server.chat("Name a colour.", n=3, temperature=0.8, seed=1, max_tokens=16))
    indices = sorted(choice["index"] for choice in reply["choices"])
    if indices != [0, 1, 2]:
        raise Wrong(f"asked for 3 choices, got {indices}")
    return f"3 choices, {len({choice['message']['content'] for choice in reply['choices']})} different ones"


async def logprobs(server: Server) -> str:
    reply = await server.ask(CHAT, server.chat("Name three fruits.", logprobs=True, top_logprobs=3, max_tokens=16))
    tokens = (reply["choices"][0].get("logprobs") or {}).get("content") or []
    if len(tokens) != reply["usage"]["completion_tokens"]:
        raise Wrong(f"{len(tokens)} logprobs for {reply['usage']['completion_tokens']} tokens")
    for token in tokens:
        best = max(top["logprob"] for top in token["top_logprobs"])
        if token["logprob"] > 1e-6 or token["logprob"] < best - 1e-3:
            raise Wrong(f"greedy token {token['token']!r} has {token['logprob']:.4f}, the best has {best:.4f}")
    return f"{len(tokens)} tokens, each the likeliest of its top 3"


async def context_limit(server: Server) -> str:
    if server.context is None:
        raise Refusal("the server does not say how long its context is")

    def body(prompt: int) -> dict[str, Any]:
        ids = [100 + index % 150 for index in range(prompt)]  # in every vocabulary
        return {"model": server.model, "prompt": ids, "max_tokens": TAIL, "temperature": 0.0, "ignore_eos": True}

    reply = await server.ask(TEXT, body(server.context - TAIL))
    made = reply["usage"]["completion_tokens"]
    if made != TAIL:
        raise Wrong(f"{made} tokens after a prompt of {server.context - TAIL}, not {TAIL}")
    try:
        await server.ask(TEXT, body(server.context + 1))
    except Refusal:
        return f"{server.context - TAIL} + {TAIL} tokens answered, {server.context + 1} refused"
    raise Wrong(f"a prompt of {server.context + 1} tokens was taken by a context of {server.context}")


KINDS: dict[str, Callable[[Server], Awaitable[str]]] = {
    "streaming": streaming,
    "json_schema": json_schema,
    "tool call": tool_call,
    "abort mid-stream": abort,
    "n > 1": several,
    "logprobs": logprobs,
    "prompt at the context limit": context_limit,
}
