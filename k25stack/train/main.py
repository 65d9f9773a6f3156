"""Step program: train a draft on hidden states.

``python -m k25stack.train.main SPEC.json`` with the params of ``config.TrainConfig``, inputs {target, states, vocab}.
Leaves under ``out``: ``best.safetensors`` (portable names, fp32, with d2t and t2d), ``epochs.jsonl`` (one record per
evaluation), ``walk.jsonl`` (one record per held-out response), ``checkpoints/``, ``result.json``.
Killed at any moment and started again, it goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from k25stack.files import sha256_file
from k25stack.states.manifest import MANIFEST
from k25stack.train.checkpoint import Contract, contract
from k25stack.train.config import TrainConfig
from k25stack.train.loop import Leader, follow
from k25stack.train.memory import keep_freed_memory
from k25stack.train.parallel import Arena, Group, launched
from k25stack.train.run import Plan, Rank
from k25stack.worker import Spec, log, run_worker

# What may change between a kill and the next start without changing any bit of the result.
FREE_PARAMS = ("checkpoint_s", "keep_checkpoints", "inexact")


def program(spec: Spec) -> dict[str, Any]:
    """Rank 0 of the run; starts the others."""
    plan = Plan.read(spec.params, spec.inputs)
    config = plan.config
    threads = max(1, spec.threads // config.processes)
    prepare(threads)
    job = {
        "params": spec.params,
        "inputs": {name: str(path) for name, path in spec.inputs.items()},
        "out": str(spec.out),
        "threads": threads,
    }
    with launched(job, plan.layout(), config.processes, threads, config.device) as (group, arena):
        rank = Rank(plan, group, arena)
        log(
            f"{len(rank.items)} documents, {sum(i.response for i in rank.items):,} response tokens, "
            f"{config.epochs} epochs of about {len(rank.order[0])} steps, "
            f"{config.processes} x {threads} threads, {config.spec.parameters():,} parameters"
        )
        return Leader(rank, spec.out, agreed(plan, spec.params, threads)).run()


def join(group: Group, job: Mapping[str, Any], handle: int) -> None:
    """A rank other than 0."""
    prepare(int(job["threads"]))
    plan = Plan.read(job["params"], {name: Path(path) for name, path in job["inputs"].items()})
    rank = Rank(plan, group, Arena(plan.layout(), handle))
    group.barrier()
    follow(rank, Path(job["out"]))


def prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    keep_freed_memory()


def agreed(plan: Plan, params: Mapping[str, Any], threads: int) -> Contract:
    """The contract of this run's checkpoints."""
    config: TrainConfig = plan.config
    inputs = {"states": sha256_file(plan.states.directory / MANIFEST)}
    vocab = plan.inputs["vocab"] / "vocab.safetensors"
    if vocab.is_file():
        inputs["vocab"] = sha256_file(vocab)
    fixed = {name: value for name, value in params.items() if name not in FREE_PARAMS}
    return contract(fixed, inputs, threads, config.processes, config.device)


if __name__ == "__main__":
    raise SystemExit(run_worker(program))
