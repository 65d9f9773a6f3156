"""Which options each engine version has, what values they take, and what is wrong with some of them.

``catalogues/<engine>-<version>.json`` is what that version's own parser says (`introspect.py` made it).
``remarks.json`` is a small table, written by hand, of what no parser says: options that are read nowhere, new names
of old ones, values that the engine refuses behind its parser, and options that stop it without one another.
SGLang's and vLLM's parsers take any unambiguous beginning of a name, which breaks when a later version adds a second
option with that beginning; such a spelling is reported even while it still works.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from k25stack.engines.versions import nearest_older, version_key
from k25stack.errors import UsageError
from k25stack.files import read_json

HERE = Path(__file__).parent
Problem = Literal["unknown", "ambiguous", "abbreviated", "dead", "replaced"]
FATAL: tuple[Problem, ...] = ("unknown", "ambiguous")  # the server would not start


@dataclass(frozen=True)
class Option:
    """One option as the parser has it."""

    names: tuple[str, ...]  # with their dashes, the first is the usual one
    nargs: int | str | None  # 0: a bare flag; None: one value; "+", "*", "?" as in argparse
    type: str = "str"  # the parser's own converter by name
    choices: tuple[Any, ...] | None = None
    required: bool = False
    repeats: bool = False  # given twice it adds up; any other option's last value wins
    deprecated: str | None = None  # the new spelling, "" when the parser tells none

    @property
    def name(self) -> str:
        """The long spelling that people write."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])


@dataclass(frozen=True)
class Catalogue:
    """The options of one version."""

    engine: str
    version: str  # as asked for
    read_as: str  # the version whose parser was read
    source: str
    options: Mapping[str, Option]  # every spelling, with its dashes
    positionals: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return version_key(self.version) == version_key(self.read_as)

    @property
    def label(self) -> str:
        return f"{self.engine}@{self.version}"


@dataclass(frozen=True)
class Remark:
    """What is known of an option beside the parser: ``dead`` (accepted, read nowhere) or ``renamed``."""

    kind: Literal["dead", "renamed"]
    option: str  # without dashes
    instead: str
    source: str


@dataclass(frozen=True)
class Finding:
    option: str
    problem: Problem
    message: str
    remedy: str
    source: str = ""


def versions(engine: str) -> list[str]:
    """Versions with a catalogue, oldest first."""
    found = (path.stem.removeprefix(f"{engine}-") for path in (HERE / "catalogues").glob(f"{engine}-*.json"))
    return sorted(found, key=version_key)


@cache
def catalogue(engine: str, version: str) -> Catalogue | None:
    """The options of this version, or of the nearest older one that was read; None for an engine without catalogues.

    Raises UsageError when the version is not one.
    """
    known = versions(engine)
    if not known:
        return None
    if not version_key(version):
        raise UsageError(f"{version!r} is no version", where=engine, remedy=f"for example {engine}@{known[-1]}")
    read_as = nearest_older(known, version)
    data = read_json(HERE / "catalogues" / f"{engine}-{read_as}.json")
    options = [_option(names.split(), facts) for names, facts in data["options"].items()]
    spelled = {name: option for option in options for name in option.names}
    return Catalogue(engine, version, read_as, data["source"], spelled, tuple(data["positionals"]))


def _option(names: list[str], facts: Mapping[str, Any]) -> Option:
    choices = facts.get("choices")
    return Option(
        names=tuple(names),
        nargs=facts.get("nargs") if "type" in facts else 0,
        type=facts.get("type", "flag"),
        choices=None if choices is None else tuple(choices),
        required=facts.get("required", False),
        repeats=facts.get("repeats", False),
        deprecated=facts.get("deprecated"),
    )


@cache
def remarks(engine: str, version: str) -> Mapping[str, Remark]:
    """Reviewed remarks on options of this version (or of the nearest older one that was read), by bare name."""
    return {
        row["option"]: Remark(row["kind"], row["option"], row["instead"], row["source"])
        for row in _rows("rows", engine, version)
    }


