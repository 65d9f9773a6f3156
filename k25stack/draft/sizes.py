"""What a draft's config.json says of its sizes, read back without trusting it (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k25stack.draft.layerids import IDS_KEY
from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError

THETA = 10000.0  # where a config says nothing


def sizes_from_config(config: Mapping[str, Any], where: str) -> DraftSpec:
    """Only the sizes, whatever the mathematics.  Raises UsageError for a missing or ill-typed one."""

    def value(name: str, default: Any = None) -> Any:
        found = config.get(name)
        if found is None and default is None:
            raise UsageError(f"{name} is missing", where=where, remedy="add it: the engines read it")
        return default if found is None else found

    hidden, heads = value("hidden_size"), value("num_attention_heads")
    whole = type(hidden) is int and type(heads) is int and heads > 0
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
            rope_theta=rope_table(config).get("rope_theta") or value("rope_theta", THETA),
            max_position=value("max_position_embeddings"),
            norm_output=value("norm_output", False),
        )
    except UsageError as error:
        raise UsageError(error.what, where=where, remedy=error.remedy) from None


def rope_table(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config says of its positions: the old key where it has a value, else ``rope_parameters``.

    As transformers 5 reads them (SGLang from 0.5.16 on, vLLM); an older one has no ``rope_parameters``.
    """
    found = config.get("rope_scaling") or config.get("rope_parameters")
    return found if isinstance(found, Mapping) else {}


def rope_type(table: Mapping[str, Any]) -> Any:
    return table.get("rope_type", table.get("type", "default"))


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
    return listed_states({"eagle_config": eagle})


def listed_states(config: Mapping[str, Any]) -> int:
    """How many states the lists of ids name, the nested one before the top-level one; three without a list."""
    eagle = config.get("eagle_config")
    nested = eagle.get(IDS_KEY) if isinstance(eagle, Mapping) else None
    ids = config.get(IDS_KEY) if nested is None else nested
    return len(ids) if isinstance(ids, list) and ids else 3
