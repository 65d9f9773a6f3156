"""What follows from a measurement's rows: prediction against service, step-cost ratio, verdicts.

Written into the rows themselves, so that whoever reads them later needs no maths:

``overall``  the same in every row of a measurement: accept length over all rows, the greedy walk over the same
             responses, their difference, the gap ratio with its verdict, figures by domain
``cost``     of each row against the baseline's row at the same concurrency: r, break-even, speed-up
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError
from k25stack.files import read_json
from k25stack.speculation import (
    RoundCounts,
    StepTime,
    bootstrap_by_prompt,
    bootstrap_pairs,
    break_even,
    gap_ratio,
    speedup,
    step_cost_ratio,
)
from k25stack.speculation.interval import total
from k25stack.speculation.verdicts import NOTHING

Row = dict[str, Any]
Pair = tuple[RoundCounts, RoundCounts]  # served, walk
NO_ROUNDS = RoundCounts(0, 0, 0)


def conclude(rows: Sequence[Row], walks: Mapping[str, RoundCounts], baseline: Sequence[Row], seed: int) -> None:
    """Fill in ``overall`` and ``cost``.  ``walks``: rounds of the greedy walk by prompt key, empty when unknown."""
    whole = overall(rows, walks, seed)
    plain = {int(row["concurrency"]): row for row in baseline}
    for row in rows:
        row["overall"] = whole
        row["cost"] = cost(row, plain.get(int(row["concurrency"])))


def read_walks(path: Path) -> dict[str, RoundCounts]:
    """Prompt key (doc_id/turn) -> rounds, from a training step's ``walk.jsonl`` (the file or its directory)."""
    path = path / "walk.jsonl" if path.is_dir() else path
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {
            f"{one['doc_id']}/{one['turn']}": RoundCounts.from_histogram(tuple(one["histogram"]), int(one["cut"]))
            for one in records
            if one.get("split", "held_out") == "held_out"
        }
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamageError("not a file of greedy walks", where=str(path), remedy="run the training step again") from None


def read_baseline(directory: Path) -> list[Row]:
    """Rows of the measurement without a draft."""
    return [dict(row) for row in read_json(directory / "rows.json")["rows"]]


def overall(rows: Sequence[Row], walks: Mapping[str, RoundCounts], seed: int) -> dict[str, Any] | None:
    """Accept length of a measurement, and the walk over the same responses; None without speculation."""
    served = _by_cluster(rows, {})
    counts = total([RoundCounts.from_dict(row["rounds"]) for row in rows if row["rounds"]])
    if not counts.verify_calls:
        return None
    evidence = distinct_rounds(rows) if served else counts.verify_calls
    measured = estimate([pair[0] for pair in served], evidence, seed) or _alone(counts)
    found: dict[str, Any] = {
        "accept_length": measured,
        "contributes_nothing": measured["value"] <= NOTHING,
        "served": None,  # the part of it over responses that have a walk
        "predicted": None,  # the walk over these, weighted as they were served
        "difference_interval": None,  # 95 % of served - predicted, paired by prompt
        "gap": None,
        "by_domain": _by_domain(rows, walks),
    }
    pairs = [pair for pair in _by_cluster(rows, walks) if pair[0].verify_calls and pair[1].verify_calls]
    return {**found, **_against_walk(pairs, evidence, seed)} if pairs else found


def _against_walk(pairs: Sequence[Pair], evidence: int, seed: int) -> dict[str, Any]:
    served, predicted = total([pair[0] for pair in pairs]), total([pair[1] for pair in pairs])
    gap = gap_ratio(served.accept_length(), predicted.accept_length(), min(evidence, served.verify_calls))
    difference = None
    if len(pairs) > 1:
        difference = list(bootstrap_pairs(pairs, lambda a, b: a.accept_length() - b.accept_length(), seed))
    return {
        "served": estimate([pair[0] for pair in pairs], served.verify_calls, seed),
        "predicted": estimate([pair[1] for pair in pairs], predicted.verify_calls, seed),
        "difference_interval": difference,
        "gap": {"ratio": gap.ratio, "verdict": gap.verdict},
    }


