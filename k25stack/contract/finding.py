"""The one result shape of every check (standard library only).

::

    {"target": "drafts/mine", "kind": "draft", "verdict": "fail", "checks": [
        {"id": "C3", "group": "sglang@0.5.20", "verdict": "fail", "message": "...", "evidence": {...},
         "fix": "...", "source": "sglang #27829"}]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a check ended.  UNKNOWN: it could not be judged, which is no pass."""

    PASS = "pass"
    WARN = "warn"
    UNKNOWN = "unknown"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        """Higher is worse.  Not knowing is worse than a warning: it may hide a failure."""
        return list(Verdict).index(self)


SHOWN = 2000  # characters of a message or its evidence that are shown to people
LONGEST_INT = 4096  # bits; Python refuses to print numbers of more than 4,300 digits

# Exit codes of the command line's one table.
EXIT_CODES = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 3}


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, the evidence for it, how to mend it, and who says so."""

    id: str  # stable name of the rule: "C3"
    group: str  # what it is judged for: an engine and version, "files", a card
    verdict: Verdict
    message: str  # one line: what and where
    evidence: Mapping[str, Any] = field(default_factory=dict)  # JSON values that prove it
    fix: str = ""  # what to do, empty when nothing is wrong
    source: str = ""  # public project and file, issue or pull request

    def as_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: plain(value) for name, value in {**values, "verdict": self.verdict.value}.items()}


@dataclass(frozen=True)
class Result:
    """All checks of one target."""

    target: str
    kind: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any check; a target with no check at all is unknown."""
        return worst(check.verdict for check in self.checks)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": plain(self.target),
            "kind": self.kind,
            "verdict": self.verdict.value,
            "checks": [check.as_dict() for check in self.checks],
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.UNKNOWN)


def worst_exit(results: Iterable[Result]) -> int:
    """The exit code of several results: that of the worst verdict."""
    return EXIT_CODES[worst(result.verdict for result in results)]


def lines(result: Result, verbose: bool = False) -> Iterator[str]:
    """The result for people: the checks that did not pass (all of them with ``verbose``), then one summary line."""
    for check in result.checks:
        if check.verdict is Verdict.PASS and not verbose:
            continue
        yield f"{check.verdict.value.upper():7} {check.id:4} {check.group:14} {one_line(check.message)}"
        if check.evidence and (verbose or check.verdict is not Verdict.PASS):
            yield f"{'':13}evidence: {one_line(json.dumps(plain(check.evidence), ensure_ascii=False))}"
        if check.fix:
            yield f"{'':13}fix: {one_line(check.fix)}"
        if check.source and check.verdict is not Verdict.PASS:
            yield f"{'':13}source: {check.source}"
    counts = {verdict: sum(check.verdict is verdict for check in result.checks) for verdict in reversed(Verdict)}
    told = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count) or "no checks"
    yield f"{result.verdict.value.upper()}: {result.kind} {one_line(result.target)}: {told}"


def one_line(text: str) -> str:
    """A text as one line of moderate length: what is judged may hold line ends, terminal codes or a megabyte."""
    cut = text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text) - SHOWN:,} characters more: --json)"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def plain(value: Any) -> Any:
    """The value as JSON can hold it: no NaN or infinity, no half characters, no number that cannot be printed."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and value.bit_length() > LONGEST_INT:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(inner) for inner in value]
    return value
