"""Raw counters of speculative rounds, and the rates derived from them.

A *round* is one verify call of the target: the draft proposed a chain of k tokens, the target accepted the first j
of them (0 <= j <= k) and added one token of its own, so the round commits j + 1 tokens.

A round is **cut** when it commits fewer than j + 1 tokens because the response ended inside it: an accepted token
was the EOS, or ``max_tokens`` was reached before the target's own token.  How many tokens such a round was worth
cannot be seen, so cut rounds are counted apart and enter no rate.  A round whose own token is the EOS, or is the
last one ``max_tokens`` allows, is complete.  The engine can apply this rule at once, and `walk` applies the same one
to a finished response.  (The rule keeps the short rounds near the end and drops the long ones, which lowers the
accept length by about 1 / rounds per response; it does so equally in walk and engine.)

Only raw counters are stored; rates are derived when they are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k25stack.errors import UsageError, in_words

ACCEPT_LENGTH = "k25stack/accept-length/1"
"""Definition id kept beside raw counters: 1 + accepted / verify calls over uncut rounds."""

VERIFY_RULES = ("greedy", "target_only", "rejection")
"""How the verifier decides: exact argmax match; the target's probability alone; rejection sampling min(1, p/q)."""


@dataclass(frozen=True)
class RoundCounts:
    """Counters over uncut rounds, and the number of cut rounds.

    ``histogram[j]`` = rounds with exactly j accepted draft tokens, j = 0..k; empty when an engine does not tell.
    Raises UsageError when the counters contradict each other.
    """

    verify_calls: int  # uncut rounds
    accepted: int  # draft tokens accepted in them; the target's own tokens are not counted
    proposed: int  # draft tokens proposed in them (k each for a chain)
    histogram: tuple[int, ...] = ()
    cut: int = 0  # rounds that the end of the response cut short, in none of the above

    def __post_init__(self) -> None:
        if min(self.verify_calls, self.accepted, self.proposed, self.cut, *self.histogram) < 0:
            raise UsageError(f"a negative counter: {self}", where="round counters")
        if self.accepted > self.proposed:
            raise UsageError(f"{self.accepted} accepted of {self.proposed} proposed tokens", where="round counters")
        if self.histogram:
            accepted = sum(j * count for j, count in enumerate(self.histogram))
            if (sum(self.histogram), accepted) != (self.verify_calls, self.accepted):
                raise UsageError(f"the histogram does not add up: {self}", where="round counters")

    @classmethod
    def zero(cls, k: int) -> RoundCounts:
        """No rounds yet, of chains of ``k`` draft tokens."""
        return cls(0, 0, 0, (0,) * (k + 1), 0)

    @classmethod
    def from_histogram(cls, histogram: tuple[int, ...], cut: int = 0) -> RoundCounts:
        """All counters of fixed-length chains from ``histogram[j]``, j = 0..k."""
        calls = sum(histogram)
        accepted = sum(j * count for j, count in enumerate(histogram))
        return cls(calls, accepted, calls * (len(histogram) - 1), tuple(histogram), cut)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RoundCounts:
        """The inverse of `as_dict`.  Raises UsageError when a counter is missing or no whole number."""
        try:
            return cls(
                verify_calls=int(raw["verify_calls"]),
                accepted=int(raw["accepted"]),
                proposed=int(raw["proposed"]),
                histogram=tuple(int(count) for count in raw.get("histogram", ())),
                cut=int(raw.get("cut", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"not round counters: {in_words(error)}", where="round counters") from None

    def as_dict(self) -> dict[str, Any]:
        """JSON object with exactly the field names."""
        return {
            "verify_calls": self.verify_calls,
            "accepted": self.accepted,
            "proposed": self.proposed,
            "histogram": list(self.histogram),
            "cut": self.cut,
        }

    def __add__(self, other: RoundCounts) -> RoundCounts:
        """Counters of both.  The histogram is lost where one side has rounds without one."""
        known = (self.histogram or not self.verify_calls) and (other.histogram or not other.verify_calls)
        width = max(len(self.histogram), len(other.histogram)) if known else 0
        mine = self.histogram + (0,) * (width - len(self.histogram))
        theirs = other.histogram + (0,) * (width - len(other.histogram))
        return RoundCounts(
            self.verify_calls + other.verify_calls,
            self.accepted + other.accepted,
            self.proposed + other.proposed,
            tuple(a + b for a, b in zip(mine, theirs, strict=False))[:width],
            self.cut + other.cut,
        )

    def times(self, count: int) -> RoundCounts:
        """The counters of ``count`` such runs."""
        return RoundCounts(
            self.verify_calls * count,
            self.accepted * count,
            self.proposed * count,
            tuple(rounds * count for rounds in self.histogram),
            self.cut * count,
        )

    def accept_length(self) -> float:
        """1 + accepted / verify calls (tokens per round), in 1..k+1.  Raises UsageError without a round."""
        self._need_rounds()
        return 1.0 + self.accepted / self.verify_calls

    def accept_rate(self) -> float:
        """accepted / proposed draft tokens, in 0..1: 0 means nothing was accepted.  Raises UsageError without one."""
        self._need_rounds()
        return self.accepted / self.proposed

    def survival(self) -> list[float]:
        """[p_1 .. p_k]: share of rounds that accepted at least i draft tokens.  Raises UsageError without a histogram.

        accept length = 1 + p_1 + ... + p_k.
        """
        self._need_rounds()
        if not self.histogram:
            raise UsageError("the engine gave no histogram of accepted tokens", where="round counters")
        return [sum(self.histogram[i:]) / self.verify_calls for i in range(1, len(self.histogram))]

    def conditional(self) -> list[float]:
        """[c_1 .. c_k]: c_i = p_i / p_(i-1) with p_0 = 1; 0 where no chain came that far."""
        survival = self.survival()
        before = [1.0, *survival[:-1]]
        return [p / q if q else 0.0 for p, q in zip(survival, before, strict=True)]

    def _need_rounds(self) -> None:
        if not self.verify_calls or not self.proposed:
            raise UsageError(
                f"no complete speculative round ({self.cut} cut ones)",
                where="round counters",
                remedy="use longer or more responses",
            )
