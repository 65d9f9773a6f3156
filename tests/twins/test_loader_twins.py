"""SGLang's own ``load_weights``, out of every wheel that the parser twins unpack, against the names of C2.

The function is taken by its text and runs over named parameters that only note what lands in them: neither the engine
nor a GPU is needed.
"""

from __future__ import annotations

import ast
import itertools
import logging
import re
from collections.abc import Callable, Collection
from typing import Any

import pytest

from k25stack.contract.keys import expected_tensors, treat, with_fused
from k25stack.contract.rules import engine_rules
from k25stack.draft.spec import DraftSpec
from tests.twins.test_parser_twins import PLACE, python

__all__ = ["python"]  # the fixture that unpacks the wheels

pytestmark = [pytest.mark.twins, pytest.mark.timeout(1500)]

SPEC = DraftSpec(24, 6, 2, 10, 36, 16, 64)
RANKS = {"q_lora_rank": 10, "kv_lora_rank": 6, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
CLASSES = {"llama": ("llama_eagle3.py", "LlamaForCausalLMEagle3"),
           "mla": ("kimi_k25_eagle3.py", "Eagle3DeepseekV2ForCausalLM")}  # fmt: skip
NORMS = ("input_layernorm.weight", "hidden_norm.weight", "post_attention_layernorm.weight")
MLP = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.gate_up_proj.weight", "mlp.down_proj.weight")
ATTENTION = {
    "llama": ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm"),
    "mla": ("q_a_proj", "kv_a_proj_with_mqa", "q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj", "o_proj"),
}
TOP = ("fc.weight", "fc.bias", "norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d", "hot_token_id",
       "input_norm.weight", "fc_norm.0.weight", "fc_norm.3.weight", "aux_norm_low.weight", "mask_hidden")  # fmt: skip


class Weight:
    """A tensor of the file: all that the loader asks of it is its length."""

    shape = (3,)

    def __init__(self, *sources: str) -> None:
        self.sources = sources

    def __add__(self, other: object) -> Weight:
        return self


class Torch:
    """The two functions of torch that the loader calls."""

    @staticmethod
    def arange(length: int) -> None: ...

    @staticmethod
    def cat(parts: list[Weight], dim: int) -> Weight:
        return Weight(*(source for part in parts for source in part.sources))


def loader(version: str, layout: str) -> Callable[..., None]:
    """The engine's function itself."""
    file, name = CLASSES[layout]
    tree = ast.parse((PLACE / f"sglang-{version}" / "sglang" / "srt" / "models" / file).read_text())
    owner = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    found = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "load_weights")
    found.returns = None
    for argument in found.args.args:
        argument.annotation = None
    names: dict[str, Any] = {"torch": Torch, "re": re, "logger": logging.getLogger("twin"),
                             "default_weight_loader": None, "Iterable": None, "Tuple": None}  # fmt: skip
    exec(compile(ast.Module([found], []), file, "exec"), names)
    function: Callable[..., None] = names["load_weights"]
    return function


class Slot:
    """A parameter that notes what lands in it."""

    def __init__(self, name: str, notes: list[tuple[str, tuple[str, ...]]]) -> None:
        self.name, self.notes = name, notes

    def weight_loader(self, _: object, weight: Weight, shard: object = None) -> None:
        self.notes.append((f"{self.name} {shard}", weight.sources))


class Model:
    """What the loader sees of the engine's class."""

    hot_token_id: Weight | None = None

    def __init__(self, parameters: Collection[str]) -> None:
        self.notes: list[tuple[str, tuple[str, ...]]] = []
        self.slots = [(name, Slot(name, self.notes)) for name in parameters]

    def named_parameters(self) -> list[tuple[str, Slot]]:
        return self.slots

    def post_load_weights(self) -> None:
        """Splits a matrix that is loaded by now."""


