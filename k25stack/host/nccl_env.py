"""NCCL's environment variables on a host: which exist, which values NCCL takes, what contradicts what.

NCCL ignores a wrong NCCL_P2P_LEVEL without a word and dies of a wrong NCCL_PROTO or NCCL_ALGO, so values are judged
before anything starts.  The names and words stand in nccl.json, read in NCCL's tagged sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from k25stack.host.check import FAIL, WARN, Severity
from k25stack.host.parse.values import keyed_lines
from k25stack.host.places import NCCL_CONF, NCCL_ENV, NCCL_FILE, NCCL_HOME
from k25stack.host.seen import ABSENT, Seen, Unseen
from k25stack.host.sources import Source

DATA = Path(__file__).with_name("nccl.json")
IMAGES_SET = frozenset({"NCCL_VERSION", "NCCL_HOME"})  # written by container images, read by nobody
# Numbers outside these bounds are taken and do harm, or are cut: more than 64 channels do not exist.
BOUNDS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), (1, 64)),
    **dict.fromkeys(("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"), (1 << 12, 1 << 30)),
    "NCCL_NTHREADS": (64, 1024),
}
DEBUG = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")


@cache
def data() -> dict[str, Any]:
    """What NCCL's versions read: names, levels, algorithms, protocols, kernels, and settings per workload."""
    loaded: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return loaded


def _newest(key: str) -> tuple[str, ...]:
    by_version = data()[key]
    return tuple(by_version[max(by_version, key=lambda text: [int(part) for part in text.split(".")])])


def kinds() -> Mapping[str, str]:
    """Variable -> kind of its value."""
    return {name: row["kind"] for name, row in data()["names"].items()}


def levels() -> tuple[str, ...]:
    return _newest("levels")


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    severity: Severity


def faults(env: Mapping[str, str]) -> list[Fault]:
    """Everything that is wrong with a set of variables.  Other variables than NCCL_* are left out."""
    found = [
        fault for name, value in sorted(env.items()) if name.startswith("NCCL_") and (fault := _fault(name, value))
    ]
    if env.get("NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in env:
        found.append(Fault("NCCL_P2P_LEVEL", "has no effect beside NCCL_P2P_DISABLE=1", FAIL))
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        if env.get(low, "").isdigit() and env.get(high, "").isdigit() and int(env[low]) > int(env[high]):
            found.append(Fault(low, f"is greater than {high}", FAIL))
    return found


def _fault(name: str, value: str) -> Fault | None:
    kind = "text" if name in IMAGES_SET else kinds().get(name)
    if kind is None:
        return _unknown(name)
    if kind == "level":
        return _level(name, value)
    if kind in ("algorithms", "protocols"):
        return _listed(name, value, _newest("algorithms") if kind == "algorithms" else tuple(data()["protocols"]))
    if kind == "int" and not re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]{1,12}|\d{1,12})", value):
        return Fault(name, f"is {value!r}, which is no number", FAIL)
    if name in BOUNDS and not BOUNDS[name][0] <= int(value, 0 if "x" in value.lower() else 10) <= BOUNDS[name][1]:
        return Fault(name, f"is {value}, not from {BOUNDS[name][0]} to {BOUNDS[name][1]}", FAIL)
    if kind == "debug" and value.upper() not in DEBUG:
        return Fault(name, f"is {value!r}, none of {', '.join(DEBUG)}", WARN)
    return None


def _unknown(name: str) -> Fault:
    import difflib

    near = difflib.get_close_matches(name, kinds(), n=1, cutoff=0.85)
    if near:
        return Fault(name, f"is no NCCL variable (did you mean {near[0]}?)", FAIL)
    return Fault(name, "is no variable of the known versions of NCCL", WARN)


def _level(name: str, value: str) -> Fault | None:
    if value in levels():
        return None
    if re.fullmatch(r"\d+", value):
        return Fault(name, f"is {value}: the meaning of numbers changed between releases, write a name", WARN)
    upper = value.upper()
    hint = f"one of {', '.join(levels())}"
    hint = f"write {upper}" if upper in levels() else "NODE is PHB to NCCL" if upper == "NODE" else hint
    return Fault(name, f"is {value!r}, which NCCL ignores without a word ({hint})", FAIL)


def _listed(name: str, value: str, words: tuple[str, ...]) -> Fault | None:
    """``LL,LL128``, ``^tree``, ``allreduce:ring;broadcast:tree``; an unknown word is fatal to NCCL."""
    lower = {word.lower() for word in words}
    for part in value.split(";"):
        for word in part.rpartition(":")[2].removeprefix("^").split(","):
            if word.strip().lower() not in lower:
                known = ", ".join(words)
                return Fault(name, f"is {value!r}: {word.strip()!r} ends NCCL with an error (known: {known})", FAIL)
    return None


def parse_env(text: str, what: str) -> dict[str, str]:
    """KEY=VALUE lines with comments.  Raises Unseen when a line is neither."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if odd := [line for line in lines if not re.match(r"(export )?[A-Za-z_][A-Za-z0-9_]*\s*=", line)]:
        raise Unseen(f"{what}: no KEY=VALUE: {odd[0]}")
    pairs = keyed_lines("\n".join(line.removeprefix("export ") for line in lines))
    return {key: value.strip("\"'") for key, value in pairs.items()}


def collected(seen: Seen) -> list[tuple[str, str, str]]:
    """(name, value, where it stands) of all places that were read.  Raises Unseen for garbage."""
    found = []
    for source in (NCCL_FILE, NCCL_CONF, NCCL_HOME, NCCL_ENV):
        text = seen.text(source)
        if text is not None:
            found += [
                (key, value, str(source))
                for key, value in parse_env(text, str(source)).items()
                if key.startswith("NCCL_")
            ]
    return found


def in_containers(found: Iterable[Mapping[str, object]]) -> dict[str, dict[str, str]]:
    """NCCL variables by container."""
    every = {}
    for one in found:
        words = one.get("nccl")
        pairs = [str(word).partition("=") for word in words if isinstance(word, str)] if isinstance(words, list) else []
        every[str(one.get("name", "?")).lstrip("/")] = {key: value for key, _, value in pairs}
    return every


def looked(seen: Seen) -> bool:
    """True when every place of settings on the host was read or is known to be absent."""
    return all(_known(seen, source) for source in (NCCL_FILE, NCCL_CONF, NCCL_HOME, NCCL_ENV))


def _known(seen: Seen, source: Source) -> bool:
    reading = seen.reading(source)
    return seen.lacks(source) or (reading is not None and reading.rc in (0, ABSENT))
