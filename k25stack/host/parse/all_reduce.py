"""Tables of nccl-tests' ``all_reduce_perf``, which the measuring worker prints too."""

from __future__ import annotations

import re
from typing import NamedTuple

from k25stack.host.parse.values import number

TYPES = ("float", "bfloat16", "half")


class Row(NamedTuple):
    size: int  # bytes
    us: float | None  # the faster pass
    first: float | None  # GB/s of the bus
    first_wrong: str
    second: float | None
    second_wrong: str


def rows(text: str) -> list[list[Row]]:
    """The lines of each set of ranks, in order; at least one list, which may be empty."""
    groups: list[list[Row]] = [[]]
    for line in text.splitlines():
        words = line.split()
        if line.startswith("# ranks "):
            groups.append([])
        elif len(words) >= 13 and words[0].isdigit() and words[2] in TYPES and words[3] == "sum":
            us = [time for time in (number(words[5]), number(words[9])) if time is not None]
            speeds = number(words[7]), number(words[11])
            groups[-1].append(Row(int(words[0]), min(us, default=None), speeds[0], words[8], speeds[1], words[12]))
    return groups[1:] if len(groups) > 1 and not groups[0] else groups


def wrong_sizes(text: str) -> list[str]:
    """``8192 B`` of every size at which a sum was wrong on any rank; N/A (not checked) is not wrong."""
    found = [
        f"{row.size} B" for group in rows(text) for row in group if {row.first_wrong, row.second_wrong} - {"0", "N/A"}
    ]
    found += re.findall(r"^# rank \d+: \d+ wrong sums at (\d+ B)$", text, re.MULTILINE)
    return list(dict.fromkeys(found))


def remark(text: str) -> str:
    """The last remark of the worker."""
    remarks = re.findall(r"^# (.+)$", text, re.MULTILINE)
    return remarks[-1] if remarks else "no message"
