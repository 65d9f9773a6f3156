"""Streamed text: nothing is given out that later changes, and stop strings cut where they should."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k25stack.reference.text import UNFINISHED, TextStream


def decode(ids: list[int]) -> str:
    """A byte-level tokenizer: one id per UTF-8 byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def pieces(text: bytes, stop: list[str]) -> tuple[list[str], TextStream]:
    stream = TextStream(decode, stop)
    out = []
    for byte in text:
        stopped = stream.feed(byte)
        out.append(stream.take(final=stopped))
        if stopped:
            break
    out.append(stream.take(final=True))
    return out, stream


@given(st.text(max_size=40).filter(lambda text: UNFINISHED not in text))
def test_pieces_make_up_the_text_and_hold_whole_characters(text: str) -> None:
    out, stream = pieces(text.encode("utf-8", errors="ignore"), [])
    assert "".join(out) == text.encode("utf-8", errors="ignore").decode()
    assert not any(UNFINISHED in piece for piece in out)
    assert not stream.stopped


def test_an_unfinished_character_at_the_end_is_shown_as_such() -> None:
    out, _ = pieces("aé".encode()[:-1], [])
    assert "".join(out) == "a" + UNFINISHED


ALPHABET = st.sampled_from("abé")


@given(st.text(ALPHABET, max_size=24), st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_text_ends_before_the_first_complete_stop_string(text: str, stops: list[str]) -> None:
    expected, stopped = text, False
    for end in range(1, len(text) + 1):
        starts = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if starts:
            expected, stopped = text[: min(starts)], True
            break
    out, stream = pieces(text.encode(), stops)
    assert "".join(out) == expected
    assert stream.stopped == stopped


def test_a_tail_that_may_begin_a_stop_string_is_held_back() -> None:
    stream = TextStream(decode, ["END"])
    for byte in b"xEN":
        stream.feed(byte)
    assert stream.take() == "x"
    stream.feed(ord("!"))
    assert stream.take() == "EN!"
