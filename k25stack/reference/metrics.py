"""/metrics: the engine's counters as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator

from k25stack.engines import reference as names
from k25stack.reference.engine import Engine


def render(engine: Engine, model: str) -> str:
    """Counters since the start.  Speculative series are absent without a draft, as in the real engines."""
    lines: list[str] = []
    for name, kind, labels, value in series(engine):
        if not any(line.startswith(f"# TYPE {name} ") for line in lines):
            lines.append(f"# TYPE {name} {kind}")
        escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines.append(f'{name}{{model="{escaped}"{labels}}} {value}')
    return "\n".join(lines) + "\n"


def series(engine: Engine) -> Iterator[tuple[str, str, str, float]]:
    """(name, type, further labels, value) of every sample."""
    totals, scheduler = engine.totals, engine.scheduler
    yield names.RUNNING, "gauge", "", len(scheduler.active)
    yield names.WAITING, "gauge", "", len(scheduler.waiting)
    yield names.PROMPT_TOKENS, "counter", "", totals.prompt_tokens
    yield names.GENERATION_TOKENS, "counter", "", totals.generation_tokens
    for reason, count in sorted(totals.finished.items()):
        yield names.FINISHED, "counter", f',reason="{reason}"', count
    yield names.PREFILL_STEPS, "counter", "", totals.prefill_steps
    yield names.PREFILL_SECONDS, "counter", "", round(totals.prefill_seconds, 6)
    yield names.DECODE_STEPS, "counter", "", totals.decode_steps
    yield names.DECODE_SECONDS, "counter", "", round(totals.decode_seconds, 6)
    yield names.DECODE_REQUESTS, "counter", "", totals.decode_requests
    if engine.drafter is None:
        return
    rounds = totals.rounds()
    yield names.VERIFY_CALLS, "counter", "", rounds.verify_calls
    yield names.ACCEPTED, "counter", "", rounds.accepted
    yield names.PROPOSED, "counter", "", rounds.proposed
    for position in range(len(rounds.histogram) - 1):
        yield names.PER_POSITION, "counter", f',position="{position}"', sum(rounds.histogram[position + 1 :])
    yield names.CUT, "counter", "", rounds.cut
