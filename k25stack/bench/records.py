"""What is sent and what came back, request by request.

An event is a piece of the stream that carried text; under speculation one event holds several tokens, so events are
never counted as tokens.  How many tokens an event carried is known only when the server says so (token ids in the
event); otherwise the tokens that ``usage`` reports are shared evenly among the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k25stack.speculation import RoundCounts


@dataclass(frozen=True)
class Prompt:
    """One prompt: token ids, or chat messages for the server's own template.

    ``key`` names the text (document and turn), ``cluster`` what it shares its content with (the document).
    """

    key: str
    cluster: str
    domain: str
    ids: tuple[int, ...] = ()
    messages: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Event:
    """A piece of the stream with text or tokens."""

    time: float  # seconds since the load began
    tokens: int | None  # None: the server did not say


@dataclass(frozen=True)
class RequestRecord:
    """One request.  Times are seconds since the load began, on one monotonic clock."""

    key: str
    cluster: str
    domain: str
    t_send: float
    t_first: float | None  # first event with text
    t_end: float  # last byte, or the moment of the error
    events: tuple[Event, ...] = ()
    completion_tokens: int | None = None  # from usage
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None  # None: the server does not return them
    rounds: RoundCounts | None = None
    error: str | None = None  # why it does not count

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first token."""
        return None if self.t_first is None else self.t_first - self.t_send

    @property
    def e2e(self) -> float:
        """Seconds from sending to the end of the stream."""
        return self.t_end - self.t_send

    @property
    def decode(self) -> tuple[float, float]:
        """(seconds, tokens) after the first event; (0, 0) when there is nothing after it."""
        if len(self.events) < 2 or not self.completion_tokens:
            return (0.0, 0.0)
        tokens = self.completion_tokens - token_shares(self)[0]
        return (self.events[-1].time - self.events[0].time, tokens)

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first event, or None."""
        seconds, tokens = self.decode
        return seconds / tokens if tokens > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """JSON object of the raw record; times rounded to 10 us."""
        return {
            "key": self.key,
            "cluster": self.cluster,
            "domain": self.domain,
            "t_send_s": round(self.t_send, 5),
            "t_first_s": None if self.t_first is None else round(self.t_first, 5),
            "t_end_s": round(self.t_end, 5),
            "events": [[round(event.time, 5), event.tokens] for event in self.events],
            "completion_tokens": self.completion_tokens,
            "prompt_tokens": self.prompt_tokens,
            "finish_reason": self.finish_reason,
            "rounds": self.rounds.as_dict() if self.rounds else None,
            "error": self.error,
        }


def token_shares(record: RequestRecord) -> list[float]:
    """Tokens of each event; they sum to ``usage``.

    Known counts are used as they are.  Otherwise the first event holds one token (the prefill's) and the others
    share the rest evenly.
    """
    known = [event.tokens for event in record.events]
    if all(count is not None for count in known):
        return [float(count) for count in known if count is not None]
    total = float(record.completion_tokens or 0)
    if len(known) < 2:
        return [total] * len(known)
    return [1.0] + [(total - 1.0) / (len(known) - 1)] * (len(known) - 1)
