"""What a draft computes, in one flat form whatever spelling its config has (no torch).

The keys and their meaning are the engines' own (SGLang ``models/llama_eagle3.py``, vLLM ``models/llama_eagle3.py``):

``norm_before_residual``  the residual is the normed state instead of the raw one
``norm_before_fc``        one norm over the concatenated target states before fc (tensor ``input_norm``)
``fc_norm``               one norm per target state before fc (tensors ``fc_norm.N``)
``norm_output``           the next draft step reads the normed state; the head always does

Trainers use the same words for other things and leave different defaults out; `formats` translates.  Two drafts with
equal mathematics and equal tensors are the same function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from k25stack.draft.mla import RANKS, mla_tensors
from k25stack.draft.sizes import rope_table, rope_type, sizes_from_config
from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError

SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True)
class Mathematics:
    """One draft's function, but for its weights."""

    spec: DraftSpec  # norm_output is in it
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    window: int | None = None  # tokens that the draft's attention sees; None: all
    rope_scaling: Mapping[str, Any] | None = None  # None: plain rope
    mla: Mapping[str, int] | None = None  # ranks and head sizes of latent attention; None: Llama attention

    @property
    def layout(self) -> str:
        return "mla" if self.mla else "llama"

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Portable name -> shape of every tensor that this draft has."""
        spec = self.spec
        table = mla_tensors(spec, self.mla, "draft") if self.mla else spec.tensors()
        if self.norm_before_fc:
            table["input_norm.weight"] = (spec.aux_width,)
        if self.fc_norm:
            table |= {f"fc_norm.{index}.weight": (spec.hidden,) for index in range(spec.aux)}
        return table

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Bytes of cache that one token of context costs: latent and rope key with MLA, else keys and values."""
        if self.mla:
            return (self.mla["kv_lora_rank"] + self.mla["qk_rope_head_dim"]) * bytes_per_value
        return self.spec.kv_bytes_per_token(bytes_per_value)

    def with_context(self, tokens: int) -> Mathematics:
        """The same function with a position limit of at least ``tokens``."""
        longest = max(self.spec.max_position, tokens)
        return replace(self, spec=replace(self.spec, max_position=longest))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


REFUSED: dict[str, tuple[Any, ...]] = {
    # switch -> values that every draft class computes; another one names a tensor or function nobody here has
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "bias": (False,),
    "qkv_bias": (False,),
    "num_hidden_layers": (1,),
    "partial_rotary_factor": (1, 1.0),
    "rope_is_neox_style": (True,),
    "is_causal": (True,),
    "logit_scale": (1, 1.0),
}


def mathematics(config: Mapping[str, Any], where: str) -> Mathematics:
    """The function that the engines build for a flat config.

    Raises UsageError for a missing or ill-typed value, and for a draft of several layers, other activations or
    biases, which no format here carries.
    """
    for name, values in REFUSED.items():
        found = config.get(name)
        if found is None:
            found = rope_table(config).get(name)  # transformers 5 keeps partial_rotary_factor there
        if found is not None and not any(found == value and type(found) is type(value) for value in values):
            raise UsageError(f"{name} is {found!r}", where=where, remedy=f"only {values[0]!r} can be converted")
    spec = sizes_from_config(config, where)
    eagle = config.get("eagle_config")
    nested = eagle if isinstance(eagle, Mapping) else {}
    if nested.get("use_aux_hidden_state") is False:
        raise UsageError(
            "use_aux_hidden_state is false: it reads the last layer alone", where=where, remedy="that is EAGLE-1 or 2"
        )
    mla = {name: config[name] for name in RANKS} if is_mla(config) else None
    if mla:
        mla_tensors(spec, mla, where)  # raises when a rank is no number
    on = {name: flag(config, nested, name, where) for name in SWITCHES if name != "norm_output"}
    if config.get("use_aux_norm"):  # SGLang's older word
        on["fc_norm"] = True
    if on["norm_before_fc"] and on["fc_norm"]:
        raise UsageError("norm_before_fc and fc_norm are both on", where=where, remedy="trainers have one or the other")
    return Mathematics(spec=spec, window=window(config, where), rope_scaling=rope(config, where), mla=mla, **on)


def is_mla(config: Mapping[str, Any]) -> bool:
    """True for a config of latent attention: it has all ranks."""
    return all(config.get(name) is not None for name in RANKS)


def flag(config: Mapping[str, Any], nested: Mapping[str, Any], name: str, where: str) -> bool:
    """A switch, absent or null meaning off; only ``norm_before_fc`` may stand in ``eagle_config``."""
    value = nested.get(name, config.get(name)) if name == "norm_before_fc" else config.get(name)
    if value not in (None, False, True):
        raise UsageError(f"{name} is {value!r}, neither true nor false", where=where, remedy="write true or false")
    return bool(value)


def window(config: Mapping[str, Any], where: str = "config.json") -> int | None:
    """The sliding window that its layer was trained with, in tokens; None for full attention.

    ``layer_types`` decides where it is written, else ``use_sliding_window`` and a window's presence.
    """
    size = config.get("sliding_window")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        used = kinds[:1] == ["sliding_attention"]  # of its own layer; a target's list may have been left there
    else:
        used = bool(config.get("use_sliding_window", size is not None))
    if not used:
        return None
    if type(size) is not int or size < 1:
        raise UsageError(f"sliding_window is {size!r}", where=where, remedy="write the number of tokens")
    return size


def rope(config: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Scaling of the positions; None for plain rope."""
    table = rope_table(config)
    if not isinstance(rope_type(table), str):
        raise UsageError(f"rope_type is {rope_type(table)!r}", where=where, remedy="write the name of a kind")
    if rope_type(table) == "default":
        return None
    return {key: value for key, value in table.items() if key != "rope_theta"}


def spec_from_config(config: Mapping[str, Any], where: str) -> DraftSpec:
    """The sizes of a draft that this project's own module computes.

    Raises UsageError for anything that `mathematics` refuses and for a function that the module does not have
    (scaled rope, a window, norms before fc, a normed residual).
    """
    function = mathematics(config, where)
    for name, value in vars(function).items():
        if name != "spec" and value:
            raise UsageError(f"{name} is {value!r}", where=where, remedy="the module here does not compute it")
    return function.spec
