"""From directories to a service: target, tokenizer, and a draft that must fit to the last key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from k25stack.draft.layerids import IDS_KEY
from k25stack.draft.target import read_object
from k25stack.draft.weights import load_draft
from k25stack.engines.reference import Reference
from k25stack.errors import ContractError, UsageError
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.target import Target

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Launch:
    """What to load and how to run it."""

    target: Path
    draft: Path | None = None
    config: EngineConfig = field(default_factory=EngineConfig)
    dtype: str = "bfloat16"
    threads: int = 2


def load_engine(launch: Launch) -> tuple[Engine, Tokenizer]:
    """Load everything.

    Raises UsageError or DamageError when a directory is not what it should be, ContractError when the draft's own
    statements contradict each other.  The draft's keys and shapes are checked strictly: what another engine would
    drop or fill with noise in silence is an error here.
    """
    torch.set_num_threads(launch.threads)
    dtype = DTYPES[launch.dtype]
    tokenizer = Tokenizer.load(launch.target)
    target = Target.load(launch.target, dtype=dtype)
    if launch.draft is None:
        return Engine(target, config=launch.config), tokenizer
    layers = draft_layers(launch.draft)
    return Engine(target, load_draft(launch.draft, dtype), layers, launch.config), tokenizer


def draft_layers(directory: Path) -> tuple[int, ...]:
    """Canonical ids of the states a draft takes: the top-level list of its config.json, as it stands.

    Raises UsageError without a list (the real engines would then guess), ContractError when k25stack.json says
    something else.
    """
    where = directory / "config.json"
    written = read_object(where).get(IDS_KEY)
    if not isinstance(written, list) or not all(type(layer) is int for layer in written):
        raise UsageError(f"no list {IDS_KEY}", where=str(where), remedy="convert the draft, which writes it")
    layers = Reference().captured_layers(written, "llama")
    card = directory / "k25stack.json"
    stated: Any = read_object(card).get("canonical_layers") if card.is_file() else None
    if stated is not None and stated != layers:
        raise ContractError(
            f"it names the layers {layers}, k25stack.json says {stated}",
            where=str(where),
            remedy="package the draft anew",
        )
    return tuple(layers)
