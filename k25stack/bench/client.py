"""One streamed completion over HTTP, with the times at which its pieces arrived.

Reads raw bytes as they come (``iter_any``) and parses every event.  It does not retry, tokenize, or count events as
tokens.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from k25stack.bench.records import Event, Prompt, RequestRecord
from k25stack.bench.sse import EventParser
from k25stack.errors import HostError, UsageError
from k25stack.speculation import RoundCounts

LARGEST_BODY = 64 << 20  # bytes; metrics and replies of an engine are far smaller

# A key is missing, or is none of an operator: models and metrics are asked for first.
KEY = "give an operator's key in K25_API_KEY: k25stack serve key STACK --role operator"
AT_THE_DOOR = {401: KEY, 403: KEY}

CountReader = Callable[[Mapping[str, Any]], RoundCounts | None]
"""Counters from a reply (last value of every top-level key); the engine's adapter knows where they stand."""


@dataclass(frozen=True)
class Ask:
    """What every request of a load asks for."""

    model: str
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1  # -1: off
    ignore_eos: bool = False
    template_args: Mapping[str, Any] = field(default_factory=dict)  # of the chat template; chat prompts only
    options: Mapping[str, Any] = field(default_factory=dict)  # the engine's own fields, for counters in the reply
    timeout_s: float = 600.0  # of the whole request
    stall_s: float = 120.0  # without a byte

    def path(self, prompt: Prompt) -> str:
        return "/v1/completions" if prompt.ids else "/v1/chat/completions"

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The request's JSON.  ``return_token_ids`` is ignored by engines that do not know it."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **self.options,
        }
        if self.top_k > 0:
            body["top_k"] = self.top_k
        if self.ignore_eos:
            body["ignore_eos"] = True
        if prompt.ids:
            return {**body, "prompt": list(prompt.ids)}
        if self.template_args:
            body["chat_template_kwargs"] = dict(self.template_args)
        return {**body, "messages": [dict(message) for message in prompt.messages]}


@dataclass
class _Stream:
    """What has arrived of one stream."""

    events: list[Event] = field(default_factory=list)
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    reply: dict[str, Any] = field(default_factory=dict)  # last value seen of every top-level key
    done: bool = False
    refused: str | None = None

    def take(self, data: bytes, now: float) -> None:
        """One event; raises ValueError when it is not what the protocol says."""
        if data == b"[DONE]":
            self.done = True
            return
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("an event is no JSON object")
        if chunk.get("error"):
            self.refused = f"error in the stream: {_short(chunk['error'])}"
        self.reply.update((key, value) for key, value in chunk.items() if value is not None)
        for choice in chunk.get("choices") or []:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
            ids = choice.get("token_ids")
            if ids:
                self.token_ids = [*(self.token_ids or []), *ids]
            if text or ids:
                self.events.append(Event(now, len(ids) if ids is not None else None))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.strip().replace("\n", " ")[:200]


