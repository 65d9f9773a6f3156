"""Numbers with units, versions, JSON and lists as host programs print them.  Nothing is guessed: odd text is None."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from k25stack.host.seen import Unseen


def number(text: str | None, unit: str = "") -> float | None:
    """``97887 MiB`` with unit ``MiB`` -> 97887.0.  Another unit, a decimal comma or words: None."""
    if text is None:
        return None
    found = re.fullmatch(rf"(-?\d{{1,18}}(?:\.\d{{1,9}})?)\s*{re.escape(unit)}", text.strip())
    return float(found.group(1)) if found else None


def version(text: str | None) -> tuple[int, ...] | None:
    """``580.95.05`` -> (580, 95, 5); a tail such as ``-45-generic`` or ``+dfsg`` is dropped; no version: None."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)(?![\w.])", (text or "").strip())
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def at_least(found: tuple[int, ...], floor: str) -> bool:
    """True when a version is ``floor`` or newer: (580, 95, 5) is at least "580"."""
    wanted = version(floor) or ()
    width = max(len(found), len(wanted))
    return found + (0,) * (width - len(found)) >= wanted + (0,) * (width - len(wanted))


def as_json(text: str, what: str) -> Any:
    """Raises Unseen when the text is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Unseen(f"{what}: no JSON") from None


def json_object(text: str, what: str) -> dict[str, Any]:
    found = as_json(text, what)
    if not isinstance(found, dict):
        raise Unseen(f"{what}: no JSON object")
    return found


def json_lines(text: str, what: str) -> list[dict[str, Any]]:
    """Objects that follow each other, one a line or spread over lines.  Raises Unseen."""
    decoder, position, found = json.JSONDecoder(), 0, []
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            raise Unseen(f"{what}: no JSON") from None
        if not isinstance(value, dict):
            raise Unseen(f"{what}: no JSON object")
        found.append(value)
    return found


def line_with(pattern: re.Pattern[str], text: str) -> str | None:
    """The first line that holds the pattern, stripped."""
    found = pattern.search(text)
    if found is None:
        return None
    begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
    return text[begin : None if end < 0 else end].strip()


def integer(value: Any) -> int | None:
    """A whole number from JSON; True and texts are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def listed(names: Iterable[object], limit: int = 8) -> str:
    """``a, b, c and 5 more``"""
    words = [str(name) for name in names]
    rest = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {rest} more" if rest > 0 else "")


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def keyed_lines(text: str, separator: str = "=") -> dict[str, str]:
    """``KEY=VALUE`` lines; others are left out."""
    pairs = (line.split(separator, 1) for line in text.splitlines() if separator in line)
    return {key.strip(): value.strip() for key, value in pairs}


def common(values: Sequence[Any]) -> Any:
    """The one value that all share, or None."""
    return values[0] if values and all(value == values[0] for value in values) else None
