r"""Which part of a load counts: the steady window, and the time inside it in which nothing is prefilled.

::

    open requests   ___/^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\___
    steady window      |<------------------------------->|        open >= 0.8 x peak (SGLang's steady_state rule)
    prefills           ##        #        #    #
    decode only          <------> <------> <--> <-------->        gives step and round times

Throughput is taken over the steady window.  The time of a decode step is taken from gaps between neighbouring events
of a request that lie in decode-only time, so prefills that hold the batch up do not enter it.  A server that runs
fewer requests than are open always has one waiting for its first token, has no decode-only time, and gives none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from k25stack.bench.records import RequestRecord, token_shares

Span = tuple[float, float]  # (from, to) in seconds since the load began

HANDOVER_S = 0.05
"""Dips shorter than this are a slot passing from a finished request to the next one, not the end of the window."""

MIN_GAPS = 20
"""Fewer event gaps in decode-only time than this give no step time."""


@dataclass(frozen=True)
class Decode:
    """Pure decoding inside the steady window."""

    seconds_per_token: float  # of one request, mean over its tokens
    running: float  # mean requests in decode
    share: float  # decode-only time / window


def counted(spans: Sequence[Span]) -> list[tuple[float, float, int]]:
    """(from, to, how many spans are open) pieces, in order, without empty ones."""
    marks = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    pieces = []
    open_now = 0
    for (here, change), (there, _) in pairwise(marks):
        open_now += change
        if there > here:
            pieces.append((here, there, open_now))
    return pieces


def joined(spans: Sequence[Span], gap: float) -> list[Span]:
    """Spans in order, with neighbours at most ``gap`` apart made one."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start - result[-1][1] <= gap:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def steady_window(records: Sequence[RequestRecord], share: float) -> Span | None:
    """The longest time in which at least ``share`` of the peak number of requests was open; the first of equals."""
    pieces = counted([(r.t_send, r.t_end) for r in records])
    if not pieces:
        return None
    need = share * max(count for _, _, count in pieces)
    steady = joined([(a, b) for a, b, count in pieces if count >= need], HANDOVER_S)
    return max(steady, key=lambda span: (span[1] - span[0], -span[0]))


def mean_open(spans: Sequence[Span], within: Sequence[Span]) -> float:
    """Mean number of ``spans`` open during ``within`` (disjoint), weighted by time; 0 for no time."""
    length = sum(end - start for start, end in within)
    if length <= 0:
        return 0.0
    overlap = sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans for start, end in within)
    return overlap / length


def tokens_in(records: Sequence[RequestRecord], window: Span) -> float:
    """Output tokens whose event falls into ``window`` (its start excluded)."""
    total = 0.0
    for record in records:
        for event, tokens in zip(record.events, token_shares(record), strict=True):
            total += tokens if window[0] < event.time <= window[1] else 0.0
    return total


def decode_only(records: Sequence[RequestRecord], window: Span) -> list[Span]:
    """The parts of ``window`` in which no request waits for its first token and at least one is decoding."""
    waiting = joined([(r.t_send, r.t_end if r.t_first is None else r.t_first) for r in records], 0.0)
    edges = [window[0], *[edge for span in waiting for edge in span], window[1]]
    free = list(zip(edges[::2], edges[1::2], strict=True))
    inside = [(max(a, window[0]), min(b, window[1])) for a, b in free]
    return [span for span in inside if span[1] > span[0]]


def decode_time(records: Sequence[RequestRecord], window: Span) -> Decode | None:
    """Time per token of a request while nothing is prefilled, or None when there is too little such time."""
    spans = decode_only(records, window)
    seconds, tokens, gaps = 0.0, 0.0, 0
    for record in records:
        shares = token_shares(record)
        place = 0
        for index, (before, after) in enumerate(pairwise(record.events), start=1):
            while place < len(spans) and spans[place][1] < after.time:
                place += 1
            if place == len(spans):
                break
            if before.time >= spans[place][0]:
                seconds += after.time - before.time
                tokens += shares[index]
                gaps += 1
    if gaps < MIN_GAPS or tokens <= 0:
        return None
    running = mean_open([(r.events[0].time, r.events[-1].time) for r in records if r.events], spans)
    share = sum(b - a for a, b in spans) / (window[1] - window[0])
    return Decode(seconds / tokens, running, share)
