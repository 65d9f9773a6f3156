"""L0 to L9: the words of a launch line against the option catalogue of its version."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Verdict
from k25stack.engines.catalogue import judge_name, narrowed
from k25stack.engines.catalogue import together as pairs
from k25stack.engines.scan import Refusal
from k25stack.engines.versions import version_key

if TYPE_CHECKING:
    from k25stack.contract.launch_line import Launch

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


def values(launch: Launch) -> Iterator[Check]:
    """L3: what the parser takes as any text, and the engine refuses later."""
    for row in narrowed(launch.engine, launch.version):
        name, given = launch.facts.spell(row.meaning), launch.facts.get(row.meaning)
        keys = row.meaning == "speculative"  # of vLLM's JSON; what is no object is told elsewhere
        if given is None or name in _told(launch) or (keys and not isinstance(given, dict)):
            continue
        what = "key" if keys else "value"
        for word in map(str, given if keys else [given]):
            if word in row.values:
                continue
            near = difflib.get_close_matches(word, row.values, n=1)
            fix = f"did you mean {near[0]}?" if near else f"give one of {', '.join(row.values)}"
            verdict = Verdict.WARN if row.others and not near else Verdict.FAIL
            stops = "the engine then stops" + (f" unless {row.others}" if row.others else "")
            message = f"bad value: {name}: {word!r} is no {what} of it; the parser takes it, and {stops}"
            yield launch.finding("L3", verdict, message, {name: given}, fix, row.source)


def _told(launch: Launch) -> set[str]:
    """Options of which a value has been refused already."""
    return {refusal.word for refusal in launch.line.refusals if refusal.kind == "value"}


def together(launch: Launch) -> Iterator[Check]:
    """L9: options that stop the engine without another one, or beside it."""
    line, here = launch.line, launch.known
    on = {given.option.name for given in line.given if given.value is not False}
    for row in pairs(launch.engine, launch.version):
        name, other = f"--{row.option}", f"--{row.needs or row.without}"
        if name not in on or (other in on) is bool(row.needs):
            continue
        message = f"{name} {'needs' if row.needs else 'does not go with'} {other}: {here.label} stops"
        fix = f"add {other}" if row.needs else "leave one of the two out"
        yield launch.finding("L9", Verdict.FAIL, message, {"option": name, "other": other}, fix, row.source)
    if launch.engine != "vllm":
        return
    config = line.last("--speculative-config")
    inner = config.value if config is not None and isinstance(config.value, dict) else {}
    for name, key in (
        ("--spec-method", "method"),
        ("--spec-model", "model"),
        ("--spec-tokens", "num_speculative_tokens"),
    ):
        if name in on and key in inner:
            message = f'{name} does not go with "{key}" in --speculative-config: {here.label} stops'
            yield launch.finding("L9", Verdict.FAIL, message, {name: key}, "leave one of the two out",
                                 "vllm engine/arg_utils.py, create_speculative_config")  # fmt: skip


def ranges(launch: Launch) -> Iterator[Check]:
    """L3: numbers that no card and no group of cards can have."""
    for meaning in ("memory_share", "tensor_parallel", "pipeline_parallel", "data_parallel"):
        given = launch.facts.get(meaning)
        share = meaning == "memory_share"
        if type(given) not in (int, float) or (0 < given <= 1 if share else given >= 1):
            continue
        name = launch.facts.spell(meaning)
        meant = "a share of a card, above 0 and up to 1" if share else "1 or more"
        yield launch.finding("L3", Verdict.FAIL, f"bad value: {name} {given} is not {meant}", {name: given},
                             "give 0.9 for 90 %" if share else "give 1 or more", launch.known.source)  # fmt: skip


RULES = (version, refused, outdated, repeated, config_file, values, ranges, together)
