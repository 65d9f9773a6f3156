"""Step program: the target answers the prompts (``python -m k25stack.reference.generate SPEC.json``).

Params ``{"decode": {...}, "sampled": null | {"share", "temperature", "top_p"}, "seed", "slots", "processes",
"chunk_docs", "context": tokens or null, "record": {"layers": [canonical ids]} or null}``; inputs ``target`` (a model
directory with target.json) and ``prompts``.

Out: ``samples.jsonl``, one turn per line in the order of the prompts; with ``record`` also ``recorded.json`` and the
states of every token in the parts it names, for `extract`.

A *chunk* is the unit of work: some documents with all their turns (turn 2 sees the target's own answer of turn 1),
written to ``parts/`` with the hashes of its files.  Chunks follow from the prompts alone, so a kill loses the running
chunks at most, and the next try ends with the same bytes, whatever the number of processes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference.chunks import Plan, Settings, Setup
from k25stack.reference.parts import INDEX, PARTS, ChunkRecord, RecordedPart, write_index
from k25stack.reference.pool import Factory, run_tasks
from k25stack.train.samples import SAMPLES, Prompt, Sample, read_prompts, read_samples, write_records
from k25stack.worker import Progress, Spec, log, run_worker


def regenerate(spec: Spec) -> dict[str, Any]:
    """Answer every turn of every prompt; returns counts and rates."""
    begun = time.monotonic()
    target, tokenizer = spec.inputs["target"], Tokenizer.load(spec.inputs["target"])
    settings = Settings.read(spec.params, target, tokenizer)
    prompts = read_prompts(spec.inputs["prompts"])
    plan = Plan(prompts, settings, tokenizer, spec.out / PARTS)
    progress, total = Progress(spec.out), sum(len(prompt.turns) for prompt in prompts)
    answered = sum(chunk.answers for chunk in plan.finished)
    if answered:
        log(f"{answered} of {total} answers are there from an earlier try")

    def tick(count: int) -> None:
        nonlocal answered
        answered += count
        progress.update("regenerate", answered, total, "answers")

    tick(0)
    factory = Factory("k25stack.reference.chunk_worker", "make_worker", Setup(str(target), str(spec.out), settings))
    processes = int(spec.params.get("processes", 1))
    run_tasks(factory, plan.ready, processes=processes, progress=tick)
    seconds = time.monotonic() - begun
    samples, fresh = merge(spec.out, plan, prompts)
    write_records(spec.out / SAMPLES, samples)
    return {"seconds": seconds, "processes": processes, **figures(samples, fresh, seconds)}


def merge(out: Path, plan: Plan, prompts: Sequence[Prompt]) -> tuple[list[Sample], list[Sample]]:
    """All samples in the order of the prompts, turn by turn, and those that this try made.

    Writes the index of recorded states and removes parts that belong to no chunk.  Raises DamageError when a finished
    part does not hold every answer.
    """
    parts = out / PARTS
    found: dict[tuple[str, int], tuple[Sample, bool]] = {}
    recorded: list[RecordedPart] = []
    wanted: set[str] = set()
    for chunk in sorted([*plan.finished, *plan.ready], key=lambda chunk: chunk.number):
        for sample in read_samples(parts / f"{chunk.part}.jsonl"):
            found[sample.doc_id, sample.turn] = (sample, chunk.part not in plan.earlier)
        record = ChunkRecord.read(parts / f"{chunk.part}.json")
        if record is not None:
            wanted |= {f"{chunk.part}.json", *record.files}
            recorded += [] if record.recorded is None else [record.recorded]
    if plan.settings.record is not None:
        write_index(out, plan.settings.record, recorded)
    else:
        (out / INDEX).unlink(missing_ok=True)
    for path in parts.iterdir():
        if path.name not in wanted:
            path.unlink()
    turns = [(prompt.doc_id, turn) for prompt in prompts for turn in range(len(prompt.turns))]
    missing = [key for key in turns if key not in found]
    if missing:
        doc_id, turn = missing[0]
        raise DamageError(f"no answer to document {doc_id}, turn {turn}", where=str(parts), remedy="run again")
    return [found[key][0] for key in turns], [found[key][0] for key in turns if found[key][1]]


def figures(samples: Sequence[Sample], fresh: Sequence[Sample], seconds: float) -> dict[str, Any]:
    """Counts over all samples; the rate is that of this try, prefill and start of the processes included."""
    made = sum(len(sample.response_ids) for sample in fresh)
    tokens: Counter[str] = Counter()
    for sample in samples:
        tokens[sample.split] += len(sample.response_ids)
    return {
        "samples": len(samples),
        "prompt_tokens": sum(len(sample.prompt_ids) for sample in samples),
        "response_tokens": sum(tokens.values()),
        "response_tokens_by_split": dict(sorted(tokens.items())),
        "finish": dict(sorted(Counter(sample.finish for sample in samples).items())),
        "sampled": sum(sample.mode.kind == "sampled" for sample in samples),
        "tok_s": made / seconds if made else None,
    }


if __name__ == "__main__":
    sys.exit(run_worker(regenerate))
