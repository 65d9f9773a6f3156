"""The part of a sample that planning and writing hidden states look at (states.manifest.SampleLike)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    doc_id: str
    turn: int
    domain: str
    split: str
    prompt_ids: list[int]
    response_ids: list[int]
