"""The steady window and decode-only time on loads whose truth is known by construction."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack.bench.records import Event, RequestRecord, token_shares
from k25stack.bench.window import counted, decode_only, decode_time, joined, mean_open, steady_window, tokens_in


def request(
    send: float, first: float, step: float, events: int, per_event: int = 1, known: bool = True
) -> RequestRecord:
    """A reply with its first token at ``first`` and ``events`` further events, ``step`` seconds apart."""
    times = [first + i * step for i in range(events + 1)]
    counts = [1, *[per_event] * events]
    return RequestRecord(
        key=str(send),
        cluster=str(send),
        domain="test",
        t_send=send,
        t_first=first,
        t_end=times[-1] + 0.001,
        events=tuple(Event(t, n if known else None) for t, n in zip(times, counts, strict=True)),
        completion_tokens=sum(counts),
    )


def closed_loop(slots: int, requests: int, prefill: float, step: float, events: int) -> list[RequestRecord]:
    """Slots in lockstep, started one after another; nobody decodes while somebody else is prefilled."""
    made: list[RequestRecord] = []
    for slot in range(slots):
        now = slot * 3 * step
        for _ in range(requests):
            made.append(request(now, now + prefill, step, events))
            now = made[-1].t_end + 0.001
    return made


spans = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.1, 20)).map(lambda s: (s[0], s[0] + s[1])), min_size=1, max_size=20
)


@given(spans)
def test_counted_pieces_hold_all_open_time(given_spans: list[tuple[float, float]]) -> None:
    pieces = counted(given_spans)
    assert sum((b - a) * count for a, b, count in pieces) == pytest.approx(sum(b - a for a, b in given_spans))
    assert all(b > a for a, b, _ in pieces)


@given(spans)
def test_joined_spans_are_disjoint_and_cover_the_same(given_spans: list[tuple[float, float]]) -> None:
    merged = joined(given_spans, 0.0)
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    assert sum(b - a for a, b in merged) == pytest.approx(sum(b - a for a, b, n in counted(given_spans) if n > 0))


def test_steady_window_leaves_ramp_and_tail_out() -> None:
    records = [request(float(i), i + 0.1, 0.1, 200 - 10 * i) for i in range(5)]
    window = steady_window(records, 0.8)
    assert window == (3.0, pytest.approx(min(sorted(r.t_end for r in records)[1:]), abs=0.5))


def test_handover_of_a_slot_does_not_end_the_window() -> None:
    records = closed_loop(slots=1, requests=5, prefill=0.1, step=0.02, events=30)
    assert steady_window(records, 0.8) == (records[0].t_send, records[-1].t_end)


@pytest.mark.parametrize("known", [True, False])
def test_throughput_counts_tokens_not_events(known: bool) -> None:
    record = request(0.0, 1.0, 0.5, 10, per_event=3, known=known)
    assert tokens_in([record], (0.0, 10.0)) == pytest.approx(31)
    assert tokens_in([record], (1.0, 3.5)) == pytest.approx(15)
    assert sum(token_shares(record)) == record.completion_tokens


def test_decode_only_time_has_nobody_waiting() -> None:
    records = [request(0.0, 1.0, 0.1, 100), request(4.0, 5.0, 0.1, 20)]
    assert decode_only(records, (0.0, 9.0)) == [(1.0, 4.0), (5.0, 9.0)]


def test_decode_time_is_not_stretched_by_prefills() -> None:
    """Request A stands still for a second while B is prefilled; its pace outside of that is what counts."""
    before = [Event(1.0 + 0.1 * i, 1) for i in range(30)]
    after = [Event(5.0 + 0.1 * i, 1) for i in range(1, 31)]
    a = RequestRecord("a", "a", "t", 0.0, 1.0, 8.1, (*before, *after), 60)
    b = request(3.95, 5.0, 0.1, 30)
    decode = decode_time([a, b], (0.0, 8.1))
    assert decode is not None
    assert decode.seconds_per_token == pytest.approx(0.1)


def test_a_capped_server_gives_no_step_time() -> None:
    """Four requests are open, two run: somebody always waits for the first token."""
    made = []
    for slot in range(2):
        for turn in range(10):
            start = turn * 2.0 + slot
            made.append(request(max(0.0, start - 2.0), start, 0.09, 20))
    window = steady_window(made, 0.8)
    assert window is not None
    assert decode_time(made, window) is None


def test_mean_open_weighs_by_time() -> None:
    assert mean_open([(0, 2), (1, 2)], [(0.0, 2.0)]) == 1.5
    assert mean_open([(0, 2)], []) == 0.0
