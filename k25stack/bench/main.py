"""Step program ``python -m k25stack.bench.main SPEC.json``: measure one profile on a running server.

params  the fields of `protocol.Protocol`: profile, engine, concurrency, k, repeats, ...
inputs  samples: the regenerated rows (file, or directory with ``samples.jsonl``), replayed as token ids
        target, baseline (both optional, together): the target's directory and the output of the measurement without
        a draft; then outputs are compared and first divergences re-scored (lossless), and rows get a step-cost ratio
        walk (optional): ``walk.jsonl`` of the training step (file or directory); then rows get the prediction
env     K25_BENCH_URL: where the server listens; no part of the step's key
out     rows.json {"rows": [...]}: one row per concurrency, the data of ``bench.row`` records
        c<concurrency>/{row.json, requests.jsonl, outputs.jsonl}: the row, every request, token ids per prompt
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from k25stack import engines
from k25stack.bench import lossless
from k25stack.bench.conclusion import conclude, read_baseline, read_walks
from k25stack.bench.measure import measure
from k25stack.bench.measurement import Measurement
from k25stack.bench.prompts import from_samples
from k25stack.bench.protocol import Protocol
from k25stack.errors import UsageError
from k25stack.files import write_json
from k25stack.worker import Progress, Spec, log, run_worker


def program(spec: Spec) -> dict[str, Any]:
    """Measure, compare outputs, write the rows; returns the figures for ``result.json``."""
    url = os.environ.get("K25_BENCH_URL")
    if not url:
        raise UsageError("K25_BENCH_URL is not set", where="bench", remedy="set it to the server's http://host:port")
    protocol = Protocol.parse(spec.params)
    if "samples" not in spec.inputs:
        raise UsageError("no input 'samples'", where="bench", remedy="give the output of the regenerate step")
    chosen = protocol.prompts
    prompts = from_samples(spec.inputs["samples"], chosen.split, chosen.domains, protocol.seed)
    measurement = Measurement.of(protocol, engines.get(protocol.engine), prompts)
    progress = Progress(spec.out)
    rows = asyncio.run(measure(measurement, url, spec.out, progress.update))
    if "baseline" in spec.inputs and "target" in spec.inputs:
        progress.update("lossless", 0, 1, "comparisons")
        lossless.judge_rows(spec.out, spec.inputs["baseline"], spec.inputs["target"], rows, protocol.lossless_prompts)
    baseline = read_baseline(spec.inputs["baseline"]) if "baseline" in spec.inputs else []
    predicted = "walk" in spec.inputs and protocol.role != "control"  # a control is not the draft that was walked
    conclude(rows, read_walks(spec.inputs["walk"]) if predicted else {}, baseline, protocol.seed)
    write_json(spec.out / "rows.json", {"rows": rows})
    for row in rows:
        log(describe(row))
    return figures(rows)


def describe(row: dict[str, Any]) -> str:
    """One line for people."""
    parts = [f"{row['profile']} C={row['concurrency']}:"]
    single, throughput, length = row["single_stream_tok_s"], row["throughput_tok_s"], row["accept_length"]
    if single:
        parts.append(f"single-stream {single['median']:.1f} tok/s (1/TPOT),")
    if throughput:
        parts.append(f"throughput {throughput['median']:.1f} tok/s (steady window),")
    if length:
        parts.append(f"accept length {length['value']:.3f} tokens/round ({length['rounds']} rounds),")
    parts.append(
        f"{row['requests']} requests" + ("" if row["accepted"] else f"; REJECTED: {'; '.join(row['reasons'])}")
    )
    return " ".join(parts)


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the step's end record carries."""
    overall = rows[0]["overall"]
    return {
        "rows": len(rows),
        "requests": sum(row["requests"] for row in rows),
        "output_tokens": sum(row["output_tokens"] for row in rows),
        "throughput_tok_s": {
            str(row["concurrency"]): row["throughput_tok_s"]["median"] for row in rows if row["throughput_tok_s"]
        },
        "single_stream_tok_s": next(
            (row["single_stream_tok_s"]["median"] for row in rows if row["single_stream_tok_s"]), None
        ),
        "rounds": sum(row["rounds"]["verify_calls"] for row in rows if row["rounds"]),
        "lossless": {
            str(row["concurrency"]): {name: row["lossless"][name] for name in ("faults", "ties", "compared")}
            for row in rows
            if row["lossless"]
        },
        "accept_length": overall["accept_length"]["value"] if overall else None,
        "predicted": overall["predicted"]["value"] if overall and overall["predicted"] else None,
        "gap": overall["gap"] if overall else None,
        "accepted": all(row["accepted"] for row in rows),
        "reasons": [reason for row in rows for reason in row["reasons"]],
    }


if __name__ == "__main__":
    sys.exit(run_worker(program))
