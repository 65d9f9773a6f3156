"""The engines' data files, and what they say about names that are known to differ between versions."""

from __future__ import annotations

import re

import pytest

from k25stack.contract.keys import expected_tensors, treat
from k25stack.contract.rules import ENGINES, engine_rules, listed_versions
from k25stack.draft.layerids import FAMILIES, SHIFTS
from k25stack.draft.spec import PRESETS
from k25stack.errors import UsageError

SMALL = PRESETS["smollm2"]
PORTABLE = list(SMALL.tensors())


def renamed(new: str, old: str = "midlayer.") -> list[str]:
    return [name.replace(old, new) for name in PORTABLE]


@pytest.mark.parametrize("engine", [f"{name}@{version}" for name in ENGINES for version in listed_versions(name)])
def test_every_listed_version_is_complete(engine: str) -> None:
    rules = engine_rules(engine)
    assert rules.exact
    assert set(rules.shift) == set(FAMILIES)
    assert all(rules.shift_of(family) in SHIFTS.values() for family in FAMILIES)
    assert rules.unknown_tensors in ("ignored", "refused")
    assert rules.missing_head in ("random", "lent", "refused")
    for layout in rules.architectures.values():
        for pattern, _, treatment in rules.names[layout]:
            re.compile(pattern)
            assert treatment in ("consumed", "ignored", "overwritten", "kept", "dropped")
        assert all(isinstance(values, list) and values for values in rules.computed(layout).values())


@pytest.mark.parametrize(
    ("asked", "judged_as"),
    [
        ("sglang@0.5.21", "0.5.20"),
        ("sglang@0.5.20.post1", "0.5.20"),
        ("sglang@0.4.0", "0.5.9"),
        ("sglang@1.0", "0.5.23"),
        ("vllm@0.31.5", "0.31.0"),
        ("sglang", "0.5.23"),
    ],
)
def test_an_unlisted_version_is_judged_by_the_nearest_older(asked: str, judged_as: str) -> None:
    assert engine_rules(asked).judged_as == judged_as


@pytest.mark.parametrize("asked", ["tgi@1.0", "", "sglang@newest"])
def test_an_unknown_engine_is_refused(asked: str) -> None:
    with pytest.raises(UsageError):
        engine_rules(asked)


@pytest.mark.parametrize("engine", ["sglang@0.5.9", "sglang@0.5.16", "sglang@0.5.23", "vllm@0.31.0", "reference"])
def test_the_portable_form_is_consumed_everywhere(engine: str) -> None:
    rules = engine_rules(engine)
    found = treat(PORTABLE, expected_tensors(SMALL, {}, rules, "llama"), rules, "llama")
    assert found.counts() == {"consumed": 14, "ignored": 1, "overwritten": 0, "refused": 0, "missing": 0}
    assert found.ignored == ["t2d"]


@pytest.mark.parametrize(
    ("engine", "prefix", "lost"),
    [
        ("sglang@0.5.9", "layers.0.", "dropped"),  # before the alias of sglang PR #24663
        ("sglang@0.5.16", "layers.0.", ""),
        ("sglang@0.5.20", "model.layers.0.", ""),
        ("sglang@0.5.20", "layers.1.", "dropped"),
        ("vllm@0.31.0", "layers.0.", ""),
        ("vllm@0.31.0", "model.layers.0.", "refused"),  # becomes model.model.layers.0
        ("vllm@0.31.0", "block.", "refused"),
        ("reference", "layers.0.", ""),
    ],
)
def test_spellings_of_the_layer(engine: str, prefix: str, lost: str) -> None:
    rules = engine_rules(engine)
    found = treat(renamed(prefix), expected_tensors(SMALL, {}, rules, "llama"), rules, "llama")
    assert len(found.dropped) == (10 if lost == "dropped" else 0)
    assert len(found.refused) == (10 if lost == "refused" else 0)
    assert len(found.missing) == (10 if lost else 0)


def test_an_embedding_is_overwritten_or_kept() -> None:
    names = [*PORTABLE, "embed_tokens.weight"]
    sglang, vllm = engine_rules("sglang@0.5.20"), engine_rules("vllm@0.31.0")
    assert treat(names, SMALL.tensors(), sglang, "llama").overwritten == ["embed_tokens.weight"]
    assert treat(names, SMALL.tensors(), vllm, "llama").kept == ["embed_tokens.weight"]


def test_norms_before_fc_are_expected_only_where_they_are_computed() -> None:
    config = {"norm_before_fc": True, "fc_norm": True}
    old, new = engine_rules("sglang@0.5.16"), engine_rules("sglang@0.5.20")
    extra = set(expected_tensors(SMALL, config, new, "llama")) - set(SMALL.tensors())
    assert extra == {"input_norm.weight", "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"}
    assert "input_norm.weight" not in expected_tensors(SMALL, config, old, "llama")
