"""L0 to L8: the words of a launch line against the option catalogue of its version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Verdict
from k25stack.engines.catalogue import judge_name
from k25stack.engines.scan import Refusal
from k25stack.engines.versions import version_key

if TYPE_CHECKING:
    from k25stack.contract.launch import Launch

IDS = {"name": "L1", "value": "L3", "missing": "L6", "unexpected": "L6", "stray": "L6", "required": "L6"}
TRAPS = {
    "L1": "unknown option",
    "L2": "abbreviated option",
    "L3": "bad value",
    "L6": "a word too many or too few",
}


def version(launch: Launch) -> Iterator[Check]:
    known = launch.line.known
    if not known.exact:
        older = version_key(known.read_as) < version_key(known.version)
        which = "the nearest older one" if older else "the oldest one that was read"
        message = f"no catalogue of {known.label}: judged by {which}, {known.read_as}"
        fix = f"make one with {known.source.rpartition(' ')[2]}, or use {known.engine} {known.read_as}"
        yield launch.finding("L0", Verdict.WARN, message, {"judged_as": known.read_as}, fix, known.source)


def refused(launch: Launch) -> Iterator[Check]:
    """Everything that the engine's own parser stops at, and abbreviations, which it takes."""
    known = launch.line.known
    for refusal in launch.line.refusals:
        yield launch.finding(
            check_id(refusal),
            Verdict.FAIL,
            f"{trap(refusal)}: {refusal.word}: {refusal.message}" if refusal.finding else
            f"{trap(refusal)}: {refusal.message}",
            {"word": refusal.word, "engine": known.label},
            dashed(refusal.fix),
            refusal.finding.source if refusal.finding else known.source,
        )  # fmt: skip
    if not launch.line.refusals:
        count = len(launch.line.given)
        message = f"{count} options, all spelled out and with values that {known.engine} {known.read_as} takes"
        yield launch.finding("L1", Verdict.PASS, message, {"engine": known.label}, "", known.source)


def check_id(refusal: Refusal) -> str:
    if refusal.finding is not None and refusal.finding.problem == "abbreviated":
        return "L2"
    return IDS[refusal.kind]


def trap(refusal: Refusal) -> str:
    if refusal.finding is not None and refusal.finding.problem == "ambiguous":
        return "ambiguous option"
    return TRAPS[check_id(refusal)]


def dashed(remedy: str) -> str:
    """A remedy as a command line writes it: ``write a-b: c`` as ``write --a-b c``."""
    return re.sub(r"\b(write |and |mean )(?:--)?([a-z][a-z0-9-]*)(:?)", r"\1--\2", remedy)


def outdated(launch: Launch) -> Iterator[Check]:
    """Options on their way out (L4) and options that nothing reads (L5)."""
    known = launch.line.known
    for given in launch.line.given:
        finding = judge_name(known, given.option.name.lstrip("-"))
        if finding is None or finding.problem not in ("replaced", "dead"):
            continue
        dead = finding.problem == "dead"
        name = "dead option (T10)" if dead else "deprecated option"
        message = f"{name}: {given.option.name}: {finding.message}"
        evidence = {"option": given.option.name, "engine": known.label}
        yield launch.finding(
            "L5" if dead else "L4", Verdict.WARN, message, evidence, dashed(finding.remedy), finding.source
        )


def repeated(launch: Launch) -> Iterator[Check]:
    for several in launch.line.repeated():
        words = [" ".join(given.words) for given in several]
        name = several[-1].option.name
        message = f"option given twice: {name}: the last one counts"
        yield launch.finding("L7", Verdict.WARN, message, {"values": words}, "keep one", launch.line.known.source)


def config_file(launch: Launch) -> Iterator[Check]:
    """L8: a file of options that the engine refuses or passes over, or that does not lie here."""
    found = launch.config
    if found.problem:
        verdict = Verdict.FAIL if found.refused else Verdict.UNKNOWN
        evidence = {"words": [word for word in launch.command.words if word.startswith("--config")]}
        yield launch.finding("L8", verdict, found.problem, evidence, found.remedy, launch.known.source)


RULES = (version, refused, outdated, repeated, config_file)
