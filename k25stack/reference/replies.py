"""OpenAI-style response objects, whole and as stream chunks (no torch beyond `Sampling`)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from k25stack.reference.api import Call
from k25stack.reference.request import Finish
from k25stack.speculation.rounds import RoundCounts


@dataclass(frozen=True)
class Piece:
    """News for one client: tokens of one engine step, and the text that they settled."""

    tokens: tuple[int, ...]
    text: str
    finish: Finish | None = None
    counts: RoundCounts | None = None
    prompt_tokens: int = 0  # only in the first piece, which has no tokens


def encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass
class Reply:
    """Collects the pieces of one call and words them."""

    call: Call
    model: str
    created: int  # seconds since 1970
    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    finish: Finish | None = None
    counts: RoundCounts | None = None

    def __post_init__(self) -> None:
        self.id = ("chatcmpl-" if self.call.chat else "cmpl-") + uuid.uuid4().hex
        self._opened = False

    def add(self, piece: Piece) -> None:
        self.prompt_tokens += piece.prompt_tokens
        self.tokens.extend(piece.tokens)
        self.text.append(piece.text)
        self.finish = piece.finish or self.finish
        self.counts = piece.counts or self.counts

    def usage(self) -> dict[str, Any]:
        """Token counts, and with a draft its raw round counters (`speculation.rounds`) once the response has ended."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.tokens),
            "total_tokens": self.prompt_tokens + len(self.tokens),
        }
        if self.counts is not None:
            usage["spec"] = self.counts.as_dict()
        return usage

    def whole(self) -> dict[str, Any]:
        """The answer to a call that does not stream."""
        text = "".join(self.text)
        content: dict[str, Any] = {"text": text}
        if self.call.chat:
            content = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": self.finish}
        if self.call.return_token_ids:
            choice["token_ids"] = self.tokens
        return {**self._head("chat.completion", "text_completion"), "choices": [choice], "usage": self.usage()}

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Stream chunks that a piece gives rise to: none while its text is still held back."""
        self.add(piece)
        if piece.text or piece.finish is not None or self.call.continuous_usage or self.call.return_token_ids:
            yield self._chunk(piece)
        if piece.finish is not None and self.call.include_usage:
            head = self._head("chat.completion.chunk", "text_completion")
            yield {**head, "choices": [], "usage": self.usage()}

    def _chunk(self, piece: Piece) -> dict[str, Any]:
        content: dict[str, Any] = {"text": piece.text}
        if self.call.chat:
            role = {} if self._opened else {"role": "assistant"}
            content = {"delta": {**role, "content": piece.text}}
        self._opened = True
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": piece.finish}
        if self.call.return_token_ids:
            choice["token_ids"] = list(piece.tokens)
        chunk = {**self._head("chat.completion.chunk", "text_completion"), "choices": [choice]}
        if self.call.continuous_usage:
            chunk["usage"] = self.usage()
        return chunk

    def _head(self, chat: str, text: str) -> dict[str, Any]:
        kind = chat if self.call.chat else text
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
