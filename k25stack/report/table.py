"""The end table: one line per profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k25stack.report.facts import Facts, read_facts
from k25stack.report.figures import Estimate, Profile, profiles

LEGEND = (
    "single-stream tok/s: 1/TPOT, decode only; throughput tok/s: output tokens over the steady window, at C requests; "
    "accept length: 1 + accepted/verify calls (tokens/round), 95 % interval clustered by prompt; predicted: greedy "
    "walk over the same responses; speed-up: accept length / r; break-even: accept length = r"
)


def table(run: Path) -> str:
    """The text table of a run directory.  Raises UsageError when it has no ledger."""
    return text_table(read_facts(run))


def text_table(facts: Facts) -> str:
    found = profiles(facts)
    if not found:
        return "no benchmark yet"
    return "\n".join([*aligned(rows_of(found)), "", LEGEND])


def rows_of(found: Sequence[Profile]) -> list[list[str]]:
    """Header and one row per profile, as text cells."""
    levels = sorted({int(row["concurrency"]) for profile in found for row in profile.rows})
    header = ["profile", "single-stream tok/s", *(f"tok/s at C={c}" for c in levels if c > 1)]
    header += ["accept length measured", "accept length predicted", "speed-up", "break-even"]
    return [header, *([*_speeds(profile, levels), *_lengths(profile)] for profile in found)]


def _speeds(profile: Profile, levels: Sequence[int]) -> list[str]:
    by_level = {int(row["concurrency"]): row for row in profile.rows}
    name = profile.name + ("" if all(row["accepted"] for row in profile.rows) else " (rejected)")
    cells = [name, repeated(profile.single)]
    return cells + [repeated(by_level.get(c, {}).get("throughput_tok_s")) for c in levels if c > 1]


def _lengths(profile: Profile) -> list[str]:
    gains, limits = [], []
    for concurrency, cost in profile.costs.items():
        known = cost["r"] is not None
        gains.append(f"{cost['speedup']:.2f}x (C={concurrency})" if known else f"{cost['verdict']} (C={concurrency})")
        if known:
            limits.append(f"{cost['break_even']:.2f} (C={concurrency})")
    return [estimate(profile.measured), estimate(profile.predicted), ", ".join(gains) or "-", ", ".join(limits) or "-"]


def repeated(figure: dict[str, Any] | None) -> str:
    """Median of repeats with its t-interval."""
    if not figure:
        return "-"
    interval = figure.get("interval")
    return f"{figure['median']:.1f}" + (f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else "")


def estimate(value: Estimate | None) -> str:
    return "-" if value is None else f"{value.value:.3f}" + bounds(value.interval)


def bounds(interval: Sequence[float] | None) -> str:
    return f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with their columns padded; the first is a header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
