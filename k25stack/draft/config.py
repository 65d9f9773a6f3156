"""The config.json of a portable draft: written so that SGLang and vLLM build the same network (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from k25stack.draft.layerids import validate_canonical
from k25stack.draft.mathematics import Mathematics
from k25stack.draft.spec import DraftSpec
from k25stack.draft.spellings import Wanted, write_config
from k25stack.draft.target import TargetFacts
from k25stack.errors import UsageError


def config_json(spec: DraftSpec, target: TargetFacts, layers: Sequence[int]) -> dict[str, Any]:
    """The config of a portable draft of ``target`` fed by the canonical ``layers``.

    Every switch that either engine reads is written out, since their defaults differ.  Raises UsageError when the
    draft does not fit the target or the layers cannot be captured by both engines.
    """
    where = "draft spec"
    if spec.hidden != target.hidden:
        raise UsageError(
            f"hidden {spec.hidden}, the target has {target.hidden}", where=where, remedy="use the target's"
        )
    if spec.target_vocab != target.vocab:
        raise UsageError(f"target_vocab {spec.target_vocab}, the target has {target.vocab}", where=where)
    if spec.aux != len(layers):
        raise UsageError(f"{len(layers)} layers for aux {spec.aux}", where=where, remedy="give one id per aux state")
    validate_canonical(layers, target.layers, target.family)
    # SGLang refuses a draft whose limit is under the target's context.
    function = Mathematics(replace(spec, max_position=max(spec.max_position, target.context)))
    ids: dict[str, Any] = {} if target.bos_id is None else {"bos_token_id": target.bos_id}
    if target.eos_ids:
        ids["eos_token_id"] = target.eos_ids[0] if len(target.eos_ids) == 1 else list(target.eos_ids)
    return write_config(function, Wanted("portable", tuple(layers), target.family, "BF16"), ids)
