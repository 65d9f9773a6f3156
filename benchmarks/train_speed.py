"""How many response tokens per second the trainer takes, on synthetic shards of the demo's shape.

    python benchmarks/train_speed.py --processes 2 --threads 2            median of --repeats runs of one epoch
    python benchmarks/train_speed.py --threads 1 --profile                where one step's time goes, by operation

The work does not depend on what the numbers are, so states are random; lengths are those of the demo's documents
(prompts of 30 to 250 tokens, responses of 40 to 160).  Prints one JSON object.  Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from k25stack.draft.spec import PRESETS, DraftSpec
from k25stack.states.document import Document
from k25stack.states.manifest import StatesMeta, plan_shards
from k25stack.states.writer import ShardWriter
from k25stack.train.main import prepare, program
from k25stack.train.parallel import launched
from k25stack.train.run import Plan, Rank
from k25stack.worker import Spec

SPEC: DraftSpec = PRESETS["smollm2"]
OUTSIDE = 0.065  # share of tokens that the draft vocabulary lacks


class Sample:
    """What planning shards needs to know."""

    def __init__(self, number: int, split: str, prompt: int, response: int) -> None:
        self.doc_id, self.turn, self.domain, self.split = f"{split}{number:05d}", 1, "synthetic", split
        self.prompt_ids, self.response_ids = [0] * prompt, [0] * response


def write_inputs(directory: Path, documents: int) -> dict[str, Path]:
    """Target tensors, shards and vocabulary with random content."""
    generator = torch.Generator().manual_seed(0)
    hidden, vocab = SPEC.hidden, SPEC.target_vocab

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    target = directory / "target"
    target.mkdir()
    tensors = {"model.embed_tokens.weight": normal(vocab, hidden), "model.norm.weight": torch.ones(hidden)}
    save_file(tensors, target / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 30, "vocab_size": vocab}
    (target / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}))
    ids = torch.arange(SPEC.draft_vocab)
    (directory / "vocab").mkdir()
    maps = {"d2t": ids * 0, "t2d": torch.arange(vocab) < SPEC.draft_vocab}
    save_file(maps, directory / "vocab" / "vocab.safetensors")
    counts = {"train": documents, "validation": 2, "held_out": 2}
    lengths = torch.stack(
        [
            torch.randint(30, 250, (documents,), generator=generator),
            torch.randint(40, 160, (documents,), generator=generator),
        ],
        1,
    )
    samples = [Sample(n, split, *map(int, lengths[n])) for split, count in counts.items() for n in range(count)]
    meta = StatesMeta("synthetic", "1", (10, 20, 29), hidden, "t", "r")
    writer, plans = ShardWriter(directory / "states", meta), plan_shards(samples, meta, 1 << 27)
    for plan in plans:
        with writer.open(plan) as shard:
            for position in plan.members:
                sample = samples[position]
                count = len(sample.prompt_ids) + len(sample.response_ids)
                best = torch.randint(SPEC.draft_vocab, (count,), generator=generator)
                best[torch.rand(count, generator=generator) < OUTSIDE] = vocab - 1
                aux, last = normal(count, 3 * hidden), normal(count, hidden) * 3
                shard.add(Document.from_sample(sample, aux, last, best.to(torch.int32)))
    writer.finish(plans)
    return {"target": target, "states": directory / "states", "vocab": directory / "vocab"}


def rate(params: dict[str, Any], inputs: dict[str, Path], threads: int) -> float:
    """Response tokens per second of one real run of one epoch."""
    with tempfile.TemporaryDirectory() as out:
        return float(program(Spec(params, inputs, Path(out), threads))["train"]["tok_s"])


def profiled(params: dict[str, Any], inputs: dict[str, Path], threads: int) -> str:
    """One step of a single process, by operation."""
    prepare(threads)
    plan = Plan.read(params, inputs)
    with launched({}, plan.layout(), 1, threads, "cpu") as (group, arena):
        rank = Rank(plan, group, arena)
        rank.step(rank.order[0][0], 0)
        with torch.profiler.profile() as records:
            begun = time.perf_counter()
            measured = rank.step(rank.order[0][1], 1)
            elapsed = time.perf_counter() - begun
        table = records.key_averages().table(sort_by="self_cpu_time_total", row_limit=22, max_name_column_width=34)
        return f"{table}\n{measured.response} response tokens in {elapsed:.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="in all processes together")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--newton-schulz-steps", type=int, default=3, help="the demo's")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    steps = options.newton_schulz_steps
    params: dict[str, Any] = {
        "spec": SPEC.as_dict(),
        "optimizer": {"kind": "muon", "lr": 0.02, "adamw_lr": 0.003, "newton_schulz_steps": steps},
        "batch_tokens": options.batch_tokens,
        "epochs": 1,
        "processes": options.processes,
    }
    with tempfile.TemporaryDirectory() as directory:
        inputs = write_inputs(Path(directory), options.documents)
        if options.profile:
            print(profiled(params, inputs, options.threads))
            return
        rates = [rate(params, inputs, options.threads) for _ in range(options.repeats)]
    print(
        json.dumps(
            {**vars(options), "response_tok_s": round(statistics.median(rates)), "all": [round(r) for r in rates]}
        )
    )


if __name__ == "__main__":
    main()
