"""Percentiles, Student's t and intervals over repeats (standard library only)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from k25stack.errors import UsageError
from k25stack.speculation.interval import quantile


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function by Lentz's method (DLMF 8.17.22)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    value = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / ((1.0 + term * d) or tiny)
            c = (1.0 + term / c) or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def beta_cdf(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), for a, b > 0 and x in 0..1."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, 1.0 - x) / b


def t_cdf(t: float, degrees: float) -> float:
    """P(T <= t) for Student's t with ``degrees`` of freedom."""
    tail = 0.5 * beta_cdf(degrees / 2.0, 0.5, degrees / (degrees + t * t))
    return 1.0 - tail if t > 0 else tail


def t_quantile(p: float, degrees: float) -> float:
    """The t below which a share ``p`` (0 < p < 1) of Student's distribution lies; by bisection, to 1e-10."""
    if not 0.0 < p < 1.0 or degrees <= 0:
        raise UsageError(f"no quantile {p} with {degrees} degrees of freedom", where="Student's t")
    if p < 0.5:
        return -t_quantile(1.0 - p, degrees)
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < p:
        low, high = high, high * 2.0
    while high - low > 1e-10 * max(1.0, high):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_cdf(middle, degrees) < p else (low, middle)
    return (low + high) / 2.0


@dataclass(frozen=True)
class Repeated:
    """A figure measured several times on one server."""

    median: float
    low: float | None  # ends of the t-interval of the mean; None with one repeat
    high: float | None
    values: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        interval = None if self.low is None else [self.low, self.high]
        return {"median": self.median, "interval": interval, "values": list(self.values)}


def repeated(values: Sequence[float], level: float = 0.95) -> Repeated:
    """Median and t-interval (mean +- t * s / sqrt(n)) of repeats.  Raises UsageError for none."""
    if not values:
        raise UsageError("no repeat was measured", where="bench")
    if len(values) == 1:
        return Repeated(values[0], None, None, tuple(values))
    half = t_quantile((1 + level) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    middle = mean(values)
    return Repeated(median(values), middle - half, middle + half, tuple(values))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99 (linear between neighbours) and the mean; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    named = {f"p{q}": quantile(ordered, q / 100) for q in (50, 90, 99)}
    return {**named, "mean": mean(ordered)}
