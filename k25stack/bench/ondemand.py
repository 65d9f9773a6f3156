"""Measure a server that somebody else started: find out what it is, ask it shipped or recorded prompts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from k25stack import engines
from k25stack.bench.client import Client, session
from k25stack.bench.conclusion import conclude
from k25stack.bench.measure import measure
from k25stack.bench.measurement import Measurement
from k25stack.bench.prompts import PromptSet, from_samples, questions
from k25stack.bench.protocol import PromptFilter, Protocol
from k25stack.errors import UsageError

QUICK = {"concurrency": (1, 4), "repeats": 1, "warmup": 4, "requests_per_slot": 4}
FULL = {"concurrency": (1, 8, 32), "repeats": 3, "warmup": 16, "requests_per_slot": 10, "min_seconds": 60.0}
QUICK_TOKENS, FULL_TOKENS = 64, 512


def protocol_for(
    engine: str, quick: bool, concurrency: Sequence[int], repeats: int | None, max_tokens: int | None, samples: bool
) -> Protocol:
    """The protocol of ``k25stack bench URL``; what is given goes before the defaults."""
    values: dict[str, Any] = dict(QUICK if quick else FULL)
    if concurrency:
        values["concurrency"] = tuple(concurrency)
    if repeats is not None:
        values["repeats"] = repeats
    if max_tokens is None and not samples:
        max_tokens = QUICK_TOKENS if quick else FULL_TOKENS
    protocol = Protocol.parse({"profile": "url", "engine": engine, **values})
    return replace(protocol, max_tokens=max_tokens, prompts=PromptFilter())


def prompts_for(samples: Path | None) -> PromptSet:
    """Held-out rows of a samples file, or the shipped questions."""
    return questions() if samples is None else from_samples(samples, "held_out")


def detect(url: str) -> str:
    """Name of the engine behind ``url``, told by its metrics.  Raises HostError when nobody answers, UsageError when
    no engine claims them."""
    return asyncio.run(_detect(url))


async def _detect(url: str) -> str:
    async with session() as connections:
        client = Client(url, connections, lambda reply: None)
        for name in engines.NAMES:
            engine = engines.get(name)
            await client.models(engine.models_path)
            try:
                engine.counters(await client.text(engine.metrics_path))
            except UsageError:
                continue
            return name
    raise UsageError("no engine's metrics here", where=url, remedy=f"say --engine {' | '.join(engines.NAMES)}")


def measure_url(
    url: str, protocol: Protocol, prompts: PromptSet, report: Callable[[str, float, float, str], None], out: Path | None
) -> list[dict[str, Any]]:
    """Rows of a running server; raw requests stay under ``out`` when it is given.

    Raises UsageError when ``out`` holds a measurement already.
    """
    if out is not None and any(out.glob("c*/row.json")):
        raise UsageError("it holds a measurement already", where=str(out), remedy="choose another directory")
    measurement = Measurement.of(protocol, engines.get(protocol.engine), prompts)
    with tempfile.TemporaryDirectory(prefix="k25-bench-") as place:
        rows = asyncio.run(measure(measurement, url, out or Path(place), report))
    conclude(rows, {}, [], protocol.seed)
    return rows
