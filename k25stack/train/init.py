"""Where training starts: the frozen tensors of the target, the channel scale, and the first masters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from k25stack.draft.model import DraftModel
from k25stack.draft.remap import target_ids
from k25stack.draft.target import TargetFacts, read_object
from k25stack.draft.weights import held_mask, init_from_draft, init_from_target, read_tensors, weight_files
from k25stack.errors import UsageError
from k25stack.states.reader import States
from k25stack.train.config import TrainConfig
from k25stack.train.weights import Frozen, draft_ids, from_portable
from k25stack.worker import log

EMBEDDING, OUTPUT, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
RMS_TOKENS = 1 << 20  # tokens after which the channel scale is known well enough
SMALLEST_RMS = 1e-4  # a dead channel is not blown up
SOFT_START = 0.3  # of the target's final norm: an untrained layer's guesses start soft, not confidently wrong


def vocabulary(config: TrainConfig, given: Path) -> Tensor:
    """Target ids of the draft vocabulary, int64 [D], rising: the vocabulary step's, or with ``vocab_map: keep`` those
    of the draft that training starts from.  Raises UsageError when its size is not the spec's."""
    spec = config.spec
    if spec.full_vocab:
        return torch.arange(spec.target_vocab)
    if config.init not in ("scratch", "target") and config.vocab_map == "keep":
        directory = Path(config.init)
        files = weight_files(directory)
        holder = next((file for file in files if "d2t" in file.tensors), files[0])
        rows = holder.tensors["d2t"].shape[0] if "d2t" in holder.tensors else spec.target_vocab
        ids, where = torch.tensor(target_ids(holder, rows)), str(directory)
    else:
        path = given / "vocab.safetensors"
        if not path.is_file():
            raise UsageError("no such file", where=str(path), remedy="run the vocabulary step")
        d2t = load_file(path)["d2t"]
        ids, where = d2t + torch.arange(len(d2t)), str(path)
    if len(ids) != spec.draft_vocab or int(ids[-1]) >= spec.target_vocab:
        what = f"{len(ids)} draft ids up to {int(ids[-1])}, the spec has {spec.draft_vocab} of {spec.target_vocab}"
        raise UsageError(what, where=where, remedy="make spec and vocabulary agree")
    return ids


def target_tensors(target: Path, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The target's embedding [V, H], its output rows of the draft vocabulary [D, H], its final norm [H].

    Raises UsageError when the directory does not hold them.
    """
    files = weight_files(target)
    spelled = {name.removeprefix("language_model."): name for file in files for name in file.tensors}
    if missing := {EMBEDDING, NORM} - set(spelled):
        raise UsageError(f"no {min(missing)}", where=str(target), remedy="give a target model directory")
    wanted = {name: spelled[name] for name in (EMBEDDING, OUTPUT, NORM) if name in spelled}
    found = read_tensors(files, wanted)
    embed = found[EMBEDDING]
    return embed, found.get(OUTPUT, embed)[ids], found[NORM]  # a tied target has no output matrix of its own


def channel_rms(states: States) -> Tensor:
    """Root mean square of every aux channel over the train split, float32 [aux*H].

    The aux states of early layers are several times smaller than those of late ones; dividing by this gives all
    inputs of fc one size.  Of a large split every n-th document is read.
    """
    refs = states.refs("train")
    stride = max(1, sum(map(len, refs)) // RMS_TOKENS)
    total, count = torch.zeros(()), 0
    for ref in refs[::stride]:
        aux = states.load(ref).aux.float()
        total = total + aux.square_().sum(0)
        count += len(aux)
    if not count:
        raise UsageError("no train documents", where=str(states.directory), remedy="extract states of a train split")
    return (total / count).sqrt_().clamp_min_(SMALLEST_RMS)


def frozen_tensors(config: TrainConfig, target: Path, vocab: Path, rms: Tensor, last_norm: str) -> Frozen:
    """What training reads and never changes, in the run's compute precision."""
    facts = TargetFacts.read(target)
    spec = config.spec
    if (spec.hidden, spec.target_vocab) != (facts.hidden, facts.vocab):
        what = (
            f"spec of width {spec.hidden} and {spec.target_vocab} ids, the target has {facts.hidden} and {facts.vocab}"
        )
        raise UsageError(what, where="train.spec", remedy="use the target's sizes")
    ids = vocabulary(config, vocab)
    embed, head, norm = target_tensors(target, ids)
    if last_norm == "post":
        frozen = Frozen(embed, head, ids, draft_ids(ids, spec.target_vocab), rms)
    else:
        frozen = Frozen(embed, head, ids, draft_ids(ids, spec.target_vocab), rms, norm.float(), norm_eps(target))
    return frozen.to(getattr(torch, config.dtype), config.device)


def norm_eps(target: Path) -> float:
    """The epsilon of the target's norms."""
    outer = read_object(target / "config.json")
    inner = outer.get("text_config") or outer
    return float(inner["rms_norm_eps"])


@dataclass(frozen=True)
class Start:
    """The first masters, and what a foreign draft gave (counts and coverage of shared head rows)."""

    weights: dict[str, Tensor]  # float32, names of ``weights.shapes``
    remapped: dict[str, Any] | None = None


def first_weights(config: TrainConfig, frozen: Frozen, states: States, target: Path) -> Start:
    """The masters that training starts from, chosen by ``config.init``.

    * ``scratch``: matrices N(0, 0.02), norms one; head rows are the target's, the final norm ``SOFT_START`` of it.
    * ``target``: besides, the layer is the target's own that reads the last captured state, fc passes that state on.
    * a directory: a foreign draft of the same shape; head rows it does not have are the target's.
    """
    spec, rms = config.spec, frozen.channel_rms.cpu()
    model = DraftModel(spec).init_random(config.seed)
    ids = frozen.target_ids.cpu()
    if not spec.full_vocab:
        model.d2t = ids - torch.arange(spec.draft_vocab)
        model.t2d = held_mask(model.d2t, spec.target_vocab)
    layer = min(states.meta.layers[-1], TargetFacts.read(target).layers - 1)
    filled = init_from_target(model, target, layer if config.init == "target" else None)
    remapped = None
    if config.init == "target":
        with torch.no_grad():
            model.fc.weight.zero_()
            model.fc.weight[:, -spec.hidden :] = torch.eye(spec.hidden)
        log(f"init from target layer {layer}: {', '.join(filled)}")
    elif config.init != "scratch":
        counts = response_counts(states)
        remapped = init_from_draft(model, Path(config.init), counts).as_dict()
        log(f"init from {config.init}: {remapped}")
    weights = from_portable({name: p.detach() for name, p in model.named_parameters()}, rms)
    if config.init == "scratch":
        weights["fc"] = model.fc.weight.detach()  # drawn for inputs of size one
        weights["norm_out"] = weights["norm_out"] * SOFT_START
    return Start({name: value.float() for name, value in weights.items()}, remapped)


def response_counts(states: States) -> Counter[int]:
    """How often each target id occurs in the train responses."""
    counts: Counter[int] = Counter()
    for document in states.documents("train"):
        counts.update(document.token_ids[document.loss_mask].tolist())
    return counts
