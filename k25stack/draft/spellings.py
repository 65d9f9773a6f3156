"""A draft's function written as the config of each format, and the names of its tensors there (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k25stack.draft.layerids import IDS_KEY, plus_one, plus_one_if_first_is_one, portable_ids
from k25stack.draft.mathematics import Mathematics
from k25stack.errors import UsageError

ARCHITECTURE = "LlamaForCausalLMEagle3"  # registered in SGLang and vLLM alike
MLA_ARCHITECTURE = "Eagle3DeepseekV2ForCausalLM"
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
SPECULATORS_VERSION = "0.9.0"


@dataclass(frozen=True)
class Wanted:
    """What a config is written for."""

    to: str
    layers: tuple[int, ...]  # canonical
    family: str | None  # llama | deepseek; None where no list depends on it
    dtype: str  # as safetensors names it
    k: int = 3  # draft tokens per round
    verifier: str | None = None  # name of the target
    verifier_architectures: tuple[str, ...] = ()
    served_window: int | None = None  # what the server's own option will say
    trained_embedding: bool = False  # it is not the target's; only written where the format ships it


def require_possible(function: Mathematics, wanted: Wanted) -> None:
    """Raise UsageError with the reason when the format's reader would compute another function."""
    where, to = f"--to {wanted.to}", wanted.to
    serves = to in ("portable", "sglang")
    if function.norm_before_residual and to != "vllm" and to != "speculators":
        reader = "SGLang" if serves else "SpecForge"
        raise UsageError(
            f"norm_before_residual is on: {reader}'s residual is the raw state",
            where=where,
            remedy="a norm cannot be folded into the weights: train with it off, or serve with vLLM (--to vllm)",
        )
    if function.window is not None and serves and wanted.served_window != function.window:
        asked = "is not given" if wanted.served_window is None else f"is {wanted.served_window}"
        raise UsageError(
            f"it was trained with a window of {function.window} tokens and the served window {asked}",
            where=where,
            remedy=f"SGLang takes the window from its own option only: give --window {function.window} and serve with "
            f"--speculative-draft-window-size {function.window}",
        )
    if wanted.trained_embedding and serves:
        raise UsageError("its embedding was trained, and SGLang always lends the target's", where=where,
                         remedy="train with a frozen embedding, or serve with vLLM (--to vllm)")  # fmt: skip
    if function.window is not None and function.mla:
        raise UsageError("a sliding window: neither engine's MLA draft has one", where=where, remedy="train without")
    if function.window is None and wanted.served_window is not None:
        raise UsageError("it was trained with full attention", where=f"--window {wanted.served_window}",
                         remedy="serve it as it was trained")  # fmt: skip
    if function.mla and to in ("speculators", "specforge"):
        raise UsageError(f"latent attention (MLA): {to} has no such draft", where=where,
                         remedy="write portable, sglang or vllm")  # fmt: skip
    if function.mla and function.norm_before_fc:
        raise UsageError("norm_before_fc: neither engine's MLA draft has it", where=where, remedy="train without")
    if to == "specforge":
        for name, asked_for in (
            ("norm_output", function.spec.norm_output),
            ("norm_before_fc", function.norm_before_fc),
            ("a sliding window", function.window is not None),
        ):
            if asked_for:
                raise UsageError(
                    f"{name}: SpecForge's draft does not compute it", where=where, remedy="keep the format"
                )
        if function.spec.aux != 3:
            raise UsageError(f"{function.spec.aux} target states: SpecForge takes three", where=where)


