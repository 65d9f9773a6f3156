"""One pass over the prompts: its figures, and why it would not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k25stack.bench.client import Ask
from k25stack.bench.load import Load
from k25stack.bench.records import RequestRecord
from k25stack.bench.window import Decode, Span, decode_time, mean_open, steady_window, tokens_in
from k25stack.engines import Counters

CLIENT_BOUND = 0.70
"""Share of one core above which the client, not the server, may be what was measured."""

ACHIEVED = 0.95
"""Share of the asked concurrency that must really have been open in the steady window."""


@dataclass(frozen=True)
class Repeat:
    """Figures of one load."""

    load: Load
    window: Span | None
    throughput: float | None  # output tok/s over the steady window
    per_request: float | None  # decode tok/s of one request = 1 / TPOT, pooled over the tokens
    decode: Decode | None  # step time without prefills, or None
    reasons: tuple[str, ...]  # empty: it counts
    counters: Counters | None = None  # what the server counted meanwhile

    @property
    def records(self) -> list[RequestRecord]:
        return [record for record in self.load.records if record.ok]


def assess(load: Load, ask: Ask, steady_share: float, counters: Counters | None = None) -> Repeat:
    """Figures over the requests that went well; every reason to reject them is named."""
    good = [record for record in load.records if record.ok]
    window = steady_window(load.records, steady_share)
    throughput = None
    if window is not None and window[1] > window[0] and good:
        throughput = tokens_in(good, window) / (window[1] - window[0])
    times = [record.decode for record in good]
    seconds, tokens = sum(s for s, _ in times), sum(t for _, t in times)
    return Repeat(
        load=load,
        window=window,
        throughput=throughput,
        per_request=tokens / seconds if seconds > 0 else None,
        decode=decode_time(good, window) if window is not None else None,
        reasons=tuple(_reasons(load, good, ask, window)),
        counters=counters,
    )


def _reasons(load: Load, good: Sequence[RequestRecord], ask: Ask, window: Span | None) -> list[str]:
    reasons = []
    failed = [record for record in load.records if not record.ok]
    if failed:
        reasons.append(f"{len(failed)} of {len(load.records)} requests failed: {failed[0].error}")
    wrong = [text for text in (usage_fault(record, ask.max_tokens) for record in good) if text]
    if wrong:
        reasons.append(f"{len(wrong)} requests with a wrong usage: {wrong[0]}")
    if ask.ignore_eos:
        early = [record for record in good if record.finish_reason != "length"]
        if early:
            reasons.append(f"{len(early)} requests ended by {early[0].finish_reason!r} although EOS is ignored")
    if load.cpu_share > CLIENT_BOUND:
        reasons.append(f"client-bound: {load.cpu_share:.0%} of a core, at most {CLIENT_BOUND:.0%}")
    if window is not None:
        achieved = mean_open([(record.t_send, record.t_end) for record in load.records], [window])
        if achieved < ACHIEVED * load.concurrency:
            reasons.append(f"{achieved:.1f} requests open in the steady window, {load.concurrency} asked")
    return reasons


def usage_fault(record: RequestRecord, max_tokens: int) -> str | None:
    """What is wrong with the usage of a finished request, or None."""
    tokens = record.completion_tokens
    if not isinstance(tokens, int) or tokens < 0:
        return f"{record.key}: completion_tokens is {tokens!r}"
    if tokens > max_tokens:
        return f"{record.key}: {tokens} completion tokens, at most {max_tokens} were asked for"
    if record.token_ids is not None and len(record.token_ids) != tokens:
        return f"{record.key}: usage says {tokens} tokens, {len(record.token_ids)} token ids came"
    if len(record.events) > tokens:
        return f"{record.key}: usage says {tokens} tokens, {len(record.events)} events with text came"
    return None
