"""The HTTP surface that the real engines have, over the reference engine (aiohttp).

``/v1/models``, ``/v1/completions``, ``/v1/chat/completions`` (also streamed), ``/health``, ``/health_generate``,
``/metrics``.  The engine steps in its own thread; handlers only check, tokenize and write.  A client that goes away
aborts its request.  Under speculation one server-sent event carries several tokens: count tokens by ``usage``, never
by events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from k25stack.errors import HostError, UsageError
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference import replies
from k25stack.reference.api import ApiError, Call, parse_chat, parse_completion
from k25stack.reference.loop import EngineLoop
from k25stack.reference.metrics import render
from k25stack.reference.replies import Piece, Reply
from k25stack.reference.request import Event, Request
from k25stack.reference.sampling import GREEDY
from k25stack.reference.text import TextStream

PROBE_S = 20.0
"""How long /health_generate waits for its one token."""

BODY_BYTES = 16 << 20


@dataclass
class Service:
    """What the handlers share."""

    loop: EngineLoop
    tokenizer: Tokenizer
    name: str  # served model name
    draining: bool = False
    quiet: asyncio.Event = field(default_factory=asyncio.Event)  # set while no generation is being answered
    open: int = 0

    def __post_init__(self) -> None:
        self.quiet.set()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Counts a generation for as long as its answer is being written."""
        self.open += 1
        self.quiet.clear()
        try:
            yield
        finally:
            self.open -= 1
            if not self.open:
                self.quiet.set()

    @property
    def context(self) -> int:
        return self.loop.engine.config.max_len

    # -- generation -------------------------------------------------------------------------------------------------

    def request(self, call: Call, stream: TextStream, on_event: Callable[[Event], None]) -> Request:
        """Tokenize a call.  Raises ApiError when it does not fit the context."""
        ids = self.prompt_ids(call)
        room = self.context - len(ids)
        tokens = room if call.max_tokens is None else call.max_tokens
        if room < 1 or tokens > room:
            asked = "" if call.max_tokens is None else f" and {call.max_tokens} more are asked for"
            raise ApiError(
                f"the context holds {self.context} tokens, the prompt has {len(ids)}{asked}",
                param="messages" if call.chat else "prompt",
                code="context_length_exceeded",
            )
        return Request(
            id=uuid.uuid4().hex,
            prompt=ids,
            max_tokens=tokens,
            sampling=call.sampling,
            stop_ids=() if call.ignore_eos else self.tokenizer.eos_ids,
            watch=stream,
            on_event=on_event,
        )

    def prompt_ids(self, call: Call) -> tuple[int, ...]:
        if isinstance(call.prompt, tuple):
            return call.prompt
        if isinstance(call.prompt, str):
            return tuple(self.tokenizer.encode(call.prompt))
        try:
            return tuple(self.tokenizer.ids_of_chat(call.prompt, **(call.template_args or {})))
        except (UsageError, TypeError) as error:  # TypeError: an argument of the caller's that the renderer owns
            raise ApiError(str(error), param="messages") from None

    async def run(self, call: Call) -> AsyncGenerator[Piece, None]:
        """Submit a call and yield its pieces; leaving early aborts it."""
        pieces: asyncio.Queue[Piece] = asyncio.Queue()
        here = asyncio.get_running_loop()
        stream = TextStream(self.tokenizer.decode, call.stop)

        def on_event(event: Event) -> None:  # in the engine's thread
            text = stream.take(final=event.finish is not None)
            here.call_soon_threadsafe(pieces.put_nowait, Piece(event.tokens, text, event.finish, event.counts))

        request = self.request(call, stream, on_event)
        try:
            self.loop.submit(request)
        except UsageError as error:
            raise ApiError(error.what, param="prompt") from None
        except HostError as error:
            raise ApiError(error.what, status=503) from None
        finished = False
        try:
            yield Piece((), "", prompt_tokens=len(request.prompt))  # first news: accepted, and the prompt's length
            while not finished:
                piece = await pieces.get()
                finished = piece.finish is not None
                yield piece
        finally:
            if not finished:
                self.loop.abort(request.id)


# -- handlers -------------------------------------------------------------------------------------------------------


async def generate(service: Service, web_request: web.Request, chat: bool) -> web.StreamResponse:
    if service.draining:
        raise ApiError("the server is shutting down", status=503)
    try:
        body = await web_request.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    call = (parse_chat if chat else parse_completion)(body, service.name)
    reply = Reply(call, service.name, int(time.time()))
    with service.answering():
        async with contextlib.aclosing(service.run(call)) as pieces:
            if call.stream:
                return await stream_reply(web_request, reply, pieces)
            async for piece in pieces:
                reply.add(piece)
    if reply.finish in ("error", "abort"):
        raise ApiError("the engine ended the request", status=503)
    return web.json_response(reply.whole())


async def stream_reply(web_request: web.Request, reply: Reply, pieces: AsyncIterator[Piece]) -> web.StreamResponse:
    """Server-sent events: one per engine step that has something to say, then the usage, then [DONE]."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    first = await anext(pieces)  # errors before this point are plain HTTP errors
    reply.add(first)
    await response.prepare(web_request)
    async for piece in pieces:
        for chunk in reply.chunks(piece):
            await response.write(b"data: " + replies.encode(chunk) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def models(service: Service) -> web.Response:
    engine = service.loop.engine
    model = {
        "id": service.name,
        "object": "model",
        "created": 0,
        "owned_by": "k25stack",
        "max_model_len": engine.config.max_len,
    }
    return web.json_response({"object": "list", "data": [model]})


async def health(service: Service) -> web.Response:
    if service.draining or not service.loop.healthy():
        raise ApiError("shutting down" if service.draining else "the engine does not step", status=503)
    return web.json_response({"status": "ok"})


async def health_generate(service: Service) -> web.Response:
    """Healthy only when one token really comes out."""
    call = Call(prompt=service.tokenizer.eos_ids[:1], max_tokens=1, sampling=GREEDY)

    async def probe() -> None:
        async with contextlib.aclosing(service.run(call)) as pieces:
            async for _ in pieces:
                pass

    try:
        await asyncio.wait_for(probe(), PROBE_S)
    except TimeoutError:
        raise ApiError(f"no token within {PROBE_S:g} s", status=503) from None
    return await health(service)


async def metrics(service: Service) -> web.Response:
    return web.Response(text=render(service.loop.engine, service.name), content_type="text/plain")


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal is OpenAI's error object."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPException as error:
        refusal = ApiError(f"{request.method} {request.path}: {error.reason}", status=error.status)
        return web.json_response(refusal.body(), status=error.status)


def application(service: Service) -> web.Application:
    """The routes over one service."""

    def bound(
        handler: Callable[[Service], Awaitable[web.Response]],
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def call(_: web.Request) -> web.Response:
            return await handler(service)

        return call

    async def completions(request: web.Request) -> web.StreamResponse:
        return await generate(service, request, chat=False)

    async def chat(request: web.Request) -> web.StreamResponse:
        return await generate(service, request, chat=True)

    app = web.Application(middlewares=[errors], client_max_size=BODY_BYTES)
    app.router.add_get("/v1/models", bound(models))
    app.router.add_get("/health", bound(health))
    app.router.add_get("/health_generate", bound(health_generate))
    app.router.add_get("/metrics", bound(metrics))
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    return app
