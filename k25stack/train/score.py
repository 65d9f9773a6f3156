"""``k25stack draft score``: the greedy walk of any draft over responses whose states lie in shards.

No target is loaded: its states are in the shards, and of its weights at most the embedding is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from k25stack.draft.formats import Hints, read_config
from k25stack.draft.origin import recorded_family
from k25stack.draft.provenance import CONFIG, PROVENANCE
from k25stack.draft.source import check_tensors, read_source
from k25stack.draft.target import TargetFacts, read_object
from k25stack.errors import UsageError
from k25stack.files import write_text
from k25stack.states.reader import open_states
from k25stack.train.anydraft import AnyDraft, embedding_of
from k25stack.train.data import chain_starts
from k25stack.train.walk import Walk, walk_documents


@dataclass(frozen=True)
class Score:
    """What is asked."""

    draft: Path
    states: Path
    split: str = "held_out"
    k: int | None = None
    target: Path | None = None  # for the embedding alone
    out: Path | None = None


def score_draft(ask: Score) -> dict[str, Any]:
    """Accept length with its interval, survival, per domain, beside the prediction recorded in the draft.

    Raises UsageError when the draft does not fit the states: width, layers, mathematics that is not computed here.
    """
    where = str(ask.draft)
    config = read_object(ask.draft / CONFIG)
    record = read_object(ask.draft / PROVENANCE) if (ask.draft / PROVENANCE).is_file() else None
    states = open_states(ask.states)
    family = TargetFacts.read(ask.target).family if ask.target else recorded_family(record)
    told = read_config(config, record, where, Hints(family=family))
    if told.function.spec.hidden != states.meta.hidden:
        raise UsageError(f"width {told.function.spec.hidden}, the states have {states.meta.hidden}", where=where,
                         remedy="give states of its target")  # fmt: skip
    if told.layers is not None and tuple(told.layers) != tuple(states.meta.layers):
        held = list(states.meta.layers)
        raise UsageError(f"trained on layers {list(told.layers)}, the states hold {held}", where=where,
                         remedy="extract states of its layers")  # fmt: skip
    k = ask.k or (record or {}).get("k") or 3
    source = read_source(ask.draft)
    check_tensors(source, told.function.tensors(), where)
    draft = AnyDraft.load(source, told.function, embedding_of(source, ask.target, told.function, where), where)
    documents = walk_documents(states, ask.split)
    accepted = torch.zeros(documents[-1].starts.stop, dtype=torch.int8)
    for document in documents:
        loaded = states.load(document.ref)
        starts = chain_starts(loaded.loss_mask)
        accepted[document.starts] = draft.accepted(loaded.token_ids, loaded.aux, starts, k).to(torch.int8)
    walk = Walk.count(ask.split, k, documents, accepted)
    if ask.out is not None:
        write_text(ask.out, "".join(json.dumps(one) + "\n" for one in walk.records()))
    return {
        "draft": where,
        "format": told.format,
        "layers_checked": told.layers is not None,
        "decode": dict(states.meta.decode),
        **walk.summary(),
        "recorded": (record or {}).get("predicted"),
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The result for people."""
    low, high = found["interval"] or (None, None)
    shown = "no complete round" if low is None else f"{found['accept_length']:.3f}  [{low:.3f}, {high:.3f}]"
    yield f"accept length         {shown}  (greedy walk, {found['split']}, k={found['k']})"
    yield f"rounds                {found['rounds']:,} of {found['prompts']:,} prompts, {found['cut']:,} cut"
    if found["survival"]:
        yield f"survival              {', '.join(f'{p:.3f}' for p in found['survival'])}"
    yield f"survival_uniform      {found['survival_uniform']:.3f}  (mean over all positions; not what serving measures)"
    for domain, part in found["by_domain"].items():
        if part["accept_length"] is not None:
            yield f"  {domain:19} {part['accept_length']:.3f}  ({part['rounds']:,} rounds)"
    if not found["layers_checked"]:
        yield "note: the draft does not say which layers it was trained on; they could not be compared"
    recorded = found["recorded"]
    if recorded and recorded.get("accept_length"):
        yield f"recorded prediction   {recorded['accept_length']:.3f}"
