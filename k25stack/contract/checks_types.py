"""C1: transformers reads the config at all, before any engine sees it.

From version 5 on its config classes check the type of every field, and refuse the whole config for one that is wrong.
Source: transformers 5.12.1, 5.19.0 and 5.24.0 ``configuration_*.py`` of ``models/llama``, ``deepseek_v2`` and
``deepseek_v3``, ``configuration_utils.py``, ``modeling_rope_utils.py``.  It is copied since the base install has no
transformers; a test holds every row, either way, against the transformers of the development install.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from k25stack.contract.facts import DraftFacts, Question
from k25stack.contract.finding import Check, Verdict
from k25stack.contract.rules import EngineRules
from k25stack.draft.sizes import rope_table, rope_type

TORCH_TYPES = frozenset(
    ("bfloat16", "float16", "float32", "float64", "half", "float", "double", "float8_e4m3fn", "float8_e5m2")
)
KINDS: dict[str, Callable[[Any], bool]] = {
    "a whole number": lambda value: type(value) is int,
    "a whole number or null": lambda value: value is None or type(value) is int,
    "whole numbers or null": lambda value: all(type(one) is int for one in listed(value)),
    "a number with a point": lambda value: type(value) is float,
    "a share": lambda value: type(value) is float and 0 <= value <= 1,
    "a number with a point or null": lambda value: value is None or type(value) is float,
    "a number or null": lambda value: value is None or type(value) in (int, float),
    "true or false": lambda value: type(value) is bool,
    "a word": lambda value: isinstance(value, str),
    "an object or null": lambda value: value is None or isinstance(value, dict),
    "the name of a torch type": lambda value: value is None or (isinstance(value, str) and value in TORCH_TYPES),
}

EVERY_VERSION = {
    "an object or null": ("rope_scaling", "quantization_config", "id2label"),
    "the name of a torch type": ("torch_dtype", "dtype"),
}
EVERY_CLASS = {
    "a whole number": (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ),
    "a whole number or null": ("num_key_value_heads", "pad_token_id", "bos_token_id", "pretraining_tp"),
    "whole numbers or null": ("eos_token_id",),
    "a number with a point": ("rms_norm_eps",),
    "true or false": ("use_cache", "tie_word_embeddings", "attention_bias"),
    "a word": ("hidden_act",),
    "an object or null": ("rope_parameters",),
}
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "n_routed_experts", "n_shared_experts",
          "moe_intermediate_size")  # fmt: skip
OR_NULL = ("q_lora_rank", "n_group", "topk_group", "num_experts_per_tok")
FLOATS = ("initializer_range", "routed_scaling_factor")
# model_type -> what its class has beside those, or takes otherwise.
OWN: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": {
        "a whole number or null": ("head_dim",),
        "a share": ("initializer_range",),
        "a number or null": ("attention_dropout",),
        "true or false": ("mlp_bias",),
    },
    "deepseek_v2": {
        "a whole number": (*LATENT, "v_head_dim", "first_k_dense_replace"),
        "a whole number or null": (*OR_NULL, "head_dim"),
        "a number with a point": FLOATS,
        "a number with a point or null": ("attention_dropout",),
        "true or false": ("mlp_bias",),
    },
    "deepseek_v3": {
        "a whole number": LATENT,
        "a whole number or null": (*OR_NULL, "v_head_dim", "first_k_dense_replace"),
        "a number with a point": FLOATS,
        "a number or null": ("attention_dropout",),
    },
}
LAYER_TYPES = frozenset(("full_attention", "sliding_attention", "chunked_attention", "linear_attention"))
# Kind of scaled positions -> what it cannot do without.
ROPE_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}


def types(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """Every field has a type that the engine's transformers takes; a speculators config is none of its classes."""
    if not rules.transformers or facts.unfilled is not None:
        return
    problems = [*wrong(facts.config, EVERY_VERSION), *positions(facts.config)]
    if rules.transformers >= 5:
        kind = str(facts.config.get("model_type"))
        problems += [*wrong(facts.config, EVERY_CLASS), *wrong(facts.config, OWN.get(kind, {}))]
        problems += [*layer_types(facts.config), *(uneven(facts.config) if kind != "deepseek_v3" else ())]
    if problems:
        message = f"transformers {rules.transformers} refuses to read the config: {'; '.join(problems)}"
        yield Check("C1", rules.label, Verdict.FAIL, message, {"problems": problems}, "write the types that it takes",
                    "transformers models/llama/configuration_llama.py, configuration_utils.py")  # fmt: skip


def wrong(config: Mapping[str, Any], table: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for kind, names in table.items():
        for name in names:
            if name in config and not KINDS[kind](config[name]):
                yield f"{name} is {config[name]!r}, not {kind}"


def listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def positions(config: Mapping[str, Any]) -> Iterator[str]:
    table = rope_table(config)
    kind = rope_type(table)
    if isinstance(kind, str) and (lacking := [name for name in ROPE_NEEDS.get(kind, ()) if name not in table]):
        yield f"{kind} positions lack {', '.join(lacking)}"


def uneven(config: Mapping[str, Any]) -> Iterator[str]:
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(width) is int and type(heads) is int and (heads == 0 or width % heads):
        yield f"hidden_size {width} is no multiple of {heads} heads"


def layer_types(config: Mapping[str, Any]) -> Iterator[str]:
    kinds, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in LAYER_TYPES for kind in kinds):
        yield f"layer_types is {kinds!r}, not a list of kinds of attention"
    elif type(layers) is int and len(kinds) != layers:
        yield f"layer_types has {len(kinds)} entries for {layers} layer{'s' if layers > 1 else ''}"
