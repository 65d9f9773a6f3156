"""The protocol: warm up, repeat, assess, for every concurrency of one profile on one running server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from k25stack.bench.aside import Aside, Report
from k25stack.bench.client import Client, session
from k25stack.bench.load import closed_loop
from k25stack.bench.measurement import Measurement
from k25stack.bench.prompts import PromptSet
from k25stack.bench.protocol import WARMUP_TOKENS
from k25stack.bench.records import RequestRecord
from k25stack.bench.repeat import Repeat, assess
from k25stack.bench.row import build_row
from k25stack.engines import Counters, Engine
from k25stack.errors import HostError, UsageError
from k25stack.files import canonical_json, read_json, write_json, write_text


async def measure(measurement: Measurement, url: str, out: Path, report: Report) -> list[dict[str, Any]]:
    """Rows of every concurrency; raw requests and outputs are left under ``out/c<concurrency>/``.

    A concurrency whose ``row.json`` is there is not measured again.  Raises HostError when the server is away or no
    request succeeds.
    """
    rows = []
    with Aside(report) as aside:
        async with session() as connections:
            client = Client(url, connections, measurement.engine.request_counters)
            model = await _model(client, measurement.engine)
            for concurrency in measurement.protocol.concurrency:
                done = out / f"c{concurrency}" / "row.json"
                if not done.exists():
                    await _concurrency(measurement, client, model, concurrency, done.parent, aside)
                rows.append(read_json(done))
    return rows


async def _model(client: Client, engine: Engine) -> str:
    models = await client.models(engine.models_path)
    if not models:
        raise HostError("the server has no model", where=client.url + engine.models_path)
    return str(models[0]["id"])


async def _concurrency(
    measurement: Measurement, client: Client, model: str, concurrency: int, out: Path, aside: Aside
) -> None:
    protocol, prompts = measurement.protocol, measurement.prompts.prompts
    warmups = max(concurrency, protocol.warmup)
    short = measurement.ask(model, min(measurement.max_tokens, WARMUP_TOKENS))
    shown = aside.of(f"C={concurrency} warm-up", warmups)
    await closed_loop(client, short, prompts[::-1], concurrency, warmups, report=shown)
    ask = measurement.ask(model, measurement.max_tokens)
    requests = protocol.requests_per_slot * concurrency
    repeats: list[Repeat] = []
    flushed = True
    for number in range(1, protocol.repeats + 1):
        flushed = await _flush(client, measurement.engine) and flushed
        before = await _counters(client, measurement.engine)
        load = await closed_loop(
            client,
            ask,
            prompts,
            concurrency,
            requests,
            protocol.min_seconds,
            more=_wants_rounds(protocol.rounds_at(concurrency), len(prompts)),
            report=aside.of(f"C={concurrency} repeat {number}/{protocol.repeats}", requests),
        )
        if not any(record.ok for record in load.records):
            raise HostError(f"every request failed: {load.records[0].error}", where=client.url, remedy="see its log")
        after = await _counters(client, measurement.engine)
        counted = after.since(before) if after is not None and before is not None else None
        repeats.append(assess(load, ask, protocol.steady_share, counted))
    row = build_row(measurement, model, concurrency, repeats, flushed)
    _write(out, row, repeats, measurement.prompts)


def _wants_rounds(rounds: int, distinct: int) -> Callable[[Sequence[RequestRecord]], bool] | None:
    """Go on through prompts not sent yet while the complete rounds are too few (sending one again adds no evidence)."""
    if not rounds:
        return None

    def more(records: Sequence[RequestRecord]) -> bool:
        known = [record.rounds for record in records if record.rounds is not None]
        return bool(known) and len(records) < distinct and sum(counts.verify_calls for counts in known) < rounds

    return more


async def _flush(client: Client, engine: Engine) -> bool:
    """Drop cached prefixes, so that a repeat finds what the first one found; False when the server would not."""
    if engine.flush_path is None:
        return True
    return await client.post(engine.flush_path)


async def _counters(client: Client, engine: Engine) -> Counters | None:
    """The server's counters; None when it shows no metrics (they are a second source, not a need)."""
    try:
        return engine.counters(await client.text(engine.metrics_path))
    except (HostError, UsageError):
        return None


def _write(out: Path, row: dict[str, Any], repeats: Sequence[Repeat], prompts: PromptSet) -> None:
    """Raw requests, outputs of the first repeat, and last the row: its presence says that the rest is whole."""
    requests = [
        canonical_json({"repeat": number, **record.as_dict()})
        for number, repeat in enumerate(repeats, start=1)
        for record in repeat.load.records
    ]
    write_text(out / "requests.jsonl", "".join(line + "\n" for line in requests))
    write_text(out / "outputs.jsonl", "".join(line + "\n" for line in _outputs(repeats[0].records, prompts)))
    write_json(out / "row.json", row)


def _outputs(records: Sequence[RequestRecord], prompts: PromptSet) -> list[str]:
    """One line per prompt with what the server made of it the first time; none without token ids."""
    ids = {prompt.key: prompt.ids for prompt in prompts.prompts}
    first: dict[str, RequestRecord] = {}
    for record in records:
        first.setdefault(record.key, record)
    return [
        canonical_json(
            {
                "key": key,
                "domain": record.domain,
                "prompt_ids": list(ids[key]),
                "token_ids": list(record.token_ids),
                "finish_reason": record.finish_reason,
            }
        )
        for key, record in sorted(first.items())
        if record.token_ids is not None
    ]
