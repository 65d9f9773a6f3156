"""A server with the real protocol and known truth: a process of its own that paces tokens instead of computing them.

``python fake_engine.py --ttft-ms 100 --step-ms 20 ...`` prints its port as the first line.  Tokens depend only on the
prompt, so two requests of one prompt give the same text.  With ``--accepted 1,0,2`` it speculates: round i of a
response accepts the i-th (cyclic) number of draft tokens, and the true counters follow from that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from k25stack.engines import reference as names
from k25stack.speculation import RoundCounts

FAULTS = ("none", "error", "truncate", "stall", "wrong-usage", "no-usage", "garbage", "drop")


@dataclass
class Fake:
    """Settings, and the counters behind /metrics."""

    ttft_s: float
    step_s: float
    accepted: tuple[int, ...]  # empty: no speculation
    k: int
    slots: asyncio.Semaphore
    fault: str
    fault_every: int  # every n-th completion has the fault
    ids: bool  # return token ids when asked
    completions: int = 0
    running: int = 0
    generated: int = 0
    rounds: RoundCounts = field(default_factory=lambda: RoundCounts(0, 0, 0))

    def pieces(self, tokens: int) -> tuple[list[int], RoundCounts]:
        """Tokens per step after the first one, and the true counters, for a response of ``tokens`` tokens."""
        sizes: list[int] = []
        counts = RoundCounts.zero(self.k)
        left = tokens - 1
        while left > 0:
            accepted = self.accepted[len(sizes) % len(self.accepted)] if self.accepted else 0
            if accepted + 1 > left:
                counts = counts + RoundCounts(0, 0, 0, (0,) * (self.k + 1), 1)
            else:
                counts = counts + RoundCounts.from_histogram(tuple(int(j == accepted) for j in range(self.k + 1)))
            sizes.append(min(accepted + 1, left))
            left -= sizes[-1]
        return sizes, counts


async def completion(fake: Fake, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    fake.completions += 1
    fault = fake.fault if fake.completions % fake.fault_every == 0 else "none"
    if fault == "error":
        return web.json_response({"error": {"message": "out of memory"}}, status=500)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async with fake.slots:
        fake.running += 1
        try:
            await stream(fake, body, fault, response)
        finally:
            fake.running -= 1
    return response


async def stream(fake: Fake, body: dict[str, Any], fault: str, response: web.StreamResponse) -> None:
    prompt = body.get("prompt") or [len(json.dumps(body["messages"]))]
    prompt = [len(prompt)] if isinstance(prompt, str) else prompt
    tokens = body["max_tokens"]
    ids = [(prompt[-1] + i) % 1000 for i in range(tokens)]
    sizes, counts = fake.pieces(tokens)
    clock = asyncio.get_running_loop()
    due = clock.time() + fake.ttft_s
    place = 0
    for number, size in enumerate([1, *sizes]):
        await asyncio.sleep(max(0.0, due - clock.time()))
        due += fake.step_s
        if number == 3 and fault == "truncate":
            await response.write(b'data: {"choices": [{"te')
            return
        if number == 3 and fault == "drop":
            response._req.transport.abort()  # type: ignore[union-attr]
            return
        if number == 3 and fault == "stall":
            await asyncio.sleep(3600)
        if number == 3 and fault == "garbage":
            await send(response, b"not json")
        choice: dict[str, Any] = {"index": 0, "text": "x" * size, "finish_reason": None}
        if fake.ids and body.get("return_token_ids"):
            choice["token_ids"] = ids[place : place + size]
        place += size
        if place == tokens:
            choice["finish_reason"] = "length"
        await send(response, {"choices": [choice]})
        fake.generated += size
    usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": tokens - 5 * (fault == "wrong-usage")}
    if fake.accepted:
        usage["spec"] = counts.as_dict()
        fake.rounds = fake.rounds + counts
    if fault != "no-usage":
        await send(response, {"choices": [], "usage": usage})
    await send(response, b"[DONE]")


async def send(response: web.StreamResponse, event: bytes | dict[str, Any]) -> None:
    data = event if isinstance(event, bytes) else json.dumps(event).encode()
    await response.write(b"data: " + data + b"\n\n")


async def models(fake: Fake, _: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "list", "data": [{"id": "fake-model", "owned_by": "test"}]})


async def metrics(fake: Fake, _: web.Request) -> web.StreamResponse:
    lines = [
        f"{names.RUNNING} {fake.running}",
        f"{names.WAITING} 0",
        f"{names.PROMPT_TOKENS} 0",
        f"{names.GENERATION_TOKENS} {fake.generated}",
    ]
    if fake.accepted:
        lines += [
            f"{names.VERIFY_CALLS} {fake.rounds.verify_calls}",
            f"{names.ACCEPTED} {fake.rounds.accepted}",
            f"{names.PROPOSED} {fake.rounds.proposed}",
            f"{names.CUT} {fake.rounds.cut}",
        ]
    return web.Response(text="\n".join(lines) + "\n")


def bound(
    fake: Fake, handler: Callable[[Fake, web.Request], Awaitable[web.StreamResponse]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def call(request: web.Request) -> web.StreamResponse:
        return await handler(fake, request)

    return call


async def serve(options: argparse.Namespace) -> None:
    accepted = tuple(int(part) for part in options.accepted.split(",") if part)
    fake = Fake(
        ttft_s=options.ttft_ms / 1000,
        step_s=options.step_ms / 1000,
        accepted=accepted,
        k=options.k,
        slots=asyncio.Semaphore(options.slots),
        fault=options.fault,
        fault_every=options.fault_every,
        ids=not options.no_ids,
    )
    app = web.Application()
    app.router.add_get("/v1/models", bound(fake, models))
    app.router.add_get("/metrics", bound(fake, metrics))
    app.router.add_post("/v1/completions", bound(fake, completion))
    app.router.add_post("/v1/chat/completions", bound(fake, completion))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--accepted", default="")
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-every", type=int, default=1)
    parser.add_argument("--no-ids", action="store_true")
    asyncio.run(serve(parser.parse_args()))
