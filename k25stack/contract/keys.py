"""What an engine version does with each tensor of a draft file (no torch).

``consumed``     it lands in a parameter
``overwritten``  it lands, and the target's own tensor replaces it (the embedding in SGLang)
``kept``         it lands and stays although the target could lend its own (the embedding in vLLM); counts as consumed
``ignored``      it carries nothing that the engine needs (t2d, tables of rope), and is passed over
``dropped``      it is passed over in silence, or lands where nothing reads it, though it was trained
``refused``      the engine stops
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from k25stack.contract.rules import EngineRules
from k25stack.draft.mla import mla_tensors
from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError

Shapes = Mapping[str, tuple[int, ...]]

# Projections that both engines also load from one tensor, the parts one under the other.
FUSED = {"qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
         "gate_up_proj.weight": ("gate_proj.weight", "up_proj.weight")}  # fmt: skip
WIDE = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_a_proj.weight", "kv_a_proj_with_mqa.weight")
MOST_LAYERS = 64


@dataclass
class Treatment:
    """Names as they are spelled in the file, by what happens to them; ``missing`` in the portable spelling."""

    consumed: dict[str, str] = field(default_factory=dict)  # portable name -> spelled name
    overwritten: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    clashing: list[str] = field(default_factory=list)  # two spellings of one tensor: the later one wins
    missing: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """The report in the words of the engines' contract: ``ignored`` counts what is dropped too."""
        return {
            "consumed": len(self.consumed) + len(self.clashing) + len(self.kept),
            "ignored": len(self.ignored) + len(self.dropped),
            "overwritten": len(self.overwritten),
            "refused": len(self.refused),
            "missing": len(self.missing),
        }


def treat(names: Collection[str], expected: Shapes, rules: EngineRules, layout: str) -> Treatment:
    """Sort the tensor names of a file by what the engine does with them; ``expected`` has the portable names.

    t2d and, beside a full vocabulary, d2t may be present or not.
    """
    wanted = set(expected)
    if "d2t" not in expected and rules.full_vocabulary_map == "accepted":
        wanted.add("d2t")
    result = Treatment()
    for name in names:
        portable, treatment = first_match(name, rules, layout, wanted)
        if treatment != "consumed":
            getattr(result, treatment).append(name)
        elif portable in result.consumed:
            result.clashing.append(name)
        else:
            result.consumed[portable] = name
    result.missing = sorted(set(expected) - set(result.consumed) - {"t2d"})
    return result


def first_match(name: str, rules: EngineRules, layout: str, wanted: Collection[str]) -> tuple[str, str]:
    """(portable name, treatment) by the first pattern that matches; a parameter that is not ``wanted`` is none."""
    for pattern, portable, treatment in rules.names[layout]:
        if found := re.search(pattern, name):
            spelled = found.expand(portable)
            if treatment != "consumed" or spelled in wanted:
                return spelled, treatment
    return "", "refused" if rules.unknown_tensors == "refused" else "dropped"


def expected_tensors(
    spec: DraftSpec, config: Mapping[str, Any], rules: EngineRules, layout: str
) -> dict[str, tuple[int, ...]]:
    """Portable name -> shape of what the engine builds for this config, with its optional norms, biases and layers.

    Raises UsageError when the config of an MLA draft lacks a rank, or for more layers than any draft has.
    """
    table = mla_tensors(spec, config, "config.json") if layout == "mla" else spec.tensors()
    computed = rules.computed(layout)
    if switch(config, "norm_before_fc") and True in computed["norm_before_fc"]:
        table["input_norm.weight"] = (spec.aux_width,)
    older = rules.engine == "sglang" and config.get("use_aux_norm")  # SGLang's older word, which no other engine reads
    if (config.get("fc_norm") or older) and True in computed["fc_norm"]:
        table |= {f"fc_norm.{index}.weight": (spec.hidden,) for index in range(spec.aux)}
    for name, modules in rules.biases[layout].items():
        if config.get(name):
            table |= {f"{module}.bias": table[f"{module}.weight"][:1] for module in modules}
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or "num_hidden_layers" in computed:
        return table
    if layers > MOST_LAYERS:
        raise UsageError(f"num_hidden_layers is {layers}: no draft", where="config.json")
    return table | later_layers(table, layers, spec, rules)


def later_layers(table: Shapes, layers: int, spec: DraftSpec, rules: EngineRules) -> dict[str, tuple[int, ...]]:
    """The layers after the first: they read H instead of 2H, and one of its two norms before the attention.

    SGLang and vLLM do not agree on which norm that is.
    """
    unused = {"input_layernorm.weight", "hidden_norm.weight"} - {f"{rules.later_layer_norm}.weight"}
    first = {name.removeprefix("midlayer."): shape for name, shape in table.items() if name.startswith("midlayer.")}
    return {
        f"layers.{index}.{name}": (shape[0], spec.hidden) if name.endswith(WIDE) else shape
        for index in range(1, layers)
        for name, shape in first.items()
        if name not in unused
    }


def with_fused(expected: Shapes, names: Collection[str], rules: EngineRules, layout: str) -> dict[str, tuple[int, ...]]:
    """``expected`` as this file spells it: a whole instead of its parts where the file holds the whole."""
    table = dict(expected)
    for whole, parts in FUSED.items() if rules.fused_names else ():
        for first in [name for name in expected if name.endswith(f".{parts[0]}")]:
            stem = first.removesuffix(parts[0])
            if any(first_match(name, rules, layout, {stem + whole})[0] == stem + whole for name in names):
                shapes = [table.pop(stem + part) for part in parts]
                table[stem + whole] = (sum(shape[0] for shape in shapes), shapes[0][1])
    return table


def switch(config: Mapping[str, Any], name: str) -> Any:
    """A switch that the engines read from ``eagle_config`` first and from the top level else."""
    eagle = config.get("eagle_config")
    if isinstance(eagle, Mapping) and name in eagle:
        return eagle[name]
    return config.get(name)