def landed(load: Callable[..., None], parameters: Collection[str], names: Collection[str]) -> tuple[set[str], set[str]]:
    """(names of the file that land somewhere, parameters or parts of them that are filled)."""
    model = Model(parameters)
    load(model, [(name, Weight(name)) for name in names])
    notes = [*model.notes, *([("hot_token_id", model.hot_token_id.sources)] if model.hot_token_id else [])]
    return {source for _, sources in notes for source in sources}, {place for place, _ in notes}


def parameters(version: str, layout: str, config: dict[str, Any]) -> list[str]:
    """What the engine's class builds, as its ``named_parameters`` names it."""
    fused = ("qkv_proj", "o_proj") if layout == "llama" else (*ATTENTION["mla"][2:], "fused_qkv_a_proj_with_mqa")
    inside = [*NORMS, *MLP[2:], *(f"self_attn.{name}.weight" for name in fused)]
    inside += ["self_attn.o_proj.bias"] if config["bias"] and layout == "llama" else []
    plain = version == "0.5.9" or layout == "mla"
    layers = ["midlayer"] if plain else [f"layers.{index}" for index in range(config["num_hidden_layers"])]
    top = [
        "embed_tokens.weight",
        "fc.weight",
        "norm.weight",
        *(f"{layer}.{name}" for layer in layers for name in inside),
    ]
    top += ["fc.bias"] if config["bias"] else []
    top += [f"fc_norm.{index}.weight" for index in range(3)] if config["fc_norm"] else []
    top += ["input_norm.weight"] if config["norm_before_fc"] else []
    return ["lm_head.weight", *(f"model.{name}" for name in top)]


CASES = [(version, layout) for version in ("0.5.9", "0.5.16", "0.5.20", "0.5.23") for layout in CLASSES
         if (version, layout) != ("0.5.9", "mla")]  # fmt: skip


@pytest.mark.parametrize(("version", "layout"), CASES)
def test_every_name_lands_where_we_say(python: str, version: str, layout: str) -> None:
    rules, load = engine_rules(f"sglang@{version}"), loader(version, layout)
    inside = [*NORMS, *MLP, *(f"self_attn.{name}.weight" for name in ATTENTION[layout]), "self_attn.o_proj.bias",
              "self_attn.rotary_emb.inv_freq"]  # fmt: skip
    layers = ("midlayer", "layers.0", "layers.1", "block")
    names = [f"{layer}.{name}" for layer in layers for name in inside] + list(TOP)
    names = [prefix + name for prefix in ("", "model.", "draft_model.") for name in names]
    for config in configs(rules.computed(layout)):
        built, expected = parameters(version, layout, config), expected_tensors(SPEC, config, rules, layout)
        for name in names:
            pair = [name, re.sub("q_a_proj$|q_a_proj(?=[.])", "kv_a_proj_with_mqa", name),
                    name.replace("kv_a_proj_with_mqa", "q_a_proj")]  # fmt: skip
            lands = name in landed(load, built, dict.fromkeys(pair))[0]
            told = treat([name], with_fused(expected, [name], rules, layout), rules, layout)
            unread = "layers.1.input_layernorm" in name  # lands, and SGLang's later layers apply the other norm
            assert bool(told.consumed or told.overwritten) == (lands and not unread), (config, name)
        whole = landed(load, built, expected)[1]
        for name in expected:
            rest = [one for one in expected if one != name]
            told = treat(rest, expected, rules, layout)
            assert bool(told.missing) == (landed(load, built, rest)[1] != whole), (config, name)


def configs(computed: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every config of these switches that the class has the mathematics for."""
    layers = computed.get("num_hidden_layers", [1, 2])
    found = itertools.product(layers, computed["norm_before_fc"], computed["fc_norm"], (False, True))
    keys = ("num_hidden_layers", "norm_before_fc", "fc_norm", "bias")
    return [{**RANKS, **dict(zip(keys, values, strict=True))} for values in found]
