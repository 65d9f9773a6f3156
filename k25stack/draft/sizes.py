"""What a draft's config.json says of its sizes, read back without trusting it (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k25stack.draft.layerids import IDS_KEY
from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError


def spec_from_config(config: Mapping[str, Any], where: str) -> DraftSpec:
    """The sizes that a draft's config.json describes.

    Raises UsageError for a missing or ill-typed size and for mathematics that this project's module does not have
    (more than one layer, scaled rope, norms before fc, a normed residual).
    """
    for name, harmless in UNSUPPORTED.items():
        value = config.get(name)
        if value is not None and value not in harmless:
            raise UsageError(f"{name} is {value!r}", where=where, remedy=f"this module computes {harmless[0]!r} only")
    eagle = config.get("eagle_config")
    if isinstance(eagle, Mapping) and eagle.get("norm_before_fc"):
        raise UsageError("eagle_config.norm_before_fc is on", where=where, remedy="this module has no norm before fc")
    scaling = config.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise UsageError(f"rope_scaling is {scaling!r}", where=where, remedy="this module computes plain rope only")
    return sizes_from_config(config, where)


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "num_hidden_layers": (1,),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "bias": (False,),
    "norm_before_residual": (False,),
    "norm_before_fc": (False,),
    "fc_norm": (False,),
    "use_aux_norm": (False,),
}


def sizes_from_config(config: Mapping[str, Any], where: str) -> DraftSpec:
    """Only the sizes, whatever the mathematics.  Raises UsageError for a missing or ill-typed one."""

    def value(name: str, default: Any = None) -> Any:
        found = config.get(name)
        if found is None and default is None:
            raise UsageError(f"{name} is missing", where=where, remedy="add it: the engines read it")
        return default if found is None else found

    hidden, heads = value("hidden_size"), value("num_attention_heads")
    whole = type(hidden) is int and type(heads) is int and heads > 0
    rope = config.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    try:
        return DraftSpec(
            hidden=hidden,
            heads=heads,
            kv_heads=value("num_key_value_heads", heads),
            head_dim=latent_head_dim(config) or value("head_dim", hidden // heads if whole else hidden),
            intermediate=value("intermediate_size"),
            draft_vocab=value("draft_vocab_size", value("vocab_size")),
            target_vocab=value("vocab_size"),
            aux=aux_count(config),
            rms_eps=value("rms_norm_eps"),
            rope_theta=theta or value("rope_theta", 10000.0),
            max_position=value("max_position_embeddings"),
            norm_output=value("norm_output", False),
        )
    except UsageError as error:
        raise UsageError(error.what, where=where, remedy=error.remedy) from None


def latent_head_dim(config: Mapping[str, Any]) -> int | None:
    """Query and key width of multi-head latent attention; None where the config has none."""
    parts = [config.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    if config.get("kv_lora_rank") is None or not all(type(part) is int for part in parts):
        return None
    return int(parts[0] or 0) + int(parts[1] or 0)


def aux_count(config: Mapping[str, Any]) -> Any:
    """How many states fc takes, in the order both engines look: the explicit number, the nested list, three."""
    explicit = config.get("num_aux_hidden_states")
    if explicit is not None:
        return explicit
    eagle = config.get("eagle_config")
    ids = eagle.get(IDS_KEY) if isinstance(eagle, Mapping) else None
    return len(ids) if isinstance(ids, list) and ids else 3
