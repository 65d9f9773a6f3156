"""What each engine version loads from a draft and what it computes: the data files in ``rules/``, typed (no torch).

A version that is not listed is judged by the nearest older one, and the check says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from k25stack import __version__
from k25stack.draft.layerids import SHIFTS, Shift
from k25stack.engines.versions import nearest_older, version_key
from k25stack.errors import UsageError

ENGINES = ("reference", "sglang", "vllm")
NamePattern = tuple[str, str, str]  # (regular expression, portable name, treatment)


@dataclass(frozen=True)
class EngineRules:
    """How one engine version treats a draft."""

    engine: str
    version: str  # as asked for
    judged_as: str  # the listed version whose rules these are
    source: str
    architectures: Mapping[str, str]  # architecture -> layout: "llama" or "mla"
    names: Mapping[str, list[NamePattern]]  # layout -> patterns; the first that matches decides
    unknown_tensors: str  # "ignored" without a word, or "refused"
    missing_tensors: str
    fused_names: bool  # qkv_proj and gate_up_proj are loaded as they are
    biases: Mapping[str, Mapping[str, list[str]]]  # layout -> config switch -> modules that get a bias
    later_layer_norm: str  # of the two norms before the attention, the one that layers after the first apply
    missing_head: str  # "random", "lent" by the target, or "refused"
    ties_head: bool  # tie_word_embeddings replaces the head
    vocab_size_absent: str  # no draft_vocab_size: "raises", or taken from the "target"
    full_vocabulary_map: str  # d2t beside a full vocabulary: "accepted" or "refused"
    id_keys: Mapping[str, list[str]]  # code path ("" when there is one) -> config keys, the first present one is used
    empty_ids: str  # an empty list: "captures nothing", or "the next place is read"
    shift: Mapping[str, str]  # target family -> name in layerids.SHIFTS
    captures_last_output: bool  # id n of n layers is possible
    null_target_width: Mapping[str, str]  # layout -> what "target_hidden_size": null does; empty when harmless
    short_draft_context: str  # verdict when the draft's limit is under the served context
    context_keys: list[str]  # config keys of that limit, the first present one is used
    transformers: int  # major version that reads config.json; 0 for none
    rope_types: list[str]
    computes: Mapping[str, list[Any]]  # config switch -> values whose mathematics the engine has
    draft_window: str  # a sliding window is taken from the "config", from a "flag", or there is "none"
    computes_mla: Mapping[str, list[Any]] = field(default_factory=dict)  # where its MLA draft class differs
    targets_without_capture: tuple[str, ...] = ()  # target model types that cannot hand over their states
    targets_keeping_final_id: tuple[str, ...] = ()  # a list that ends with the number of layers is taken as written
    targets_shifting_default: tuple[str, ...] = ()  # its default layers are shifted as a list would be
    architecture_prefix: str = ""  # put before an architecture that neither begins nor ends with it
    other_architectures: tuple[str, ...] = ()  # draft classes that it has and these rules do not judge
    mla_states_from_lists: bool = False  # its MLA class sizes fc by the lists of ids, not by num_aux_hidden_states

    @property
    def label(self) -> str:
        return f"{self.engine}@{self.version}"

    @property
    def exact(self) -> bool:
        """False when this version is not listed; the reference engine is always the one of this package."""
        return self.engine == "reference" or version_key(self.version) == version_key(self.judged_as)

    def computed(self, layout: str) -> dict[str, list[Any]]:
        """Config switch -> values that the draft class of this layout has the mathematics for."""
        return {**self.computes, **self.computes_mla} if layout == "mla" else dict(self.computes)

    def layout(self, architecture: str) -> str | None:
        """The layout of the draft class for a declared architecture; None where these rules know no such class."""
        return self.architectures.get(self.class_name(architecture))

    def class_name(self, architecture: str) -> str:
        prefix = self.architecture_prefix
        whole = not architecture or architecture.startswith(prefix) or architecture.endswith(prefix)
        return architecture if whole else prefix + architecture

    def shift_of(self, family: str) -> Shift:
        return SHIFTS[self.shift[family]]


def engine_rules(wanted: str) -> EngineRules:
    """Rules for ``"sglang@0.5.20"``, or for the newest listed version of ``"sglang"``.

    Raises UsageError for an engine that is not known or a version that is not a number.
    """
    engine, _, version = wanted.partition("@")
    if engine not in ENGINES:
        remedy = f"one of {', '.join(ENGINES)}; with a version as sglang@0.5.23"
        raise UsageError(f"no rules for engine {engine!r}", where=wanted, remedy=remedy)
    data = load(engine)
    known = sorted(data["versions"], key=version_key)
    if engine == "reference":
        version = __version__
    version = version or known[-1]
    if not re.match(r"v?\d+(\.\d+)*", version):
        raise UsageError(f"{version!r} is no version", where=wanted, remedy=f"for example {engine}@{known[-1]}")
    judged_as = nearest_older(known, version)
    values = merged(data["versions"], judged_as)
    names = {layout: [tuple(row) for row in rows] for layout, rows in values.pop("names").items()}
    source = data["source"].replace("{version}", judged_as)
    return EngineRules(engine=engine, version=version, judged_as=judged_as, source=source, names=names, **values)


@cache
def load(engine: str) -> dict[str, Any]:
    import json

    data: dict[str, Any] = json.loads((files(__package__) / "rules" / f"{engine}.json").read_text(encoding="utf-8"))
    return data


def merged(versions: Mapping[str, Mapping[str, Any]], version: str) -> dict[str, Any]:
    """One version's values over those of the version it extends; a value replaces the older one as a whole."""
    own = dict(versions[version])
    base = own.pop("extends", None)
    return {**merged(versions, base), **own} if base else own


def listed_versions(engine: str) -> list[str]:
    return sorted(load(engine)["versions"], key=version_key)