@dataclass(frozen=True)
class Values:
    """What the engine takes for an option whose parser takes any text."""

    meaning: str  # as `facts` names it
    values: tuple[str, ...]
    source: str
    others: str  # what makes it take another value; empty: nothing does


@dataclass(frozen=True)
class Together:
    """An option that stops the engine without another one, or beside it."""

    option: str  # without dashes, as the others
    needs: str  # empty: see ``without``
    without: str
    source: str


@cache
def narrowed(engine: str, version: str) -> tuple[Values, ...]:
    """Values that this version (or the nearest older one that was read) judges behind its parser."""
    return tuple(
        Values(row["meaning"], tuple(row["values"]), row["source"], row.get("others", ""))
        for row in _rows("values", engine, version)
    )


@cache
def together(engine: str, version: str) -> tuple[Together, ...]:
    """Options of this version (or of the nearest older one that was read) that go together, or do not."""
    return tuple(
        Together(row["option"], row.get("needs", ""), row.get("without", ""), row["source"])
        for row in _rows("together", engine, version)
    )


def _rows(table: str, engine: str, version: str) -> list[dict[str, Any]]:
    found = catalogue(engine, version)
    rows: list[dict[str, Any]] = read_json(HERE / "remarks.json")[table] if found else []
    return [row for row in rows if found and row["engine"] == engine and found.read_as in row["versions"]]


@cache
def names(engine: str, version: str) -> frozenset[str]:
    """Every long spelling of every option, without its two dashes; empty for an engine without catalogues."""
    found = catalogue(engine, version)
    return frozenset(name[2:] for name in found.options if name.startswith("--")) if found else frozenset()


def findings(engine: str, version: str, options: Iterable[str]) -> list[Finding]:
    """What is wrong with these options (no leading dashes) in this version; empty without a catalogue."""
    found = catalogue(engine, version)
    judged = [judge_name(found, option) for option in options] if found else []
    return [finding for finding in judged if finding is not None]


def judge_name(known: Catalogue, option: str) -> Finding | None:
    """What is wrong with the long name of one option, its two dashes left out; None when nothing is."""
    here = f"{known.engine} {known.version}"
    spelled = known.options.get(f"--{option}")
    remark = remarks(known.engine, known.version).get(option)
    if remark is not None and remark.kind == "dead" and spelled is not None:
        return Finding(option, "dead", f"{here} accepts it and reads it nowhere", remark.instead, remark.source)
    if spelled is not None and spelled.deprecated is not None:
        remedy = remark.instead if remark else f"write {spelled.deprecated}" if spelled.deprecated else "leave it out"
        return Finding(option, "replaced", f"deprecated in {here}", remedy, remark.source if remark else known.source)
    if spelled is not None:
        return None
    longer = sorted(name for name in names(known.engine, known.version) if name.startswith(option))
    short = known.options.get(f"-{option}")
    if short is not None and len(longer) != 1:  # --tp for vLLM's -tp
        message = f"{here} knows it with one dash only, as -{option}"
        return Finding(option, "unknown", message, f"write {short.name.lstrip('-')}", known.source)
    if len(longer) == 1:
        return Finding(option, "abbreviated", f"only a beginning of --{longer[0]}", f"write {longer[0]}", known.source)
    if longer:
        remedy = remark.instead if remark else "spell one of them out"
        return Finding(option, "ambiguous", f"{here} cannot tell {', '.join(longer)} apart", remedy, known.source)
    if remark is not None:
        return Finding(option, "unknown", f"{here} no longer has this option", remark.instead, remark.source)
    near = difflib.get_close_matches(option, sorted(names(known.engine, known.version)), n=1)
    remedy = f"did you mean {near[0]}?" if near else "leave it out"
    return Finding(option, "unknown", f"{here} has no such option", remedy, known.source)
