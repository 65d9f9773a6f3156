"""What every rank of a training run builds for itself, and one optimizer step of it.

All ranks read the same spec and the same shards and so make the same plan; they share the tensors of `layout` and
meet three times per step: gradients are there, the clip is known, the new weights are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k25stack.draft.spec import DraftSpec
from k25stack.errors import K25Error, UsageError
from k25stack.states.reader import States, open_states
from k25stack.train.config import TrainConfig
from k25stack.train.data import needed_rows, pack
from k25stack.train.forward import FastDraft
from k25stack.train.init import channel_rms, frozen_tensors
from k25stack.train.loss import taught
from k25stack.train.optim import Optimizer, schedule, state_shapes, units
from k25stack.train.order import Item, divided, epoch_batches, items
from k25stack.train.parallel import Arena, Group, Layout
from k25stack.train.walk import WalkDocument, walk_documents
from k25stack.train.weights import NORMS, shapes

EPOCH, BATCH, STEP, STOP = range(4)  # of the shared cursor


@dataclass(frozen=True)
class Plan:
    """What is read before anything is computed: the request, the shards, the responses to walk."""

    config: TrainConfig
    inputs: dict[str, Path]
    states: States
    walks: dict[str, list[WalkDocument]]  # by split

    @classmethod
    def read(cls, params: Mapping[str, Any], inputs: Mapping[str, Path]) -> Plan:
        """Raises UsageError when something is missing or does not fit."""
        config = TrainConfig.from_params(params)
        for name in ("target", "states", "vocab"):
            if name not in inputs:
                raise UsageError(f"input {name} is missing", where="train")
        states = open_states(inputs["states"])
        if states.meta.hidden != config.spec.hidden or len(states.meta.layers) != config.spec.aux:
            what = f"states of {len(states.meta.layers)} x {states.meta.hidden}, the spec has "
            what += f"{config.spec.aux} x {config.spec.hidden}"
            raise UsageError(what, where=str(states.directory), remedy="extract states of the spec's target")
        splits = dict.fromkeys((config.eval.split, "held_out"))
        return cls(config, dict(inputs), states, {split: walk_documents(states, split) for split in splits})

    def layout(self) -> Layout:
        """Everything that the ranks share."""
        config, world = self.config, self.config.processes
        dtype = getattr(torch, config.dtype)
        own = {name: (shape, torch.float32 if name in NORMS else dtype) for name, shape in shapes(config.spec).items()}
        result: dict[str, tuple[tuple[int, ...], torch.dtype]] = {f"value.{name}": kind for name, kind in own.items()}
        for rank in range(world):
            result |= {f"grad.{rank}.{name}": kind for name, kind in own.items()}
        states = state_shapes(config.spec, config.optimizer)
        result |= {f"state.{name}": (shape, torch.float32) for name, shape in states.items()}
        result |= {
            "channel_rms": ((config.spec.aux_width,), torch.float32),
            "squares": ((world,), torch.float64),
            "measured": ((world, 2, config.steps), torch.float64),
            "peak_bytes": ((world,), torch.float64),
            "cursor": ((4,), torch.int64),
        }
        for split, documents in self.walks.items():
            result[f"accepted.{split}"] = ((documents[-1].starts.stop,), torch.int8)
        return result


@dataclass(frozen=True)
class Measured:
    """Sums over one optimizer step, or over many."""

    loss: Tensor  # cross-entropy per chain step, float64 [k], not weighted
    hits: Tensor  # float64 [k]
    rows: int  # sum_t m(t,0)
    population: int
    response: int  # response tokens
    gradient_norm: float


class Rank:
    """One process of a run: the draft over the shared weights, its share of the optimizer, the plan of all steps."""

    def __init__(self, plan: Plan, group: Group, arena: Arena) -> None:
        self.plan, self.config, self.group, self.arena = plan, plan.config, group, arena
        self.spec: DraftSpec = plan.config.spec
        if group.rank == 0:
            arena["channel_rms"].copy_(channel_rms(plan.states))
        group.barrier()
        last_norm = plan.states.meta.last_norm
        self.frozen = frozen_tensors(
            self.config, plan.inputs["target"], plan.inputs["vocab"], arena["channel_rms"], last_norm
        )
        grads = [arena.prefixed(f"grad.{rank}.") for rank in range(group.world)]
        values = arena.prefixed("value.")
        self.draft = FastDraft(self.spec, values, grads[group.rank], self.frozen)
        mine = [u for u in units(self.spec, self.config.optimizer, group.world) if u.owner == group.rank]
        self.optimizer = Optimizer(self.config.optimizer, mine, arena.prefixed("state."), values, grads)
        self.items: list[Item] = items(plan.states, "train", self.frozen, self.config.steps)
        if not self.items:
            raise UsageError("no train document teaches anything", where=str(plan.states.directory))
        self.order = [self._order(epoch) for epoch in range(self.config.epochs)]
        self.total_steps = sum(map(len, self.order))

    def _order(self, epoch: int) -> list[list[int]]:
        return epoch_batches(self.items, self.config.seed, epoch, self.config.batch_tokens)

    def step(self, batch: list[int], number: int) -> Measured:
        """One optimizer step on the documents at these places of `items`; ``number`` steps were done before."""
        arena, group = self.arena, self.group
        rows = sum(self.items[place].rows for place in batch)
        self._gradients(divided(batch, self.items, group.world)[group.rank], rows)
        group.barrier()
        # Read before the next barrier: after it the others may begin the next step.
        loss, hits = arena["measured"].sum(0)
        arena["squares"][group.rank] = self.optimizer.sum_gradients()
        group.barrier()
        squares = float(arena["squares"].sum())
        if not squares < float("inf"):  # false for NaN too: the norm sees every gradient
            what = f"the gradient is not finite at step {number}"
            raise K25Error(what, where="train", remedy="lower optimizer.lr or lengthen the warm-up")
        self.optimizer.update(squares, number, schedule(number, self.total_steps, self.config.optimizer))
        group.barrier()
        chosen = [self.items[place] for place in batch]
        population, response = (sum(getattr(i, name) for i in chosen) for name in ("population", "response"))
        return Measured(loss, hits, rows, population, response, squares**0.5)

    def _gradients(self, share: list[int], rows: int) -> None:
        """Forward and backward over this rank's documents; leaves gradients and sums in the arena."""
        measured = self.arena["measured"][self.group.rank]
        if not share:
            measured.zero_()
            for grad in self.arena.prefixed(f"grad.{self.group.rank}.").values():
                grad.zero_()
            return
        steps = self.config.steps
        documents = [self.plan.states.load(self.items[place].ref) for place in share]
        t2d = self.frozen.t2d.cpu()
        queries = [needed_rows(taught(d.loss_mask, d.argmax, t2d), steps) for d in documents]
        batch = pack(documents, queries, self.frozen, steps, teach=True)
        sums = self.draft.step(batch, self.config.loss_decay, rows)
        measured[0].copy_(sums.loss)
        measured[1].copy_(sums.hits)
