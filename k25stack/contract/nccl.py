"""NCCL's environment: names, values and conflicts for its version, and settings per workload (no torch).

What makes it worth a check: a bad ``NCCL_P2P_LEVEL`` is passed over without a word; a number that is none counts as 0;
a list of algorithms or protocols with a wrong word ends the start from 2.24 on and was passed over before.
Facts stand in ``host/nccl.json``, read in NCCL's tagged sources.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from k25stack.contract.finding import Check, Verdict
from k25stack.engines.versions import version_key
from k25stack.errors import UsageError
from k25stack.host.nccl_env import IMAGES_SET, data

GROUP = "nccl"
SOURCE = "NCCL {version} src/graph/paths.cc, src/graph/tuning.cc, src/misc/param.cc"
COUNT = re.compile(r"[0-9]{1,9}")
DEBUG = ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE")  # ATTN from 2.32 on
# Read by PyTorch, not by NCCL.
ELSEWHERE = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG")


@dataclass(frozen=True)
class NcclProfile:
    """Settings for one kind of workload."""

    name: str
    env: Mapping[str, str]
    meant_for: str
    costs: str
    source: str


@dataclass(frozen=True)
class NcclFacts:
    """What one version reads."""

    version: str
    names: Mapping[str, str]  # variable -> kind of value
    levels: tuple[str, ...]
    algorithms: tuple[str, ...]
    protocols: tuple[str, ...]
    functions: tuple[str, ...]
    kernels: Mapping[str, Mapping[str, list[str]]]  # algorithm -> functions and protocols that have a kernel
    scoped: bool  # lists may name functions, and a wrong word ends the start
    gone: Mapping[str, str]  # variable -> the versions that read it

    @property
    def source(self) -> str:
        return SOURCE.replace("{version}", self.version)


def newest_version() -> str:
    return str(data()["newest"])


def profiles() -> dict[str, NcclProfile]:
    """Settings per workload, by name."""
    return {
        name: NcclProfile(name, row["env"], row["for"], row["costs"], row["source"])
        for name, row in data()["profiles"].items()
    }


@cache
def facts(version: str = "") -> NcclFacts:
    """What this version reads; the newest known one when none is given.  Raises UsageError when it is no version."""
    known = data()
    version = version or newest_version()
    here = version_key(version)
    if not here:
        raise UsageError(f"{version!r} is no version", where="NCCL", remedy=f"for example {known['newest']}")
    names, gone = {}, {}
    for name, row in known["names"].items():
        since, until = row.get("since"), row.get("until")
        if (since and version_key(since) > here) or (until and version_key(until) < here):
            gone[name] = f"from {since} on" if since and version_key(since) > here else f"up to {until}"
        else:
            names[name] = row["kind"]
    return NcclFacts(
        version=version,
        names=names,
        levels=tuple(_newest(known["levels"], here)),
        algorithms=tuple(_newest(known["algorithms"], here)),
        protocols=tuple(known["protocols"]),
        functions=tuple(known["functions"]),
        kernels=known["kernels"],
        scoped=here >= version_key(known["scoped_lists_since"]),
        gone=gone,
    )


def _newest(by_version: Mapping[str, list[str]], here: tuple[int, ...]) -> list[str]:
    """The entry of the newest version that is not newer; the oldest entry when all are."""
    older = [version for version in by_version if version_key(version) <= here]
    return by_version[max(older, key=version_key) if older else min(by_version, key=version_key)]


def check_environment(env: Mapping[str, str], version: str = "", group: str = GROUP) -> Iterator[Check]:
    """N1 names, N2 values, N3 conflicts of the NCCL variables in ``env``; nothing when there are none.

    ``version``: of NCCL; the newest known one when it is not told, which the checks say.
    """
    ours = {name: value for name, value in env.items() if name.startswith("NCCL_")}
    if not ours:
        return
    known = facts(version)
    found = [*_names(ours, known, group), *_values(ours, known, group), *_conflicts(ours, known, group)]
    yield from found
    if not found:
        told = "" if version else f" (read as {known.version}: no version given)"
        yield Check("N0", group, Verdict.PASS, f"NCCL names and values are known{told}", dict(ours), "", known.source)


def _names(env: Mapping[str, str], known: NcclFacts, group: str) -> Iterator[Check]:
    for name in env:
        if name in known.names or name in ELSEWHERE or name in IMAGES_SET:
            continue
        if name in known.gone:
            message = f"{name} is read by NCCL {known.gone[name]}, not by {known.version}"
            yield Check("N1", group, Verdict.WARN, message, {name: env[name]}, "leave it out", known.source)
            continue
        near = difflib.get_close_matches(name, sorted(known.names), n=1, cutoff=0.8)
        if not near and version_key(known.version) > version_key(newest_version()):
            message = f"{name}: names are known up to NCCL {newest_version()}, and {known.version} is newer"
            yield Check("N1", group, Verdict.UNKNOWN, message, {name: env[name]}, "see its release notes", known.source)
            continue
        fix = f"did you mean {near[0]}?" if near else "leave it out"
        message = f"NCCL {known.version} reads no {name}: it is passed over without a word"
        # A misspelled name is a lost setting; any other may be read by a plugin.
        verdict = Verdict.FAIL if near else Verdict.WARN
        yield Check("N1", group, verdict, message, {name: env[name]}, fix, known.source)


def _values(env: Mapping[str, str], known: NcclFacts, group: str) -> Iterator[Check]:
    judges = {"level": level_problem, "algorithms": list_problem, "protocols": list_problem, "int": number_problem}
    for name, value in env.items():
        kind = known.names.get(name, "text")
        if kind == "debug" and value.upper() not in DEBUG:
            yield Check("N2", group, Verdict.WARN, f"{name}={value} is no level", {name: value},
                        f"one of {', '.join(DEBUG)}", known.source)  # fmt: skip
        judge = judges.get(kind)
        problem = judge(name, value, known) if judge else ""
        if problem:
            what, _, fix = problem.partition(" | ")
            yield Check("N2", group, Verdict.FAIL, f"{name}={value}: {what}", {name: value}, fix, known.source)


def level_problem(name: str, value: str, known: NcclFacts) -> str:
    """``what | remedy`` for a path level; empty when it is one.  Old digits are still understood."""
    if value in known.levels or re.match(r"[0-9]", value):
        return ""
    upper = value.upper()
    if upper in known.levels:
        return f"the case matters, so it is passed over without a word | write {upper}"
    return f"no level, so it is passed over without a word | one of {', '.join(known.levels)}"


def number_problem(name: str, value: str, known: NcclFacts) -> str:
    """``what | remedy`` for a number as C reads it (strtoll, base 0); an empty text counts as not set."""
    text = value.strip()
    if octal := re.fullmatch(r"[-+]?0([0-9]+)", text):
        counts = re.match(r"[0-7]*", octal.group(1)).group(0) or "0"  # type: ignore[union-attr]
        return f"a leading zero makes it octal, it counts as {int(counts, 8)} | write it without the zero"
    if not value or re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|[0-9]+)", text):
        return ""
    leading = re.match(r"\s*[-+]?[0-9]+", value)
    taken = leading.group(0).strip() if leading else "0"
    return f"no number, it counts as {taken} | write a plain number, bytes without a unit"


def list_problem(name: str, value: str, known: NcclFacts) -> str:
    """Of ``NCCL_ALGO`` and ``NCCL_PROTO``: ``LL,Simple;allreduce:^LL``, case does not matter."""
    words = known.algorithms if known.names.get(name) == "algorithms" else known.protocols
    lower = {word.lower() for word in words}
    parts = [part for part in value.split(";") if part]
    if not parts:
        return f"an empty list | one of {', '.join(words)}, or leave it out"
    if not known.scoped and (len(parts) > 1 or ":" in value):
        return f"functions can be named from NCCL {data()['scoped_lists_since']} on | write one plain list"
    for position, part in enumerate(parts):
        function, colon, items = part.rpartition(":")
        if not colon and position:
            return f"every part but the first needs a function: {part!r} | write allreduce:{part}"
        if colon and function.lower() not in {name.lower() for name in known.functions}:
            return f"{function!r} is no function | one of {', '.join(known.functions)}"
        for item in items.removeprefix("^").split(","):
            if item and item.lower() not in lower:
                ending = "the start ends with ncclInvalidUsage" if known.scoped else "it is passed over without a word"
                return f"{item!r} is none, {ending} | one of {', '.join(words)}"
    return ""


def allowed(value: str | None, known: NcclFacts, words: tuple[str, ...]) -> dict[str, set[str]]:
    """Function -> words that a valid list leaves it (all of them where it says nothing)."""
    table = {function: set(words) for function in known.functions}
    for part in (value or "").split(";"):
        function, _, items = part.rpartition(":")
        if not items:
            continue
        named = {word for word in words if word.lower() in items.removeprefix("^").lower().split(",")}
        for name in known.functions:
            if not function or name.lower() == function.lower():
                table[name] = set(words) - named if items.startswith("^") else set(named)
    return table


def _conflicts(env: Mapping[str, str], known: NcclFacts, group: str) -> Iterator[Check]:
    def says(verdict: Verdict, message: str, names: tuple[str, ...], fix: str) -> Check:
        return Check(
            "N3", group, verdict, message, {name: env[name] for name in names if name in env}, fix, known.source
        )

    if env.get("NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in env:
        yield says(Verdict.WARN, "NCCL_P2P_DISABLE=1 overrides NCCL_P2P_LEVEL", ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
                   "keep one of the two")  # fmt: skip
    if env.get("NCCL_P2P_DISABLE") == "1" and env.get("NCCL_SHM_DISABLE") == "1":
        yield says(Verdict.WARN, "without P2P and shared memory the cards of one host talk over the network",
                   ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), "keep one of the two ways open")  # fmt: skip
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        counts = [int(env[name]) for name in (low, high) if COUNT.fullmatch(env.get(name, ""))]
        if len(counts) == 2 and counts[0] > counts[1]:
            yield says(Verdict.FAIL, f"{low} is above {high}", (low, high), "swap them")
    lists = ("NCCL_ALGO", "NCCL_PROTO")
    if any(list_problem(name, env[name], known) for name in lists if name in env):
        return
    algorithms = allowed(env.get("NCCL_ALGO"), known, known.algorithms)
    protocols = allowed(env.get("NCCL_PROTO"), known, known.protocols)
    without = [name for name in known.functions if not _kernels(name, algorithms[name], protocols[name], known)]
    if without and known.scoped:
        message = f"no kernel is left for {', '.join(without)}: the first such call ends with ncclInvalidUsage"
        fix = "add Ring, which has them all, or name the function: NCCL_ALGO=allreduce:Tree"
        yield says(Verdict.FAIL, message, lists, fix)
    named = [part.rpartition(":")[2].lower() for part in env.get("NCCL_PROTO", "").split(";")]
    if any("ll128" in items.split(",") for items in named if not items.startswith("^")):
        message = (
            "LL128 is forced: NCCL takes it by itself only where the links are fit for it, elsewhere data can break"
        )
        yield says(Verdict.WARN, message, ("NCCL_PROTO",), "leave LL128 out between PCIe cards")


def _kernels(function: str, algorithms: set[str], protocols: set[str], known: NcclFacts) -> bool:
    """Whether some allowed algorithm has a kernel for the function in some allowed protocol."""
    return any(
        function in known.kernels[name]["functions"] and protocols & set(known.kernels[name]["protocols"])
        for name in algorithms
    )
