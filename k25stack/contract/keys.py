"""What an engine version does with each tensor of a draft file (no torch).

``consumed``     it lands in a parameter
``overwritten``  it lands, and the target's own tensor replaces it (the embedding in SGLang)
``kept``         it lands and stays although the target could lend its own (the embedding in vLLM); counts as consumed
``ignored``      it is passed over by design (t2d) or because the name is unknown to an engine that drops in silence
``refused``      the engine stops
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from k25stack.contract.rules import EngineRules
from k25stack.draft.mla import mla_tensors
from k25stack.draft.spec import DraftSpec

BY_DESIGN = ("t2d", "mask_hidden", "")  # portable names that an engine passes over on purpose


@dataclass
class Treatment:
    """Names as they are spelled in the file, by what happens to them; ``missing`` in the portable spelling."""

    consumed: dict[str, str] = field(default_factory=dict)  # portable name -> spelled name
    overwritten: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # by design
    dropped: list[str] = field(default_factory=list)  # unknown, and passed over in silence
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


def treat(names: list[str], expected: Mapping[str, Any], rules: EngineRules, layout: str) -> Treatment:
    """Sort the tensor names of a file by what the engine does with them; ``expected`` has the portable names.

    t2d and, beside a full vocabulary, d2t may be present or not.
    """
    wanted = set(expected)
    if "d2t" not in expected and rules.full_vocabulary_map == "accepted":
        wanted.add("d2t")
    result = Treatment()
    for name in names:
        portable, treatment = first_match(name, rules, layout)
        if treatment == "consumed" and portable not in wanted:
            treatment = ""
        if treatment == "consumed" and portable in result.consumed:
            result.clashing.append(name)
        elif treatment == "consumed":
            result.consumed[portable] = name
        elif treatment == "overwritten":
            result.overwritten.append(name)
        elif treatment == "kept":
            result.kept.append(name)
        elif treatment == "ignored" and portable in BY_DESIGN:
            result.ignored.append(name)
        elif rules.unknown_tensors == "refused":
            result.refused.append(name)
        else:
            result.dropped.append(name)
    result.missing = sorted(set(expected) - set(result.consumed) - {"t2d"})
    return result


def first_match(name: str, rules: EngineRules, layout: str) -> tuple[str, str]:
    """(portable name, treatment) by the first pattern that matches; two empty strings when none does."""
    for pattern, portable, treatment in rules.names[layout]:
        if found := re.search(pattern, name):
            return found.expand(portable), treatment
    return "", ""


def expected_tensors(
    spec: DraftSpec, config: Mapping[str, Any], rules: EngineRules, layout: str
) -> dict[str, tuple[int, ...]]:
    """Portable name -> shape of what the engine builds for this config, with its optional norms.

    Raises UsageError when the config of an MLA draft lacks a rank.
    """
    base = mla_tensors(spec, config, "config.json") if layout == "mla" else spec.tensors()
    optional: dict[str, tuple[int, ...]] = {}
    computed = rules.computed(layout)
    if switch(config, "norm_before_fc") and True in computed["norm_before_fc"]:
        optional["input_norm.weight"] = (spec.aux_width,)
    older = rules.engine == "sglang" and config.get("use_aux_norm")  # SGLang's older word, which no other engine reads
    if (config.get("fc_norm") or older) and True in computed["fc_norm"]:
        optional |= {f"fc_norm.{index}.weight": (spec.hidden,) for index in range(spec.aux)}
    if config.get("bias") and True in computed["bias"]:
        optional["fc.bias"] = (spec.hidden,)
    return {**base, **optional}


def switch(config: Mapping[str, Any], name: str) -> Any:
    """A switch that the engines read from ``eagle_config`` first and from the top level else."""
    eagle = config.get("eagle_config")
    if isinstance(eagle, Mapping) and name in eagle:
        return eagle[name]
    return config.get(name)