def write_config(function: Mathematics, wanted: Wanted, rest: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of ``function`` in the format ``wanted.to``.

    ``rest``: keys of the source's own config that carry no mathematics (token ids and the like) and are kept.
    Raises UsageError when that format cannot say it.
    """
    require_possible(function, wanted)
    writer = {"speculators": speculators, "specforge": specforge}.get(wanted.to, engines)
    return {**writer(function, wanted, rest), **({"embed_requires_grad": True} if wanted.trained_embedding else {})}


def engines(function: Mathematics, wanted: Wanted, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, with every switch that either engine reads written out; the order of keys is the package step's."""
    config = {**head(function, wanted), **sizes(function), **switches(function, rest)}
    top, nested = lists(wanted)
    if top:
        config[IDS_KEY] = top
    config["eagle_config"] = {**({IDS_KEY: nested} if nested else {}), "use_aux_hidden_state": True}
    config |= token_ids(rest)
    if function.window is not None:
        config |= {"sliding_window": function.window, "use_sliding_window": True, "layer_types": ["sliding_attention"]}
    if function.mla:
        config |= {**function.mla, **{name: value for name, value in rest.items() if name not in config}}
    return config


def lists(wanted: Wanted) -> tuple[list[int], list[int]]:
    """(top-level list, nested list) for the engines that will read the config.

    Raises UsageError when SGLang needs the target's family or cannot capture these layers.
    """
    if wanted.to == "vllm":
        return list(wanted.layers), []
    if wanted.family is None:
        raise UsageError("the list for SGLang depends on the target", where=f"--to {wanted.to}", remedy="give --target")
    top, nested = portable_ids(wanted.layers, wanted.family)
    seen = plus_one(nested) if wanted.family == "llama" else plus_one_if_first_is_one(nested)
    if seen != list(wanted.layers) or min(nested) < 0:
        raise UsageError(f"SGLang cannot capture {list(wanted.layers)} on this target", where=f"--to {wanted.to}",
                         remedy="write it for vLLM (--to vllm)")  # fmt: skip
    return (top if wanted.to == "portable" else []), nested


def head(function: Mathematics, wanted: Wanted) -> dict[str, Any]:
    return {
        "architectures": [MLA_ARCHITECTURE if function.mla else ARCHITECTURE],
        # vLLM sizes a kimi_k2 draft's cache wrongly, and takes a deepseek_v3 one for an MTP module.
        "model_type": "deepseek_v2" if function.mla else "llama",
        "torch_dtype": TORCH_NAMES[wanted.dtype],
    }


def sizes(function: Mathematics) -> dict[str, Any]:
    spec = function.spec
    table = {
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": dict(function.rope_scaling) if function.rope_scaling else None,
        "max_position_embeddings": spec.max_position,
        "vocab_size": spec.target_vocab,
        "draft_vocab_size": spec.draft_vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    if function.mla:
        del table["head_dim"]  # what an MLA config means by it differs from engine to engine
    return table


def switches(function: Mathematics, rest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        # Never null: SGLang takes "null" for a width that differs from the target's.
        "target_hidden_size": function.spec.hidden,
        "num_aux_hidden_states": function.spec.aux,
        "norm_before_residual": function.norm_before_residual,
        "norm_before_fc": function.norm_before_fc,
        "fc_norm": function.fc_norm,
        "norm_output": function.spec.norm_output,
    }


def token_ids(rest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rest[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if rest.get(name) is not None}


def specforge(function: Mathematics, wanted: Wanted, rest: Mapping[str, Any]) -> dict[str, Any]:
    """As SpecForge saves it: the nested list names layer outputs, and norm_output is left out (see `formats`)."""
    config = {**head(function, wanted), **sizes(function), **token_ids(rest)}
    if function.fc_norm:
        config["fc_norm"] = True
    outputs = [layer - 1 for layer in wanted.layers]
    if min(outputs) < 0:
        raise UsageError(
            "the embedding (layer 0) is no layer's output", where="--to specforge", remedy="keep the format"
        )
    config["eagle_config"] = {IDS_KEY: outputs, "use_aux_hidden_state": True}
    return config


def speculators(function: Mathematics, wanted: Wanted, rest: Mapping[str, Any]) -> dict[str, Any]:
    layer = {"model_type": "llama", **sizes(function), **token_ids(rest)}
    for name in ("draft_vocab_size", "tie_word_embeddings"):
        del layer[name]
    if function.window is not None:
        layer |= {"sliding_window": function.window, "use_sliding_window": True, "layer_types": ["sliding_attention"]}
    proposal = {"proposal_type": "greedy", "speculative_tokens": wanted.k, "verifier_accept_k": 1}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "dtype": TORCH_NAMES[wanted.dtype],
        "draft_vocab_size": function.spec.draft_vocab,
        "norm_before_residual": function.norm_before_residual,
        "norm_before_fc": function.norm_before_fc,
        "fc_norm": function.fc_norm,
        "norm_output": function.spec.norm_output,
        "embed_requires_grad": wanted.trained_embedding,
        "target_hidden_size": function.spec.hidden,
        "tie_word_embeddings": False,
        IDS_KEY: list(wanted.layers),
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": wanted.verifier, "architectures": list(wanted.verifier_architectures)},
        },
    }


def name_in(to: str, portable: str) -> str:
    """The spelling of a portable tensor name in a format."""
    return portable.replace("midlayer.", "layers.0.", 1) if to == "speculators" else portable


def carried(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a source's config that are kept as they are: token ids, and for MLA whatever else its class may read."""
    inner = config.get("transformer_layer_config")
    flat = {**config, **(inner if isinstance(inner, Mapping) else {})}
    return {name: value for name, value in flat.items() if name not in DROPPED}


DROPPED: Sequence[str] = (
    "architectures", "auto_map", "dtype", "torch_dtype", "model_type", "eagle_config", IDS_KEY, "transformers_version",
    "rope_parameters", "use_aux_norm", "use_sliding_window", "sliding_window", "layer_types", "use_cache", "bias",
    "transformer_layer_config",
    "speculators_config", "speculators_version", "speculators_model_type", "embed_requires_grad", "head_dim",
    "quantization_config", "_name_or_path",
)  # fmt: skip
