"""Carry the head of a draft with another vocabulary over to ours: which rows are shared (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from k25stack.draft.weightfile import WeightFile
from k25stack.errors import DamageError


@dataclass(frozen=True)
class Remap:
    """For every row of the new head, the row of the old head with the same target id, or -1."""

    rows: tuple[int, ...]
    shared: int  # rows that could be kept
    dropped: int  # rows of the old head that no new row wants
    coverage: float | None  # share of the counted tokens whose row is kept; None without counts

    def as_dict(self) -> dict[str, Any]:
        """What a run shows and keeps: counts and the share, not the rows."""
        return {"rows": len(self.rows), "shared": self.shared, "dropped": self.dropped, "coverage": self.coverage}


def remap(old_ids: Sequence[int], new_ids: Sequence[int], counts: Mapping[int, int] | None = None) -> Remap:
    """Match two draft vocabularies, given as target ids in draft order.

    ``counts`` (target id -> occurrences in real text) weighs the share that survives: rows are not equally used.
    """
    place = {token: row for row, token in enumerate(old_ids)}
    rows = tuple(place.get(token, -1) for token in new_ids)
    kept = {token for token, row in zip(new_ids, rows, strict=True) if row >= 0}
    share = None
    if counts and (total := sum(counts.values())):
        share = sum(count for token, count in counts.items() if token in kept) / total
    return Remap(rows, len(kept), len(place) - len(kept), share)


def target_ids(file: WeightFile, rows: int) -> list[int]:
    """The target ids of a file's draft vocabulary, in draft order; 0..rows-1 when it ships no map.

    Raises DamageError when d2t is not the differences of rising target ids, or t2d says otherwise.
    """
    if "d2t" not in file.tensors:
        return list(range(rows))
    ids = [value + index for index, value in enumerate(file.int64("d2t"))]
    where = str(file.path)
    if len(ids) != rows:
        raise DamageError(f"d2t has {len(ids)} entries for {rows} rows", where=where)
    if any(b <= a for a, b in pairwise(ids)) or (ids and ids[0] < 0):
        raise DamageError("d2t does not hold differences of rising target ids", where=where, remedy="convert the draft")
    if "t2d" in file.tensors:
        held = file.bool("t2d")
        if ids != [token for token, present in enumerate(held) if present]:
            raise DamageError("d2t and t2d name different target ids", where=where, remedy="convert the draft")
    return ids
