"""Prometheus text exposition, read by name (standard library only).

Samples of one name are summed over their labels: data-parallel ranks and streaming or not are parts of one server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from k25stack.errors import UsageError

SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')

POSITION = re.compile(r"[0-9]{1,3}")  # of a draft token in its round


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


class Metrics:
    """The samples of one reading.  Raises UsageError when the text is not an exposition."""

    def __init__(self, text: str, engine: str) -> None:
        self.engine = engine
        self.samples = list(_samples(text, engine))

    def total(self, name: str) -> float | None:
        """Sum of the samples of ``name``; None when there is none."""
        values = [sample.value for sample in self.samples if sample.name == name]
        return sum(values) if values else None

    def need(self, name: str) -> float:
        """Like ``total``.  Raises UsageError when the metric is missing: this is then not that engine."""
        value = self.total(name)
        if value is None:
            raise UsageError(f"no metric {name}", where=f"metrics of {self.engine}", remedy="is it this engine, with "
                             "metrics on?")  # fmt: skip
        return value

    def count(self, name: str) -> int | None:
        """The sum as a whole number; None when there is none."""
        value = self.total(name)
        return None if value is None else round(value)

    def by_label(self, name: str, label: str) -> tuple[int, ...] | None:
        """Sums by the whole-number value of ``label``, from 0 without gaps; None when there is no such sample."""
        sums: dict[int, float] = {}
        for sample in self.samples:
            if sample.name == name and POSITION.fullmatch(sample.labels.get(label, "")):
                position = int(sample.labels[label])
                sums[position] = sums.get(position, 0.0) + sample.value
        if not sums:
            return None
        return tuple(round(sums.get(position, 0.0)) for position in range(max(sums) + 1))


def _samples(text: str, engine: str) -> Iterator[Sample]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        try:
            if match is None:
                raise ValueError
            value = float(match[3])
            # Prometheus writes NaN for a gauge that nobody has set, and +Inf for the borders of histograms.
            if math.isfinite(value):
                yield Sample(match[1], dict(LABEL.findall(match[2] or "")), value)
        except ValueError:
            raise UsageError("not Prometheus text", where=f"metrics of {engine}, line {number}") from None
