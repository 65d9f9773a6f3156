"""From a profile's typed options to words of a command line (standard library only)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from k25stack.errors import UsageError


def render(options: Mapping[str, Any]) -> list[str]:
    """``true`` -> ``--name``; ``false`` -> nothing; a list -> several words; a mapping -> one word of JSON."""
    words: list[str] = []
    for name, value in options.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, Mapping):
            words.append(compact(value))
        elif isinstance(value, list | tuple):
            words.extend(_word(item) for item in value)
        elif value is not True:
            words.append(_word(value))
    return words


def compact(value: Any) -> str:
    """JSON in one word, keys in the given order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _word(value: bool | int | float | str) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def refuse_own(options: Mapping[str, Any], own: Mapping[str, str], engine: str) -> None:
    """Raise UsageError for an option that the command line already gets from a typed key of the stack file."""
    for name in options:
        if name in own:
            raise UsageError(f"argv option {name!r} is written by the stack", where=f"{engine} profile",
                             remedy=f"set {own[name]} instead")  # fmt: skip


def refuse_version(engine: str, version: str, known: tuple[str, ...]) -> None:
    """Raise UsageError for a version whose options were not read."""
    if version not in known:
        raise UsageError(f"{engine} {version} is not a version whose options were read", remedy=f"known are "
                         f"{', '.join(known)}")  # fmt: skip


def need_draft(draft: str | None, engine: str) -> str:
    if draft is None:
        raise UsageError("the profile speculates and no draft was given", where=engine, remedy="package a draft first")
    return draft
