"""One profile about to be measured: protocol, engine, prompts, and what the recorded answers fill in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k25stack.bench.client import Ask
from k25stack.bench.prompts import PromptSet
from k25stack.bench.protocol import Protocol
from k25stack.engines import Engine
from k25stack.errors import UsageError


@dataclass(frozen=True)
class Measurement:
    """One profile on one server."""

    protocol: Protocol
    engine: Engine
    prompts: PromptSet
    decode: dict[str, Any]
    max_tokens: int

    @classmethod
    def of(cls, protocol: Protocol, engine: Engine, prompts: PromptSet) -> Measurement:
        """Fill in what the protocol leaves to the recorded answers.  Raises UsageError when nobody says it."""
        max_tokens = protocol.max_tokens or prompts.max_tokens
        if max_tokens is None:
            raise UsageError("max_tokens is not known", where="bench", remedy="give it; these prompts have no answers")
        decode = protocol.decode or prompts.decode or {"temperature": 0.0}
        return cls(protocol, engine, prompts.taken(protocol.prompts.take), decode, max_tokens)

    def ask(self, model: str, max_tokens: int) -> Ask:
        arguments = dict(self.decode.get("template_args") or {})
        if "thinking" in self.decode:
            arguments.setdefault("thinking", self.decode["thinking"])
        return Ask(
            model=model,
            max_tokens=max_tokens,
            temperature=float(self.decode.get("temperature") or 0.0),
            top_p=float(self.decode.get("top_p") or 1.0),
            top_k=int(self.decode.get("top_k") or -1),
            ignore_eos=self.protocol.ignore_eos,
            template_args=arguments,
            options=self.engine.request_options(),
            timeout_s=self.protocol.request_timeout_s,
            stall_s=self.protocol.stall_timeout_s,
        )
