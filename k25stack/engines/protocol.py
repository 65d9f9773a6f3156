"""What the rest of the project asks of an inference engine.

Only this room knows an engine's option, endpoint and metric names.  Everything here is text in, values out: nothing
is started, no address is opened, no engine is imported.

A *reply* is the JSON object an engine answers a request with.  For a stream it is one mapping with the last value
seen of every top-level key (``usage`` and the engines' own extensions come in late chunks with empty ``choices``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Literal, Protocol

from k25stack.speculation.rounds import RoundCounts

if TYPE_CHECKING:
    from k25stack.stack.serving import Profile

Family = Literal["llama", "deepseek_v3", "kimi_k25"]


@dataclass(frozen=True)
class Launch:
    """What a command line needs beside the profile: where things are, and where to listen."""

    model: str  # directory or hub name of the target
    served_name: str  # the name clients ask for
    host: str
    port: int
    context: int  # tokens; a profile's own value goes before it
    family: Family  # of the target: layer ids mean other layers elsewhere
    draft: str | None = None  # directory or hub name; needed when the profile speculates
    revision: str | None = None  # hub commit of the target
    draft_revision: str | None = None  # hub commit of the draft
    dummy_seed: int | None = None  # random weights of the right shapes, made by the engine from this seed
    threads: int = 2  # compute threads, for engines on CPU
    seed: int = 0  # of sampling, where an engine takes one


@dataclass(frozen=True)
class Counters:
    """One reading of a server's metrics.  None: this engine does not count it.

    ``running`` and ``waiting`` are the moment's; everything else counts up since the server started, so figures are
    differences of two readings (`since`).
    """

    running: float
    waiting: float
    generated_tokens: float
    prompt_tokens: float
    verify_calls: int | None = None
    accepted: int | None = None
    proposed: int | None = None
    per_position: tuple[int, ...] | None = None  # [i]: rounds that accepted at least i + 1 draft tokens
    cut: int | None = None  # rounds cut short by the end of a response, in none of the above

    def since(self, earlier: Counters) -> Counters:
        """What was counted after ``earlier``; running and waiting stay those of the later reading."""
        per_position = None
        if self.per_position is not None:
            before = earlier.per_position or ()
            per_position = tuple(a - b for a, b in zip_longest(self.per_position, before, fillvalue=0))
        return Counters(
            running=self.running,
            waiting=self.waiting,
            generated_tokens=self.generated_tokens - earlier.generated_tokens,
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            verify_calls=_minus(self.verify_calls, earlier.verify_calls),
            accepted=_minus(self.accepted, earlier.accepted),
            proposed=_minus(self.proposed, earlier.proposed),
            per_position=per_position,
            cut=_minus(self.cut, earlier.cut),
        )

    def rounds(self) -> RoundCounts | None:
        """The speculative part as round counters; None when the engine's metrics do not hold all of it."""
        if self.verify_calls is None or self.accepted is None or self.proposed is None:
            return None
        histogram: tuple[int, ...] = ()
        if self.per_position is not None:
            at_least = (self.verify_calls, *self.per_position, 0)
            histogram = tuple(a - b for a, b in pairwise(at_least))
        return RoundCounts(self.verify_calls, self.accepted, self.proposed, histogram, self.cut or 0)


def _minus(later: int | None, earlier: int | None) -> int | None:
    return None if later is None else later - (earlier or 0)


class Engine(Protocol):
    """One engine.  ``versions`` are those whose options and behaviour were read; others are refused by name."""

    name: str
    versions: tuple[str, ...]
    health_path: str
    models_path: str
    metrics_path: str
    flush_path: str | None  # POST drops cached prefixes; None: the engine keeps none or has no such call

    def argv(self, profile: Profile, launch: Launch) -> list[str]:
        """The whole command line.  Raises UsageError for a version that was not read or a missing draft."""

    def env(self, profile: Profile, launch: Launch) -> dict[str, str]:
        """Environment variables that belong to the profile (those of the host come before them)."""

    def extraction_argv(self, profile: Profile, launch: Launch, layers: Sequence[int], out: str) -> list[str]:
        """The command line of a server that gives out the hidden states of canonical ``layers``.

        ``out`` is the directory for engines that write files.  Raises UsageError where this version cannot do it.
        """

    def counters(self, metrics_text: str) -> Counters:
        """Read the text of ``metrics_path``.  Raises UsageError when it is not this engine's."""

    def request_options(self) -> dict[str, Any]:
        """Fields to add to a completion request so that its reply holds speculative counters."""

    def request_counters(self, reply: Mapping[str, Any]) -> RoundCounts | None:
        """Speculative rounds of one request; None when the engine gave none."""

    def written_layers(self, canonical: Sequence[int], family: Family) -> list[int]:
        """The list to write into a draft's config so that the engine captures these canonical layers."""

    def captured_layers(self, written: Sequence[int], family: Family) -> list[int]:
        """The canonical layers that the engine captures for a list found in a draft's config."""
