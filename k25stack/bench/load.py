"""A closed loop: a fixed number of slots, each sending its next prompt as soon as the last reply has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k25stack.bench.client import Ask, Client
from k25stack.bench.records import Prompt, RequestRecord

GIVE_UP = 5
"""A load that met this many errors stops: its row is rejected anyway."""


@dataclass(frozen=True)
class Load:
    """What one pass over the prompts gave."""

    concurrency: int
    records: tuple[RequestRecord, ...]  # in order of sending
    wall_s: float
    cpu_s: float  # CPU seconds of this process, all threads

    @property
    def cpu_share(self) -> float:
        """Share of one core that the client used."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


async def closed_loop(
    client: Client,
    ask: Ask,
    prompts: Sequence[Prompt],
    concurrency: int,
    requests: int,
    min_seconds: float = 0.0,
    more: Callable[[Sequence[RequestRecord]], bool] | None = None,
    report: Callable[[int], None] | None = None,
) -> Load:
    """Send prompts in order (again from the first when they run out) until ``requests`` were sent, ``min_seconds``
    have passed and ``more`` (asked with the finished records) says no.

    Prompts in flight are finished.  ``report`` gets the number of finished requests.
    """
    records: list[RequestRecord] = []
    sent = 0
    wall, cpu = time.monotonic(), time.process_time()

    def go_on() -> bool:
        if sum(not record.ok for record in records) >= GIVE_UP:
            return False
        return sent < requests or time.monotonic() - wall < min_seconds or (more is not None and more(records))

    async def slot() -> None:
        nonlocal sent
        while go_on():
            prompt = prompts[sent % len(prompts)]
            sent += 1
            records.append(await client.complete(prompt, ask))
            if report is not None:
                report(len(records))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(slot())
    ordered = tuple(sorted(records, key=lambda record: record.t_send))
    return Load(concurrency, ordered, time.monotonic() - wall, time.process_time() - cpu)
