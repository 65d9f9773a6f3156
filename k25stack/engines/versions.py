"""Comparing engine versions: 0.5.20.post1 and v0.5.20-cu130 both count as 0.5.20 (standard library only)."""

from __future__ import annotations

import re
from collections.abc import Iterable


def version_key(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; empty when it does not begin with one."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def nearest_older(known: Iterable[str], wanted: str) -> str:
    """The newest known version that is not newer than ``wanted``; the oldest known one when all are."""
    ordered = sorted(known, key=version_key)
    older = [version for version in ordered if version_key(version) <= version_key(wanted)]
    return older[-1] if older else ordered[0]
