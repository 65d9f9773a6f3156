"""Two sets of rows side by side: what may be compared, and whether a difference is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack import ledger
from k25stack.errors import UsageError
from k25stack.files import read_json

Row = dict[str, Any]

FIGURES = (  # key, title, unit, higher is better
    ("single_stream_tok_s", "single stream (1/TPOT)", "tok/s"),
    ("throughput_tok_s", "throughput (steady window)", "tok/s"),
    ("accept_length", "accept length (1 + accepted/verify calls)", "tokens/round"),
)


@dataclass(frozen=True)
class Difference:
    """One figure of two rows; ``verdict`` says from A to B."""

    figure: str
    unit: str
    a: float
    b: float
    a_interval: tuple[float, float] | None
    b_interval: tuple[float, float] | None
    verdict: str  # "higher" | "lower" | "no difference" | "one repeat: no verdict"


@dataclass(frozen=True)
class Comparison:
    """Row A beside row B.  ``obstacles`` is empty when they may be compared."""

    a: str
    b: str
    obstacles: tuple[str, ...]
    differences: tuple[Difference, ...]


def load_rows(path: Path) -> list[Row]:
    """Rows of a ``rows.json``, a single ``row.json``, or the ledger of a run directory."""
    if path.is_dir():
        if (path / "rows.json").exists():
            return load_rows(path / "rows.json")
        rows = [record.data for record in ledger.read(path / "ledger") if record.kind == "bench.row"]
        if not rows:
            raise UsageError("no bench rows here", where=str(path), remedy="give a rows.json or a run directory")
        return rows
    try:
        raw = read_json(path)
    except FileNotFoundError:
        raise UsageError("no such file", where=str(path), remedy="give a rows.json or a run directory") from None
    except ValueError:
        raise UsageError("not JSON", where=str(path), remedy="give a rows.json or a run directory") from None
    rows = raw.get("rows", [raw]) if isinstance(raw, dict) else []
    if not rows or any(not isinstance(row, dict) or "profile" not in row for row in rows):
        raise UsageError("no bench rows here", where=str(path), remedy="give a rows.json or a run directory")
    return [dict(row) for row in rows]


def compare(a: Sequence[Row], b: Sequence[Row]) -> list[Comparison]:
    """Every row of A beside the row of B with the same profile and concurrency (or the only one there).

    Raises UsageError when nothing pairs up.
    """
    profiles = {row["profile"] for row in [*a, *b]}
    one_each = len({row["profile"] for row in a}) == len({row["profile"] for row in b}) == 1
    found = []
    for row in a:
        for other in b:
            same_profile = row["profile"] == other["profile"] or (one_each and len(profiles) == 2)
            if same_profile and row["concurrency"] == other["concurrency"]:
                found.append(_pair(row, other))
    if not found:
        raise UsageError("no row has the same profile and concurrency in both", where="compare")
    return found


def _pair(a: Row, b: Row) -> Comparison:
    obstacles = tuple(obstacles_between(a, b))
    differences = () if obstacles else tuple(_differences(a, b))
    return Comparison(_title(a), _title(b), obstacles, differences)


def _title(row: Row) -> str:
    return f"{row['profile']} C={row['concurrency']}"


def obstacles_between(a: Row, b: Row) -> list[str]:
    """Why two rows are not comparable: other decode mode, definitions, prompts, limits, or a rejected row."""
    found = []
    for section in ("decode", "definitions"):
        left, right = a.get(section) or {}, b.get(section) or {}
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                found.append(f"{section}.{name}: {left.get(name)!r} and {right.get(name)!r}")
    for name in ("max_tokens", "ignore_eos"):
        if a.get(name) != b.get(name):
            found.append(f"{name}: {a.get(name)!r} and {b.get(name)!r}")
    if a["prompts"]["hash"] != b["prompts"]["hash"]:
        found.append("other prompts")
    if a["k"] is not None and b["k"] is not None and a["verify_rule"] != b["verify_rule"]:
        found.append(f"verify_rule: {a['verify_rule']!r} and {b['verify_rule']!r}")
    for row in (a, b):
        if not row["accepted"]:
            found.append(f"{_title(row)} was rejected: {row['reasons'][0]}")
    return found


def _differences(a: Row, b: Row) -> list[Difference]:
    found = []
    for key, title, unit in FIGURES:
        left, right = _figure(a.get(key)), _figure(b.get(key))
        if left is None or right is None:
            continue
        found.append(Difference(title, unit, left[0], right[0], left[1], right[1], _verdict(left, right)))
    return found


Figure = tuple[float, tuple[float, float] | None]


def _figure(raw: Any) -> Figure | None:
    if not raw:
        return None
    interval = raw.get("interval")
    return (raw.get("median", raw.get("value")), tuple(interval) if interval else None)


def _verdict(a: Figure, b: Figure) -> str:
    """Intervals that overlap are no difference (stricter than a test at the same level)."""
    if a[1] is None or b[1] is None:
        return "one repeat: no verdict"
    if b[1][0] > a[1][1]:
        return "higher"
    return "lower" if b[1][1] < a[1][0] else "no difference"


def as_text(comparisons: Sequence[Comparison]) -> str:
    """Lines for people."""
    lines = []
    for pair in comparisons:
        lines.append(f"A {pair.a}   B {pair.b}")
        lines += [f"  not comparable: {obstacle}" for obstacle in pair.obstacles]
        for d in pair.differences:
            change = f"{d.b / d.a - 1:+.1%}" if d.a else ""
            lines.append(
                f"  {d.figure}: {_show(d.a, d.a_interval)} -> {_show(d.b, d.b_interval)} {d.unit} {change}: {d.verdict}"
            )
    return "\n".join(lines)


def _show(value: float, interval: tuple[float, float] | None) -> str:
    return f"{value:.4g}" + (f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else "")