def estimate(per_prompt: Sequence[RoundCounts], rounds: int, seed: int) -> dict[str, Any] | None:
    """Accept length with its 95 % interval, clustered by prompt (none with fewer than two prompts)."""
    used = [counts for counts in per_prompt if counts.verify_calls]
    if not used:
        return None
    interval = list(bootstrap_by_prompt(used, RoundCounts.accept_length, seed)) if len(used) > 1 else None
    return {"value": total(used).accept_length(), "interval": interval, "rounds": rounds, "prompts": len(used)}


def _alone(counts: RoundCounts) -> dict[str, Any]:
    """Where an engine counts only for the whole server: no interval."""
    return {"value": counts.accept_length(), "interval": None, "rounds": counts.verify_calls, "prompts": None}


def distinct_rounds(rows: Iterable[Row]) -> int:
    """Complete rounds; a greedy response that was asked for again is no new evidence and counts once."""
    once: dict[str, float] = {}
    again = 0
    for row in rows:
        for document in row["documents"]:
            rounds = int(document["rounds"]["verify_calls"])
            if row["decode"].get("temperature"):
                again += rounds
            else:
                key = str(document["key"])
                once[key] = max(once.get(key, 0.0), rounds / int(document["requests"]))
    return again + round(sum(once.values()))


def _by_cluster(rows: Sequence[Row], walks: Mapping[str, RoundCounts]) -> list[Pair]:
    """Counters per prompt; with ``walks`` only over responses of greedy rows that have one of the same k."""
    found: dict[str, Pair] = defaultdict(lambda: (NO_ROUNDS, NO_ROUNDS))
    for row in rows:
        for document in row["documents"]:
            walk = _walk_of(row, document, walks)
            if walks and walk is None:
                continue
            served, predicted = found[str(document["cluster"])]
            served = served + RoundCounts.from_dict(document["rounds"])
            found[str(document["cluster"])] = (served, predicted + (walk or NO_ROUNDS).times(int(document["requests"])))
    return [found[cluster] for cluster in sorted(found)]


def _walk_of(row: Row, document: Mapping[str, Any], walks: Mapping[str, RoundCounts]) -> RoundCounts | None:
    walk = walks.get(str(document["key"]))
    if walk is None or row["decode"].get("temperature") or len(walk.histogram) != int(row["k"] or 0) + 1:
        return None
    return walk


def _by_domain(rows: Sequence[Row], walks: Mapping[str, RoundCounts]) -> dict[str, dict[str, Any]]:
    """Domain -> accept lengths served and predicted, and the complete rounds served."""
    found: dict[str, Pair] = defaultdict(lambda: (NO_ROUNDS, NO_ROUNDS))
    for row in rows:
        for document in row["documents"]:
            served, predicted = found[str(document["domain"])]
            walk = _walk_of(row, document, walks) or NO_ROUNDS
            served = served + RoundCounts.from_dict(document["rounds"])
            found[str(document["domain"])] = (served, predicted + walk.times(int(document["requests"])))
    return {
        domain: {
            "measured": served.accept_length() if served.verify_calls else None,
            "predicted": predicted.accept_length() if predicted.verify_calls else None,
            "rounds": served.verify_calls,
        }
        for domain, (served, predicted) in sorted(found.items())
    }


def cost(row: Row, plain: Row | None) -> dict[str, Any] | None:
    """r against the baseline's row, with what follows from it; None without speculation or without a baseline."""
    if plain is None or row["accept_length"] is None:
        return None
    times = (_step_time(plain), _step_time(row))
    if times[0] is None or times[1] is None:
        return {"r": None, "verdict": "capped", "break_even": None, "speedup": None, "baseline_step_s": None}
    found = step_cost_ratio(times[0], times[1])
    return {
        "r": found.r,
        "verdict": found.verdict,
        "break_even": None if found.r is None else break_even(found.r),
        "speedup": None if found.r is None else speedup(row["accept_length"]["value"], found.r),
        "baseline_step_s": times[0].seconds,
    }


def _step_time(row: Row) -> StepTime | None:
    step = row["step"]
    return StepTime(step["seconds"], step["running"], int(row["concurrency"])) if step else None
