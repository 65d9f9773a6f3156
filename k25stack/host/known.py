"""Versions that are known to be bad, reviewed one by one with their sources (known.yaml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from k25stack.host.parse.values import version

TABLE = Path(__file__).parent / "known.yaml"


@dataclass(frozen=True)
class Bad:
    """One entry.  ``first`` and ``last`` are versions, both included; an empty one is open."""

    what: str  # driver, vbios, nccl, toolkit
    first: str
    last: str
    cards: str  # regular expression over the product name; "" for all
    problem: str
    fix: str
    source: str
    reviewed: str  # date

    def covers(self, found: str, card: str) -> bool:
        number = self._number(found)
        if number is None or not re.search(self.cards, card):
            return False
        low, high = self._number(self.first), self._number(self.last)
        return (low is None or low <= number) and (high is None or number[: len(high)] <= high)

    def _number(self, text: str) -> tuple[int, ...] | None:
        """The parts of a VBIOS version are hexadecimal."""
        if self.what != "vbios":
            return version(text)
        parts = text.split(".")
        good = len(parts) > 1 and all(re.fullmatch(r"[0-9A-Fa-f]{1,4}", part) for part in parts)
        return tuple(int(part, 16) for part in parts) if good else None


@cache
def table() -> tuple[Bad, ...]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(Bad(**entry) for entry in yaml.load(TABLE.read_text(encoding="utf-8"), Loader=loader))


def bad_version(what: str, found: str, card: str = "") -> Bad | None:
    """The entry that speaks against a version, or None."""
    return next((entry for entry in table() if entry.what == what and entry.covers(found, card)), None)
