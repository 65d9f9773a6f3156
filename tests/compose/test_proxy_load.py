"""What the proxy costs, and that it loses nothing: 64 streams at once, every token of each arrives."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import pytest

from k25stack.bench.client import Ask, Client, session
from k25stack.bench.load import Load, closed_loop
from k25stack.bench.records import Prompt
from k25stack.pipeline.serveup import environment
from tests.compose.proxy_twin import Proxy

STREAMS, TOKENS, PAIRS = 64, 40, 150
PROMPTS = [Prompt(str(i), str(i), "test", (1, 2, i)) for i in range(STREAMS)]


def load(url: str) -> Load:
    """Two rounds of 64 streams."""

    async def run() -> Load:
        async with session() as connections:
            client = Client(url, connections, lambda reply: None)
            return await closed_loop(client, Ask("m", TOKENS), PROMPTS, STREAMS, 2 * STREAMS)

    return asyncio.run(run())


async def pairs(direct: str, proxied: str) -> tuple[list[float], list[float]]:
    """Seconds of the same small request, asked in turns on two kept connections."""
    taken: tuple[list[float], list[float]] = ([], [])
    async with session() as connections:
        clients = [Client(url, connections, lambda reply: None) for url in (direct, proxied)]
        for _ in range(PAIRS):
            for client, seconds in zip(clients, taken, strict=True):
                begun = time.perf_counter()
                await client.models("/v1/models")
                seconds.append(time.perf_counter() - begun)
    return taken


@pytest.fixture
def through(proxy: Proxy) -> dict[str, str]:
    return {"K25_API_KEY": proxy.keys["default"], "K25_CA_FILE": str(proxy.directory / "secrets" / "tls.crt")}


def test_64_streams_lose_no_token(proxy: Proxy, through: dict[str, str]) -> None:
    with environment(through):
        records = load(proxy.url).records
    assert len(records) == 2 * STREAMS
    assert [record.error for record in records if record.error] == []
    assert {record.completion_tokens for record in records} == {TOKENS}
    assert all(len(record.token_ids or ()) == TOKENS for record in records)


def test_it_adds_less_than_a_millisecond(
    proxy: Proxy, through: dict[str, str], fake_engine: Callable[..., str]
) -> None:
    direct = fake_engine("--accepted", "1,0,2", "--step-ms", "5")
    with environment({**through, "K25_API_KEY": proxy.keys["operator"]}):  # a key with requests left
        plain, proxied = asyncio.run(pairs(direct, proxy.url))
    added = statistics.median(proxied) - statistics.median(plain)
    print(f"p50 {statistics.median(plain) * 1e3:.3f} ms direct, {added * 1e3:.3f} ms added by the proxy (TLS)")
    assert added < 1e-3
