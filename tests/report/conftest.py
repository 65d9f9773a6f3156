"""A run's ledger made by hand, with figures whose consequences can be worked out on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k25stack.bench.conclusion import conclude
from k25stack.speculation import RoundCounts, greedy_walk

K = 3
STEP_S = {"base": {1: 0.020, 8: 0.040}, "own": {1: 0.030, 8: 0.080}, "random": {1: 0.030, 8: 0.080}}
ACCEPTED = [[1, 0, 2, 0], [0, 0, 1, 1], [3, 1, 0, 0], [0, 2, 0, 0]]  # of document i: its rounds, again and again


def repeated(value: float) -> dict[str, Any]:
    return {"median": value, "interval": [value - 1, value + 1], "values": [value - 1, value, value + 1]}


def walk_of(document: int, tokens: int = 401) -> RoundCounts:
    """A response whose every chain start accepts what the pattern says for the round that begins there."""
    pattern, accepted_at, turn = ACCEPTED[document % 4], [0] * (tokens - 1), 0
    place = 0
    while place < len(accepted_at):
        accepted_at[place] = min(pattern[turn % 4], len(accepted_at) - place)
        place += accepted_at[place] + 1
        turn += 1
    return greedy_walk(accepted_at, K)


def row(profile: str, role: str, concurrency: int, counts: list[RoundCounts] | None, **changes: Any) -> dict[str, Any]:
    """A bench row; ``counts`` per document (two requests each)."""
    documents = [
        {
            "key": f"doc{i}/0",
            "cluster": f"doc{i}",
            "domain": "ab"[i % 2],
            "requests": 2,
            "rounds": one.times(2).as_dict(),
        }
        for i, one in enumerate(counts or [])
    ]
    total = sum((one.times(2) for one in counts or []), RoundCounts(0, 0, 0))
    per_round = 1.0 if counts is None else total.accept_length()
    rate = per_round / STEP_S[profile][concurrency]
    return {
        "profile": profile,
        "role": role,
        "engine": "reference",
        "concurrency": concurrency,
        "k": None if counts is None else K,
        "verify_rule": None if counts is None else "greedy",
        "decode": {"kind": "greedy", "temperature": 0.0, "thinking": False},
        "definitions": {"accept_length": "k25stack/accept-length/1"},
        "max_tokens": 160,
        "prompts": {"split": "held_out", "distinct": 8, "hash": "h"},
        "requests": 16,
        "single_stream_tok_s": repeated(rate) if concurrency == 1 else None,
        "throughput_tok_s": repeated(0.9 * rate * concurrency),
        "ttft_s": {"p50": 0.1, "p90": 0.2, "p99": 0.3, "mean": 0.15},
        "tpot_s": {"p50": 1 / rate, "p90": 1.1 / rate, "p99": 1.2 / rate, "mean": 1 / rate},
        "e2e_s": {"p50": 1.0, "p90": 2.0, "p99": 3.0, "mean": 1.5},
        "step": {
            "seconds": STEP_S[profile][concurrency],
            "tokens_per_round": per_round,
            "running": float(concurrency),
            "decode_only_share": 0.9,
        },
        "rounds": total.as_dict() if counts else None,
        "accept_length": {"value": per_round, "interval": None, "rounds": total.verify_calls} if counts else None,
        "documents": documents,
        "lossless": None,
        "overall": None,
        "cost": None,
        "accepted": True,
        "reasons": [],
        **changes,
    }


def standard_records() -> list[tuple[str, dict[str, Any]]]:
    """A whole run that went well: eight documents, served exactly as the walk says."""
    judged = {"faults": 0, "ties": 1, "compared": 8, "noise_band_logits": 0.25}
    stack = {
        "name": "demo",
        "description": "The loop on a\n  small model.",
        "target": {"name": "tiny"},
        "data": {"decode": {"temperature": 0.0, "thinking": False}},
        "gates": {
            "min_accept_length": 1.3,
            "max_random_control": 1.02,
            "min_gap_ratio": 0.8,
            "max_prediction_gap": 0.05,
            "min_rounds": 1500,
            "max_faults": 0,
            "min_coverage": None,
        },
    }
    reference = {
        "profile": "own",
        "metric": "single_stream",
        "value": 40.8,
        "unit": "tok/s",
        "concurrency": 1,
        "origin": "8x RTX PRO 6000",
        "confounders": ["old rate definition"],
    }
    predicted = {"survival_uniform": 1.9, "accept_length": 1.7}
    records: list[tuple[str, dict[str, Any]]] = [
        ("run.start", {"run": "demo-1", "stack": stack, "host": {"cores": 2}, "versions": {"k25stack": "0.1.0"}}),
        ("reference.row", reference),
        ("step.end", step("target", 60.0, setup=True, peak=1.0)),
        ("step.end", step("extract", 50.0, result={"tok_s": 2600.0, "bytes_per_token": 4608.0}, peak=2.0)),
    ]
    for number, loss in enumerate((4.0, 3.0, 2.5), start=1):
        evaluation = {
            "epoch": number,
            "response_tokens": 78_000 * number,
            "loss": loss,
            "accuracy": [0.4, 0.2, 0.1],
            "walk": {"accept_length": 1.5, "interval": [1.4, 1.6], "survival_uniform": 1.7},
            "best": number == 3,
        }
        records.append(("train.epoch", {"step": "train", "key": "key-train", **evaluation}))
    train = {"tok_s": 1600.0, "epochs": 3, "response_tokens": 234_000, "parameters": 9_800_000}
    records.append(("step.end", step("train", 300.0, result={"train": train, "predicted": predicted}, peak=3.5)))
    records.append(("step.end", step("package", 2.0)))
    records.append(("coverage", {"overall": 0.93, "by_domain": {}, "by_split": {"train": 0.99, "held_out": 0.91}}))
    records.append(("check", {"kind": "draft", "target": "draft", "verdict": "pass", "checks": []}))
    records += [("bench.row", one) for one in bench_rows(lossless=judged)]
    records.append(("assumption", {"text": "One seed is enough"}))
    records.append(("decision", {"text": "Draft vocabulary of 8192 | frequency"}))
    records.append(("discovery", {"text": "States <agree>", "evidence": "check states"}))
    records.append(("run.end", {"code": 0, "seconds": 420.0, "peak_rss_gb": 3.5, "error": None}))
    return records


WALKS = [walk_of(i) for i in range(8)]
NOTHING = [RoundCounts.from_histogram((100, 0, 0, 0)) for _ in range(8)]


def bench_rows(
    own: list[RoundCounts] | None = None,
    random: list[RoundCounts] | None = None,
    walks: list[RoundCounts] | None = None,
    levels: tuple[int, ...] = (1, 8),
    **changes: Any,
) -> list[dict[str, Any]]:
    """Rows of a baseline, a random control and our draft, each concluded as the measurement does it.

    ``changes`` go into our draft's rows.
    """
    base = [row("base", "baseline", c, None) for c in levels]
    control = [row("random", "control", c, random or NOTHING) for c in levels]
    ours = [row("own", "draft", c, own or WALKS, **changes) for c in levels]
    predicted = {f"doc{i}/0": counts for i, counts in enumerate(walks or WALKS)}
    conclude(base, {}, [], 0)
    conclude(control, {}, base, 0)
    conclude(ours, predicted, base, 0)
    return [*base, *control, *ours]


def step(
    name: str, seconds: float, setup: bool = False, peak: float = 0.5, result: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "step": name,
        "key": f"key-{name}",
        "seconds": seconds,
        "cached": False,
        "setup": setup,
        "peak_rss_gb": peak,
        "result": result or {},
    }


def write_ledger(run: Path, records: list[tuple[str, dict[str, Any]]]) -> Path:
    """Records one second apart, so that the documents do not depend on the clock."""
    (run / "ledger").mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(
            {
                "schema": 1,
                "time": f"2026-11-29T12:{number // 60:02}:{number % 60:02}.000000Z",
                "writer": "run",
                "seq": number,
                "kind": kind,
                "data": data,
            }
        )
        for number, (kind, data) in enumerate(records)
    ]
    (run / "ledger" / "run.jsonl").write_text("\n".join(lines) + "\n")
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_ledger(tmp_path / "runs" / "demo-1", standard_records())
