"""A check: sources to read, a pure judge, a remedy and who says so.

::

    @check("swap", "memory", severity=FAIL, sources=(SWAPS, FSTAB), fix="swapoff -a ...", source="...")
    def swap(seen, profile):
        return ok("no swap") or bad("8 GiB of swap is on", total_gib=8)

A judge reads text, starts nothing and never raises for what the text holds: it returns a verdict, and what it cannot
tell is ``unknown``.  It passes only on positive evidence: an empty or garbled source never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from k25stack.host.profile import Profile
from k25stack.host.seen import Reading, Seen, Unseen
from k25stack.host.sources import Source

Verdict = Literal["pass", "warn", "unknown", "fail"]
Severity = Literal["warn", "fail"]
PASS: Verdict = "pass"
UNKNOWN: Verdict = "unknown"
WARN: Severity = "warn"
FAIL: Severity = "fail"
RANKS: tuple[Verdict, ...] = ("pass", "warn", "unknown", "fail")  # not knowing may hide a failure
LONGEST = 400  # characters of a message


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict | None  # None: not as it should be; the severity decides
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None  # instead of the check's own
    fix: str = ""  # instead of the check's own


def ok(message: str, **evidence: Any) -> Judgement:
    return Judgement(PASS, message, evidence)


def bad(message: str, *, severity: Severity | None = None, fix: str = "", **evidence: Any) -> Judgement:
    return Judgement(None, message, evidence, severity, fix)


def unknown(message: str, *, severity: Severity | None = None, fix: str = "", **evidence: Any) -> Judgement:
    return Judgement(UNKNOWN, message, evidence, severity, fix)


Rule = Callable[[Seen, Profile], Judgement]
Applies = Callable[[Profile], bool]
Repair = Callable[[Seen, Profile], Sequence[tuple[str, ...]]]


@dataclass(frozen=True)
class Check:
    id: str
    group: str
    severity: Severity
    sources: tuple[Source, ...]
    rule: Rule
    fix: str  # what to do, for people
    source: str  # who says that it matters
    applies: Applies
    live: bool = False  # its source is measured on request only, not read
    repair: Repair | None = None  # commands that mend it and can neither lose data nor stop a server

    def judge(
        self, text: str, rc: int, profile: Profile, also: Mapping[Source, tuple[str, int]] | None = None
    ) -> dict[str, Any]:
        """Judge the first source's text and exit code; ``also`` gives the text and exit code of further sources."""
        given = {self.sources[0]: (text, rc), **(also or {})}
        readings = {one.resolve(profile).place: Reading(*value) for one, value in given.items()}
        return self.judge_seen(Seen(readings), profile)

    def judge_seen(self, seen: Seen, profile: Profile) -> dict[str, Any]:
        """One entry of the result's ``checks``."""
        try:
            judged = self.rule(seen, profile)
        except Unseen as reason:
            judged = unknown(str(reason))
        severity = judged.severity or self.severity
        verdict: Verdict = judged.verdict or severity
        return {
            "id": self.id,
            "group": self.group,
            "verdict": verdict,
            "message": clean(judged.message),
            "evidence": {**judged.evidence, **({"severity": severity} if verdict == UNKNOWN else {})},
            "fix": ""
            if verdict == PASS
            else judged.fix or (remedy_of_unknown(judged) if verdict == UNKNOWN else self.fix),
            "source": self.source,
        }


UNSURE = (
    ("run as root", "run as root, or give the user sudo"),
    ("nvidia-smi -q -x: no such program", "install the NVIDIA driver (playbook role nvidia)"),
    ("no such program", "install the program that is named"),
    ("no answer in time", "run it by hand on the host: a program that hangs is a fault of its own"),
    ("not measured", "give --python or --image with torch that sees the cards"),
    ("not collected", "record again: k25stack check host --record DIR"),
)


def remedy_of_unknown(judged: Judgement) -> str:
    """What to do to know."""
    return next((what for sign, what in UNSURE if sign in judged.message), "see docs/host.md for what this check reads")


def clean(text: str) -> str:
    """Text of a host as one harmless line: no control characters, no endless message."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= LONGEST else line[: LONGEST - 4] + " ..."


def check(
    id: str,
    group: str,
    *,
    severity: Severity,
    sources: tuple[Source, ...],
    fix: str,
    source: str,
    applies: Applies = lambda profile: True,
    live: bool = False,
    repair: Repair | None = None,
) -> Callable[[Rule], Check]:
    """Make a Check of the judge below it."""

    def make(rule: Rule) -> Check:
        return Check(id, group, severity, sources, rule, fix, source, applies, live, repair)

    return make


def overall(checks: Sequence[Mapping[str, Any]]) -> Verdict:
    """The worst verdict.  An unknown of a check that could only warn counts as a warning."""
    found: list[Verdict] = []
    for one in checks:
        verdict: Verdict = one["verdict"]
        mild = verdict == UNKNOWN and one["evidence"].get("severity") == WARN
        found.append(WARN if mild else verdict)
    return max(found, key=RANKS.index, default=UNKNOWN)


def cards(profile: Profile) -> bool:
    return profile.gpus > 0


def several(profile: Profile) -> bool:
    return profile.gpus > 1


def over_pcie(profile: Profile) -> bool:
    return profile.p2p


def in_containers(profile: Profile) -> bool:
    return profile.containers


def cards_in_containers(profile: Profile) -> bool:
    return profile.containers and profile.gpus > 0


def cards_on_metal(profile: Profile) -> bool:
    return profile.gpus > 0 and not profile.virtual
