"""The ways in which trainers and engines write a draft's config.json, read into one form (no torch).

===========  ==========================================  ======================  ====================================
format       layer ids                                   norm_output             left out means
===========  ==========================================  ======================  ====================================
portable     top level, canonical; nested for SGLang     engines' meaning        nothing is left out
sglang       ``eagle_config``; + 1 as SGLang counts      engines' meaning        all norm switches off
vllm         top level, canonical                        engines' meaning        all norm switches off
speculators  top level, canonical                        engines' meaning        norm_before_residual: **refused**
specforge    ``eagle_config``; *outputs*, so + 1         **another thing**       the head reads the normed state
modelopt     ``eagle_config``; *outputs*, so + 1         none                    all norm switches off
===========  ==========================================  ======================  ====================================

A speculators config without ``norm_before_residual`` is off to its trainer and on to vLLM, so it says nothing.

SpecForge's ``norm_output`` says whether the *head* reads the normed state (on by default), which both engines always
do; the state that its next step reads is always the raw one.  So on or absent there is off here, and off there cannot
be served at all.

Sources: speculators 0.9.0 ``models/eagle3/config.py``, vllm 0.31.0 ``transformers_utils/configs/speculators/algos.py``,
SpecForge 0.2.0 ``modeling/draft/llama3_eagle.py`` and ``algorithms/model_providers.py``, Model-Optimizer 0.47.0
``torch/export/plugins/hf_spec_export.py`` and ``torch/speculative/plugins/hf_eagle.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k25stack.draft.layerids import IDS_KEY, default_layers, plus_one, plus_one_if_first_is_one
from k25stack.draft.mathematics import Mathematics, mathematics
from k25stack.errors import UsageError

FORMATS = ("portable", "sglang", "vllm", "speculators", "specforge", "modelopt")
WRITABLE = FORMATS[:5]
MODELOPT_MARKS = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm", "next_layer_regular")

# What a transformer_layer_config may leave out: the trainer's own Llama config fills it in (vLLM does not).
LLAMA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}


@dataclass(frozen=True)
class Told:
    """What a config says: the function, and the canonical layers (None: it does not say)."""

    format: str
    function: Mathematics
    layers: tuple[int, ...] | None
    config: Mapping[str, Any]  # as found


@dataclass(frozen=True)
class Hints:
    """What the caller knows beside the directory; None where it does not."""

    format: str | None = None
    layers: tuple[int, ...] | None = None  # canonical ids
    family: str | None = None  # llama | deepseek
    target_layers: int | None = None


def detect(config: Mapping[str, Any], record: Mapping[str, Any] | None, where: str) -> str:
    """The format of a config.

    ``record`` is k25stack.json.  Raises UsageError where two formats give the same words different meanings.
    """
    if "speculators_config" in config or "speculators_model_type" in config:
        return "speculators"
    if record is not None:
        named = record.get("format", "portable")
        if named not in FORMATS:
            raise UsageError(
                f"the record names the format {named!r}", where=where, remedy=f"one of {', '.join(FORMATS)}"
            )
        return str(named)
    eagle = config.get("eagle_config")
    if isinstance(eagle, Mapping) and any(name in eagle for name in MODELOPT_MARKS):
        return "modelopt"
    if config.get(IDS_KEY):
        return "vllm"
    if "norm_output" in config:
        raise UsageError(
            "norm_output means one thing in SpecForge and another in the engines",
            where=where,
            remedy="say --from specforge (the trainer's own directory) or --from sglang",
        )
    return "sglang"


def read_config(config: Mapping[str, Any], record: Mapping[str, Any] | None, where: str, hints: Hints) -> Told:
    """Read a config of any format.  Raises UsageError for what it cannot say or no format here carries."""
    name = hints.format or detect(config, record, where)
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}", where="--from", remedy=f"one of {', '.join(FORMATS)}")
    function = function_of(name, config, where)
    layers = hints.layers or agreed_layers(name, config, record, where) or written_layers(name, config, where, hints)
    if layers is not None and len(layers) != function.spec.aux:
        raise UsageError(f"{len(layers)} layers for {function.spec.aux} states", where=where, remedy="give all of them")
    return Told(name, function, layers, config)


def function_of(name: str, config: Mapping[str, Any], where: str) -> Mathematics:
    """What a config of this format computes.  Raises UsageError for what no format here carries."""
    if name == "speculators":
        flat = flattened(config, where)
        if config.get("norm_before_residual") is None:
            raise UsageError("norm_before_residual is left out: off in speculators 0.9, on in vLLM", where=where,
                             remedy="write it into config.json as it was trained")  # fmt: skip
        return mathematics(flat, where)
    return specforge_function(config, where) if name == "specforge" else mathematics(config, where)


def flattened(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A speculators config as the flat one that vLLM makes of it, with what transformers left out filled in.

    Raises UsageError for another algorithm or a layer that is no Llama layer (Qwen3's has q and k norms).
    """
    inner = config.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        raise UsageError("it has no transformer_layer_config", where=where, remedy="give a speculators 0.9 directory")
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise UsageError(f"speculators_model_type is {kind!r}", where=where, remedy="only eagle3 is read")
    if inner.get("model_type", "qwen3") != "llama":
        raise UsageError(
            f"its layer is of type {inner.get('model_type', 'qwen3')!r}, with norms on queries and keys",
            where=where,
            remedy="no Llama draft class has them: train with a llama layer, or serve the directory as it is with vLLM",
        )
    outer = {
        name: config[name] for name in ("norm_before_fc", "fc_norm", "norm_output") if config.get(name) is not None
    }
    residual = config.get("norm_before_residual")
    if config.get("target_hidden_size") is not None:
        outer["target_hidden_size"] = config["target_hidden_size"]
    ids = config.get(IDS_KEY)
    if ids:
        outer[IDS_KEY] = ids
        if isinstance(ids, list):
            outer["num_aux_hidden_states"] = len(ids)
    return {
        **LLAMA_DEFAULTS,
        **inner,
        "architectures": ["Eagle3LlamaForCausalLM"],
        "draft_vocab_size": config.get("draft_vocab_size", 32000),
        "tie_word_embeddings": False,
        "norm_before_residual": True if residual is None else residual,
        **outer,
    }


