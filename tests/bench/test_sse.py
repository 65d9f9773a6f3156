"""Events come out the same however the network cuts the stream."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from k25stack.bench.sse import EventParser

STREAM = 'data: {"text": "äß€𝄞"}\r\n\r\n: comment\n\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\n'.encode()
EVENTS = ['{"text": "äß€𝄞"}'.encode(), b"one\ntwo", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    edges = sorted({0, *cuts, len(STREAM)})
    parser = EventParser()
    found = [event for a, b in pairwise(edges) for event in parser.feed(STREAM[a:b])]
    assert found == EVENTS
    assert not parser.torn


@given(st.integers(1, len(STREAM) - 3))
def test_a_stream_that_ends_inside_an_event_is_torn(end: int) -> None:
    parser = EventParser()
    whole = parser.feed(STREAM[:end])
    assert whole == EVENTS[: len(whole)]
    inside = STREAM[:end].rpartition(b"\n\n")[2].rpartition(b"\r\n\r\n")[2]
    assert parser.torn == bool(inside.replace(b"event: x\n", b"").replace(b": comment\n", b"").strip())
