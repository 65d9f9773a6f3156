"""The training loop: epochs of steps, a greedy walk after each, early stop, checkpoints, the final evaluation.

Rank 0 keeps the cursor, writes all files and decides; the others follow the shared cursor.  Everything that decides
is a function of the plan and of measured counts, never of time, except ``budget_s`` (which the result names).
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from k25stack.draft.weightfile import in_order
from k25stack.draft.weights import DTYPE_NAMES, raw_bytes
from k25stack.files import write_text
from k25stack.model.tensorfile import Part, write_tensors
from k25stack.train.checkpoint import Contract, Cursor, resume, save
from k25stack.train.forward import FastDraft
from k25stack.train.init import Start, first_weights
from k25stack.train.run import BATCH, EPOCH, STEP, STOP, Measured, Rank
from k25stack.train.walk import Walk, score
from k25stack.train.weights import NORMS, Frozen, from_portable, to_portable
from k25stack.worker import Progress, log

BEST = "best.safetensors"
CHECKPOINTS = "checkpoints"


def follow(rank: Rank, out: Path) -> None:
    """A rank other than 0: the same steps and walks, until rank 0 says stop."""
    rank.optimizer.publish()
    rank.group.barrier()
    cursor = rank.arena["cursor"]
    epoch, begin, number = (int(cursor[place]) for place in (EPOCH, BATCH, STEP))
    while not int(cursor[STOP]):
        for batch in rank.order[epoch][begin:]:
            rank.step(batch, number)
            number += 1
        epoch, begin = epoch + 1, 0
        if evaluates(rank, epoch):
            walk(rank, rank.draft, rank.config.eval.split)
        note_peak(rank)
        rank.group.barrier()  # rank 0 has decided
    rank.group.barrier()  # the best weights are on disk
    walk(rank, load_best(rank, out), "held_out")


def evaluates(rank: Rank, epoch: int) -> bool:
    """Whether the walk follows this many finished epochs."""
    return epoch % rank.config.eval.every_epochs == 0 or epoch == rank.config.epochs


def walk(rank: Rank, draft: FastDraft, split: str) -> Walk:
    documents, accepted = rank.plan.walks[split], rank.arena[f"accepted.{split}"]
    score(draft, rank.plan.states, documents, rank.config.k, rank.group, accepted)
    return Walk.count(split, rank.config.k, documents, accepted)


def note_peak(rank: Rank) -> None:
    rank.arena["peak_bytes"][rank.group.rank] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def load_best(rank: Rank, out: Path) -> FastDraft:
    """The draft as it will be served: from the file, in the compute precision, with the channel scale folded in."""
    frozen = rank.frozen
    plain = Frozen(**{**vars(frozen), "channel_rms": torch.ones_like(frozen.channel_rms)})
    folded = from_portable(load_file(out / BEST), torch.ones_like(frozen.channel_rms.cpu()))
    device, dtype = frozen.embed.device, frozen.embed.dtype
    values = {name: value.to(device, torch.float32 if name in NORMS else dtype) for name, value in folded.items()}
    return FastDraft(rank.spec, values, values, plain)


class Leader:
    """Rank 0: the loop, and everything that is written."""

    def __init__(self, rank: Rank, out: Path, contract: Contract) -> None:
        self.rank, self.out, self.contract = rank, out, contract
        self.config = rank.config
        self.state = rank.arena.prefixed("state.")
        self.progress = Progress(out)
        self.saved = time.monotonic()
        self.total_response = sum(item.response for item in rank.items) * self.config.epochs
        self.start: Start | None = None
        self.cursor = self._begin()

    def _begin(self) -> Cursor:
        """The newest checkpoint, or the first weights."""
        found = resume(self.out / CHECKPOINTS, self.state, self.contract, self.config.inexact)
        if found is None:
            self.start = first_weights(
                self.config, self.rank.frozen, self.rank.plan.states, self.rank.plan.inputs["target"]
            )
            for name, value in self.start.weights.items():
                self.state[f"{name}.master"].copy_(value)
        cursor = found or Cursor()
        shared = self.rank.arena["cursor"]
        shared.copy_(torch.tensor([cursor.epoch, cursor.batch, cursor.step, int(bool(cursor.stopped))]))
        return cursor

    def run(self) -> dict[str, Any]:
        """Train to the end, evaluate the best weights on the held-out split; returns the figures."""
        rank, cursor = self.rank, self.cursor
        rank.group.barrier()
        rank.optimizer.publish()
        rank.group.barrier()
        self._write_epochs()
        while not cursor.stopped:
            self._epoch()
            if evaluates(rank, cursor.epoch):
                self._evaluate()
            cursor.stopped = self._reason_to_stop()
            self._checkpoint()
            note_peak(rank)
            rank.arena["cursor"][STOP] = int(bool(cursor.stopped))
            rank.group.barrier()
        note_peak(rank)
        rank.group.barrier()
        self.progress.update("walk", 0, 1, "split")
        final = walk(rank, load_best(rank, self.out), "held_out")
        write_text(self.out / "walk.jsonl", "".join(json.dumps(record) + "\n" for record in final.records()))
        self.progress.update("walk", 1, 1, "split")
        return self._result(final)

    def _epoch(self) -> None:
        """The rest of the epoch at the cursor, which then stands at the start of the next."""
        rank, cursor = self.rank, self.cursor
        for batch in rank.order[cursor.epoch][cursor.batch :]:
            begun = time.monotonic()
            self._add(rank.step(batch, cursor.step))
            cursor.batch += 1
            cursor.step += 1
            cursor.train_s += time.monotonic() - begun
            self.progress.update("train", cursor.response_tokens, self.total_response, "response tokens")
            if time.monotonic() - self.saved >= self.config.checkpoint_s:
                self._checkpoint()
        cursor.epoch, cursor.batch = cursor.epoch + 1, 0

    def _add(self, measured: Measured) -> None:
        cursor, steps = self.cursor, self.config.steps
        cursor.response_tokens += measured.response
        sums = cursor.measured or {"loss": [0.0] * steps, "hits": [0.0] * steps, "rows": 0, "population": 0}
        cursor.measured = {
            "loss": [a + b for a, b in zip(sums["loss"], measured.loss.tolist(), strict=True)],
            "hits": [a + b for a, b in zip(sums["hits"], measured.hits.tolist(), strict=True)],
            "rows": sums["rows"] + measured.rows,
            "population": sums["population"] + measured.population,
        }

    def _evaluate(self) -> None:
        """Walk the validation split; keep the weights if they are the best so far."""
        cursor, config = self.cursor, self.config
        summary = walk(self.rank, self.rank.draft, config.eval.split).summary()
        reached = summary["accept_length"] or 1.0
        better = cursor.best is None or reached > cursor.best + config.eval.min_gain
        if better:
            cursor.best, cursor.best_epoch, cursor.stale = reached, cursor.epoch, 0
            self._write_best()
        else:
            cursor.stale += 1
        record = {
            "epoch": cursor.epoch,
            "step": cursor.step,
            "response_tokens": cursor.response_tokens,
            **epoch_figures(cursor.measured, config.loss_decay),
            "walk": summary,
            "best": better,
        }
        cursor.epochs.append(record)
        cursor.measured = {}
        self._write_epochs()
        log(
            f"epoch {cursor.epoch}/{config.epochs}: loss {record['loss']:.4f}, {config.eval.split} accept length "
            f"{reached:.3f} (uniform {summary['survival_uniform']:.3f}){', best' if better else ''}"
        )

    def _reason_to_stop(self) -> str:
        cursor, config = self.cursor, self.config
        if cursor.epoch >= config.epochs:
            return "epochs"
        if config.eval.patience is not None and cursor.stale >= max(1, config.eval.patience):
            return "patience"
        if config.budget_s is not None and cursor.train_s * (1 + 1 / cursor.epoch) > config.budget_s and cursor.epochs:
            return "budget"
        return ""

    def _checkpoint(self) -> None:
        begun = time.monotonic()
        save(self.out / CHECKPOINTS, self.state, self.cursor, self.contract, self.config.keep_checkpoints)
        self.saved = time.monotonic()
        self.cursor.train_s += self.saved - begun

    def _write_best(self) -> None:
        """The masters as portable fp32 tensors with the vocabulary maps: what packaging reads."""
        spec, frozen = self.rank.spec, self.rank.frozen
        masters = {name.removesuffix(".master"): t.cpu() for name, t in self.state.items() if name.endswith(".master")}
        tensors: dict[str, Tensor] = to_portable(spec, masters, frozen.channel_rms.cpu())
        if not spec.full_vocab:
            tensors["d2t"] = frozen.target_ids.cpu() - torch.arange(spec.draft_vocab)
            tensors["t2d"] = frozen.t2d.cpu()
        parts = [Part(name, DTYPE_NAMES[t.dtype], tuple(t.shape), [raw_bytes(t)]) for name, t in tensors.items()]
        write_tensors(self.out / BEST, in_order(parts), {"format": "pt"})

    def _write_epochs(self) -> None:
        write_text(self.out / "epochs.jsonl", "".join(json.dumps(r) + "\n" for r in self.cursor.epochs))

    def _result(self, final: Walk) -> dict[str, Any]:
        cursor, rank = self.cursor, self.rank
        summary = final.summary()
        last = cursor.epochs[-1]
        return {
            "train": {
                "tok_s": cursor.response_tokens / cursor.train_s if cursor.train_s else None,
                "seconds": cursor.train_s,
                "epochs": cursor.epoch,
                "planned_epochs": self.config.epochs,
                "best_epoch": cursor.best_epoch,
                "stopped": cursor.stopped,
                "steps": cursor.step,
                "response_tokens": cursor.response_tokens,
                "documents": len(rank.items),
                "parameters": rank.spec.parameters(),
                "processes": rank.group.world,
                "threads": torch.get_num_threads() * rank.group.world,
                "inexact": cursor.inexact,
            },
            "loss": last["loss"],
            "accuracy": last["accuracy"],
            "validation": next(record["walk"] for record in cursor.epochs if record["epoch"] == cursor.best_epoch),
            "walk": summary,
            "survival": summary["survival"],
            "survival_uniform": summary["survival_uniform"],
            "predicted": {
                name: summary[name]
                for name in ("accept_length", "interval", "survival_uniform", "rounds", "verify_rule")
            },
            "coverage": coverage(rank),
            "init": {"kind": self.config.init, "remapped": self.start.remapped if self.start else None},
            "peak_rss_gb": float(rank.arena["peak_bytes"].sum()) / 1e9,
        }


def epoch_figures(measured: dict[str, Any], decay: float) -> dict[str, Any]:
    """Loss (cross-entropy per taught token, weighted over the chain and per step), accuracy over one population."""
    per_step = [loss / measured["rows"] for loss in measured["loss"]]
    return {
        "loss": sum(decay**i * loss for i, loss in enumerate(per_step)),
        "loss_per_step": per_step,
        "accuracy": [hits / measured["population"] for hits in measured["hits"]],
    }


def coverage(rank: Rank) -> dict[str, float]:
    """Share of response tokens inside the draft vocabulary, by split."""
    result, t2d = {}, rank.frozen.t2d.cpu()
    for split in ("train", *rank.plan.walks):
        inside = total = 0
        for document in rank.plan.states.documents(split):
            held = t2d[document.token_ids[document.loss_mask]]
            inside, total = inside + int(held.sum()), total + len(held)
        result[split] = inside / total
    return result