def specforge_function(config: Mapping[str, Any], where: str) -> Mathematics:
    """SpecForge's reading of its config.  Raises UsageError for a head that reads the raw state."""
    if config.get("norm_output") is False:
        raise UsageError(
            "norm_output is false: SpecForge's head then reads the state without the final norm",
            where=where,
            remedy="both engines always apply it, and a norm is not linear: it cannot be folded into the head",
        )
    return mathematics({**config, "norm_output": False}, where)


def written_layers(name: str, config: Mapping[str, Any], where: str, hints: Hints) -> tuple[int, ...] | None:
    """Canonical ids from the list that this format's own reader looks at, or its default for the target."""
    eagle = config.get("eagle_config")
    nested = eagle.get(IDS_KEY) if isinstance(eagle, Mapping) else None
    found = config.get(IDS_KEY) if name in ("portable", "vllm", "speculators") else nested
    if not found:
        return tuple(default_layers(hints.target_layers)) if hints.target_layers and name != "portable" else None
    if not isinstance(found, list) or not all(type(item) is int for item in found):
        raise UsageError(f"{IDS_KEY} is {found!r}", where=where, remedy="write whole numbers, or give --layers")
    if name == "modelopt":
        return tuple(plus_one(found))
    if name == "specforge":
        if hints.family == "deepseek" and found[0] != 1:
            raise UsageError(
                f"{found} on a DeepSeek or Kimi target: SpecForge's own engine captures outputs, SGLang inputs",
                where=where,
                remedy="say with --layers which inputs were captured",
            )
        return tuple(plus_one(found))
    if name == "sglang":
        if hints.family is None:
            raise UsageError(f"what SGLang captures for {found} depends on the target", where=where,
                             remedy="give --target or --layers")  # fmt: skip
        return tuple(plus_one(found) if hints.family == "llama" else plus_one_if_first_is_one(found))
    return tuple(found)


def agreed_layers(
    name: str, config: Mapping[str, Any], record: Mapping[str, Any] | None, where: str
) -> tuple[int, ...] | None:
    """The layers of the record.  Raises UsageError when a canonical list in the config says otherwise."""
    recorded, written = recorded_layers(record), config.get(IDS_KEY)
    if recorded and written and name in ("portable", "vllm", "speculators") and list(recorded) != written:
        raise UsageError(f"it lists the layers {written}, its record {list(recorded)}", where=where,
                         remedy="say with --layers which inputs were captured")  # fmt: skip
    return recorded


def recorded_layers(record: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    """The canonical layers that k25stack.json names."""
    found = (record or {}).get("canonical_layers")
    whole = isinstance(found, list) and bool(found) and all(type(item) is int for item in found)
    return tuple(found) if whole else None  # type: ignore[arg-type]