class Client:
    """Connections to one server.  ``origin`` is the monotonic moment from which records count their seconds."""

    def __init__(self, url: str, session: aiohttp.ClientSession, counts: CountReader) -> None:
        self.url = url.rstrip("/")
        self.session = session
        self.counts = counts
        self.origin = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self.origin

    async def models(self, path: str) -> list[dict[str, Any]]:
        """The server's models.  Raises HostError when it does not answer."""
        try:
            raw = json.loads(await self.text(path))
            return [dict(model) for model in raw["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise HostError("no list of models came back", where=self.url + path, remedy="is it an engine?") from None

    async def text(self, path: str) -> str:
        """Body of a GET.  Raises HostError when the server is away, answers with an error, or without an end."""
        where = self.url + path
        try:
            timeout = aiohttp.ClientTimeout(total=30)
            async with self.session.get(where, timeout=timeout) as response:
                if response.status != 200:
                    remedy = AT_THE_DOOR.get(response.status, "see the server's log")
                    raise HostError(f"HTTP {response.status}", where=where, remedy=remedy)
                return await whole_body(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:  # a bad certificate is a ValueError too
            many = isinstance(error, aiohttp.TooManyRedirects)
            why = "too many redirects" if many else str(error) or type(error).__name__
            known = not isinstance(error, aiohttp.ClientConnectorCertificateError)
            remedy = "is the server up?" if known else "name the server's certificate in K25_CA_FILE"
            raise HostError(f"no answer: {why}", where=where, remedy=remedy) from None
        except ValueError as error:
            raise HostError(str(error), where=where, remedy="is it an engine?") from None

    async def post(self, path: str) -> bool:
        """An empty POST; True when the server agreed."""
        try:
            timeout = aiohttp.ClientTimeout(total=30)
            async with self.session.post(self.url + path, timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def complete(self, prompt: Prompt, ask: Ask) -> RequestRecord:
        """Send one prompt and follow its stream to the end.  What goes wrong is in the record's ``error``."""
        payload = json.dumps(ask.body(prompt)).encode()
        stream = _Stream()
        sent = self.now()
        error: str | None = None
        try:
            error = await self._follow(ask, self.url + ask.path(prompt), payload, stream)
        except asyncio.CancelledError:
            raise
        except TimeoutError as problem:
            # aiohttp's sock_read timeout is a ServerTimeoutError; the total one is a plain TimeoutError
            stalled = isinstance(problem, aiohttp.ServerTimeoutError)
            error = f"no byte for {ask.stall_s:g} s" if stalled else f"not finished after {ask.timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as problem:
            error = f"connection: {str(problem) or type(problem).__name__}"
        except (ValueError, RecursionError) as problem:
            error = f"not an event of the protocol: {_short(str(problem))}"
        return self._record(prompt, stream, sent, error)

    async def _follow(self, ask: Ask, url: str, payload: bytes, stream: _Stream) -> str | None:
        """Read the stream into ``stream``; returns what is wrong with it, or None."""
        timeout = aiohttp.ClientTimeout(total=ask.timeout_s, sock_read=ask.stall_s)
        headers = {"Content-Type": "application/json"}
        async with self.session.post(url, data=payload, headers=headers, timeout=timeout) as response:
            if response.status != 200:
                return f"HTTP {response.status}: {_short(await response.text())}"
            parser = EventParser()
            async for piece in response.content.iter_any():
                now = self.now()
                for data in parser.feed(piece):
                    stream.take(data, now)
        if stream.refused:
            return stream.refused
        if not stream.done or parser.torn:
            return "the stream ended early"
        if "usage" not in stream.reply:
            return "no usage came: the server must support stream_options.include_usage"
        return None

    def _record(self, prompt: Prompt, stream: _Stream, sent: float, error: str | None) -> RequestRecord:
        usage = stream.reply.get("usage") or {}
        return RequestRecord(
            key=prompt.key,
            cluster=prompt.cluster,
            domain=prompt.domain,
            t_send=sent,
            t_first=stream.events[0].time if stream.events else None,
            t_end=self.now(),
            events=tuple(stream.events),
            completion_tokens=usage.get("completion_tokens"),
            prompt_tokens=usage.get("prompt_tokens"),
            finish_reason=stream.finish_reason,
            token_ids=tuple(stream.token_ids) if stream.token_ids is not None else None,
            rounds=None if error else self.counts(stream.reply),
            error=error,
        )


async def whole_body(response: aiohttp.ClientResponse) -> str:
    """The text of a reply.  Raises ValueError beyond ``LARGEST_BODY``: a server may send without an end."""
    pieces = bytearray()
    async for piece in response.content.iter_any():
        pieces += piece
        if len(pieces) > LARGEST_BODY:
            raise ValueError(f"a reply of more than {LARGEST_BODY >> 20} MiB")
    return pieces.decode("utf-8", errors="replace")


def session() -> aiohttp.ClientSession:
    """A session without a limit on connections; the load decides how many are open.

    ``K25_API_KEY`` is sent as the bearer's key, ``K25_CA_FILE`` names the certificate that a server with TLS is held
    against.  Raises UsageError when that file is none.
    """
    key, ca = os.environ.get("K25_API_KEY"), os.environ.get("K25_CA_FILE")
    try:
        tls = ssl.create_default_context(cafile=ca) if ca else True
    except OSError as error:  # an SSLError is one
        raise UsageError(f"no certificate: {error.strerror or error}", where=f"K25_CA_FILE={ca}") from None
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=tls), headers=headers)
