"""The benchmark section: the table, predicted against measured, latencies, and figures from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k25stack.report.blocks import Block, Bullets, Text, table
from k25stack.report.facts import Facts
from k25stack.report.figures import Profile
from k25stack.report.gating import judge
from k25stack.report.summary import by_training
from k25stack.report.table import LEGEND, bounds, estimate, rows_of


def benchmarks(facts: Facts, found: Sequence[Profile]) -> list[Block]:
    if not found:
        return [Text("No benchmark in this ledger."), *_prediction_alone(facts), *_references(facts)]
    blocks: list[Block] = [table(rows_of(found), LEGEND)]
    for profile in found:
        blocks += _agreement(facts, profile)
    blocks += [*_lossless(found), *_gates(facts, found)]
    return [*blocks, *_latencies(facts), *_conditions(facts), *_references(facts)]


def _gates(facts: Facts, found: Sequence[Profile]) -> list[Block]:
    rows = [["gate", "limit", "measured", "verdict"]]
    for gate in judge(facts, found):
        value = "-" if gate.value is None else f"{gate.value:.4g}"
        rows.append([gate.name, f"{gate.limit:g}", value, gate.verdict + (f": {gate.remark}" if gate.remark else "")])
    caption = (
        "Gates of the stack: accept lengths in tokens/round, coverage as a share, faults in outputs, rounds complete."
    )
    return [table(rows, caption)] if len(rows) > 1 else []


def _prediction_alone(facts: Facts) -> list[Block]:
    length = by_training(facts, "accept_length")
    return [] if length is None else [Text(f"Predicted accept length (greedy walk): {length:.3f} tokens/round.")]


def _agreement(facts: Facts, profile: Profile) -> list[Block]:
    """Predicted against measured, over the same responses."""
    if profile.predicted is None or profile.measured is None:
        return []
    ratio = "-" if profile.gap_ratio is None else f"{profile.gap_ratio:.2f}"
    uniform = by_training(facts, "survival_uniform")
    items = [
        f"{profile.name}: measured {estimate(profile.served)} tokens/round over {profile.measured.rounds} complete "
        f"rounds of {profile.predicted.prompts} prompts; predicted {estimate(profile.predicted)} (greedy walk)",
        f"Difference measured - predicted{bounds(profile.overall.get('difference_interval'))} (95 %, paired by prompt)",
        f"Gap ratio (measured - 1) / (predicted - 1): {ratio}: {profile.gap_verdict}",
    ]
    if uniform is not None:
        items.append(
            f"Average over all positions (survival_uniform) {uniform:.3f}: higher than what is served; not compared"
        )
    rows = [["domain", "measured", "predicted", "rounds served"]]
    for domain, figures in profile.overall["by_domain"].items():
        lengths = ("-" if figures[name] is None else f"{figures[name]:.3f}" for name in ("measured", "predicted"))
        rows.append([domain, *lengths, str(figures["rounds"])])
    return [Bullets(tuple(items)), table(rows, f"{profile.name}: accept length (tokens/round) by domain.")]


def _lossless(found: Sequence[Profile]) -> list[Block]:
    items = [
        f"{profile.name} C={row['concurrency']}: {verdict['compared']} outputs compared with the baseline's: "
        f"{verdict['faults']} faults, {verdict['ties']} ties "
        + (
            f"(noise band {verdict['noise_band_logits']:.3f} logits)"
            if verdict.get("rescored", 1)
            else "(all are equal)"
        )
        for profile in found
        for row in profile.rows
        if (verdict := row.get("lossless"))
    ]
    return [Bullets(tuple(items))] if items else []


def _latencies(facts: Facts) -> list[Block]:
    rows = [["profile", "C", "TTFT s p50 / p90 / p99", "TPOT ms p50 / p90 / p99", "E2E s p50 / p90 / p99", "requests"]]
    for row in facts.rows:
        cells = [
            _spread(row.get("ttft_s"), 1.0, 3),
            _spread(row.get("tpot_s"), 1000.0, 1),
            _spread(row.get("e2e_s"), 1.0, 2),
        ]
        rows.append([str(row["profile"]), str(row["concurrency"]), *cells, str(row["requests"])])
    caption = (
        "TTFT: sending to first token; TPOT: time per output token after the first (by usage, not by events); "
        "E2E: sending to last byte."
    )
    return [table(rows, caption)]


def _spread(values: dict[str, float] | None, factor: float, digits: int) -> str:
    if not values:
        return "-"
    return " / ".join(f"{values[name] * factor:.{digits}f}" for name in ("p50", "p90", "p99"))


def _conditions(facts: Facts) -> list[Block]:
    """What the rows were measured under; rows of different conditions are not comparable."""
    seen: dict[str, list[str]] = {}
    for row in facts.rows:
        seen.setdefault(_condition(row), []).append(f"{row['profile']} C={row['concurrency']}")
    if len(seen) == 1:
        return [Text(f"All rows: {next(iter(seen))}.")]
    return [
        Bullets(tuple(f"{', '.join(rows)}: {text}" for text, rows in seen.items())),
        Text("Not comparable with each other."),
    ]


def _condition(row: dict[str, Any]) -> str:
    decode = row.get("decode") or {}
    parts = [f"{name} {decode[name]}" for name in ("thinking", "temperature", "top_p", "top_k") if name in decode]
    return ", ".join([*parts, f"max_tokens {row['max_tokens']}", f"{row['prompts']['split']} prompts"])


def _references(facts: Facts) -> list[Block]:
    if not facts.references:
        return []
    rows = [["profile", "figure", "value", "C", "origin", "comparable"]]
    for row in facts.references:
        confounders = row.get("confounders") or ()
        level = row.get("concurrency")
        rows.append(
            [
                str(row.get("profile") or "-"),
                str(row["metric"]),
                f"{row['value']:g} {row['unit']}",
                "-" if level is None else str(level),
                str(row["origin"]),
                f"not comparable: {'; '.join(confounders)}" if confounders else "yes",
            ]
        )
    return [
        table(rows, "Figures from elsewhere (accept_rate_old: accept length / draft tokens, see docs/speculation.md).")
    ]
