"""Versions with known holes: a small reviewed table, since package indexes carry no advisories (no torch)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from k25stack.contract.finding import Check, Verdict
from k25stack.engines.versions import version_key


@dataclass(frozen=True)
class Advisory:
    """One hole of one package."""

    package: str
    id: str
    what: str
    fixed: str | None  # the version that closes it; None: open
    source: str
    uncertain_from: str | None = None  # from here to ``fixed`` it is not known which release closed it


@cache
def table() -> tuple[Advisory, ...]:
    rows = json.loads((files(__package__) / "security.json").read_text(encoding="utf-8"))["rows"]
    return tuple(Advisory(**row) for row in rows)


def floor(package: str) -> str:
    """The lowest version of a package without a known closed hole; empty for a package that is not in the table."""
    fixed = [one.fixed for one in table() if one.package == package and one.fixed]
    return max(fixed, key=version_key, default="")


def advisories(package: str, version: str) -> list[Advisory]:
    """Holes of this version that a newer one closes."""
    here = version_key(version)
    return [one for one in table() if one.package == package and one.fixed and here < version_key(one.fixed)]


def check_version(package: str, version: str, group: str) -> Iterator[Check]:
    """L43: the version is not below the floor of its package; nothing for a package without a table."""
    lowest = floor(package)
    if not lowest or not version_key(version):
        return
    evidence: dict[str, object] = {"version": version, "floor": lowest}
    found = advisories(package, version)
    if not found:
        still = [one.id for one in table() if one.package == package and one.fixed is None]
        told = evidence | ({"open in every version": still} if still else {})
        yield Check("L43", group, Verdict.PASS, f"{package} {version} is at or above its floor {lowest}", told)
        return
    sure = [one for one in found if not one.uncertain_from or version_key(version) < version_key(one.uncertain_from)]
    shown = sure or found
    evidence["holes"] = {one.id: one.what for one in shown}
    doubt = "" if sure else "perhaps "
    yield Check(
        "L43",
        group,
        Verdict.FAIL if sure else Verdict.WARN,
        f"below the security floor: {package} {version} {doubt}has {', '.join(one.id for one in shown)}",
        evidence,
        f"use {package} {lowest} or later",
        "; ".join(dict.fromkeys(one.source for one in shown)),
    )
