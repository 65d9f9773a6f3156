"""Outputs of a measurement beside those of the one without a draft: which prompts to hand to the re-scoring.

The comparison itself is `k25stack.reference.lossless` (torch).  Outputs of the same concurrency are compared, so both
sides met about the same batch shapes.  Re-scoring decodes token by token, so of the equal outputs only a few are
handed on: they do not need a verdict, only the noise band is measured on them.  Where all outputs are equal there is
nothing to judge by a band, and nothing is re-scored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from k25stack.errors import UsageError

EQUAL_FOR_NOISE = 8
"""Equal outputs on which, beside the diverging ones, the noise band is measured."""

Output = dict[str, Any]


def judge_rows(out: Path, baseline: Path, target: Path, rows: list[dict[str, Any]], take: int | None) -> None:
    """Put ``row["lossless"]`` into every row of greedy speculation whose concurrency the baseline has too.

    ``take``: prompts to compare at most (None: all that both answered).
    Raises UsageError when no row can be compared.
    """
    from k25stack.reference import lossless
    from k25stack.reference.target import Target

    loaded: Target | None = None
    todo = [(row, common(out, baseline, row["concurrency"])[:take]) for row in rows if _comparable(row)]
    todo = [(row, pairs) for row, pairs in todo if pairs]
    if not todo:
        raise UsageError(
            "no outputs to compare", where=str(baseline), remedy="measure the baseline at the same concurrency"
        )
    for row, pairs in todo:
        equal = [pair for pair in pairs if pair[0]["token_ids"] == pair[1]["token_ids"]]
        differing = [pair for pair in pairs if pair[0]["token_ids"] != pair[1]["token_ids"]]
        chosen = [_pair(*pair) for pair in [*differing, *equal[:EQUAL_FOR_NOISE]]] if differing else []
        verdict = lossless.Lossless(0, sum(len(plain["token_ids"]) for plain, _ in equal), 0.0, 0, ())
        if chosen:
            loaded = loaded or Target.load(target)
            verdict = lossless.judge(loaded, [lossless.Pair(*pair) for pair in chosen], row["k"])
        row["lossless"] = {**verdict.as_dict(), "compared": len(pairs), "equal": len(equal), "rescored": len(chosen)}


def _comparable(row: dict[str, Any]) -> bool:
    return row["k"] is not None and not row["decode"].get("temperature")


def common(out: Path, baseline: Path, concurrency: int) -> list[tuple[Output, Output]]:
    """(without, with draft) outputs of every prompt that both measurements answered; none when a file is missing."""
    plain, drafted = (_read(root / f"c{concurrency}" / "outputs.jsonl") for root in (baseline, out))
    keys = sorted(plain.keys() & drafted.keys())
    for key in keys:
        if plain[key]["prompt_ids"] != drafted[key]["prompt_ids"]:
            raise UsageError(f"prompt {key} differs between the two", where=str(baseline), remedy="measure both again")
    return [(plain[key], drafted[key]) for key in keys]


def _read(path: Path) -> dict[str, Output]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["key"]: row for row in rows}


def _pair(plain: Output, drafted: Output) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return plain["key"], tuple(plain["prompt_ids"]), tuple(plain["token_ids"]), tuple(drafted["token_ids"])
