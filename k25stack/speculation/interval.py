"""Intervals that respect clustering: rounds of one prompt are alike, prompts are independent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from k25stack.errors import UsageError
from k25stack.speculation.rounds import RoundCounts

Interval = tuple[float, float]


def bootstrap_by_prompt(
    per_prompt: Sequence[RoundCounts],
    statistic: Callable[[RoundCounts], float],
    seed: int,
    draws: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap interval of ``statistic`` of the summed counters, resampling whole prompts.

    ``per_prompt`` holds one record per prompt (all turns and repeats of it together).  The same seed gives the same
    interval.  Prompts without a complete round are left out.  Raises UsageError when none is left.
    """
    used = [counts for counts in per_prompt if counts.verify_calls]
    rows = [_row(counts, _width(used)) for counts in used]
    values = [statistic(_counts(total)) for total in _resample(rows, seed, draws)]
    return _quantiles(values, level)


def bootstrap_pairs(
    pairs: Sequence[tuple[RoundCounts, RoundCounts]],
    statistic: Callable[[RoundCounts, RoundCounts], float],
    seed: int,
    draws: int = 2000,
    level: float = 0.95,
) -> Interval:
    """As `bootstrap_by_prompt` for two measurements of the same prompts, say served and predicted.

    Pairs are drawn together, so what both share (easy and hard prompts) cancels in a difference.
    """
    used = [(a, b) for a, b in pairs if a.verify_calls and b.verify_calls]
    width = _width([counts for pair in used for counts in pair])
    rows = [_row(a, width) + _row(b, width) for a, b in used]
    half = width + 4
    values = [statistic(_counts(t[:half]), _counts(t[half:])) for t in _resample(rows, seed, draws)]
    return _quantiles(values, level)


def _width(counts: Sequence[RoundCounts]) -> int:
    """Histogram width that all share; 0 when one has none."""
    widths = [len(c.histogram) for c in counts]
    return max(widths) if widths and min(widths) > 0 else 0


def _row(counts: RoundCounts, width: int) -> list[int]:
    histogram = (counts.histogram + (0,) * width)[:width]
    return [counts.verify_calls, counts.accepted, counts.proposed, counts.cut, *histogram]


def _counts(row: Sequence[int]) -> RoundCounts:
    return RoundCounts(row[0], row[1], row[2], tuple(row[4:]), row[3])


def _resample(rows: Sequence[list[int]], seed: int, draws: int) -> list[list[int]]:
    """``draws`` column sums of as many rows as there are, drawn with replacement."""
    if not rows:
        raise UsageError("no prompt has a complete round", where="bootstrap", remedy="use longer or more responses")
    generator = random.Random(seed)
    return [[sum(column) for column in zip(*generator.choices(rows, k=len(rows)), strict=True)] for _ in range(draws)]


def _quantiles(values: Sequence[float], level: float) -> Interval:
    ordered = sorted(values)
    return (quantile(ordered, (1 - level) / 2), quantile(ordered, (1 + level) / 2))


def quantile(ordered: Sequence[float], q: float) -> float:
    """Value at share ``q`` (0..1) of an ascending sequence, linear between neighbours (Hyndman and Fan's type 7)."""
    if not ordered:
        raise UsageError("no value to take a quantile of", where="quantile")
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def total(counts: Sequence[RoundCounts]) -> RoundCounts:
    """Sum of many counters (no rounds at all for none)."""
    result = RoundCounts(0, 0, 0)
    for one in counts:
        result = result + one
    return result
