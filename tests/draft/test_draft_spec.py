"""Shapes and counts against hand-written figures; layer ids against what the engines do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack.draft.config import config_json
from k25stack.draft.layerids import IDS_KEY, SHIFTS, portable_ids, validate_canonical
from k25stack.draft.mathematics import mathematics, spec_from_config
from k25stack.draft.names import portable_name
from k25stack.draft.sizes import sizes_from_config
from k25stack.draft.spec import PRESETS, DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.errors import UsageError

KIMI = PRESETS["kimi-k2.5"]
KIMI_TARGET = TargetFacts("kimi_k25", "deepseek", 7168, 61, 163840, 262144, (163585,))
LLAMA_TARGET = TargetFacts("llama", "llama", 576, 30, 49152, 8192, (2,))

sizes = st.builds(
    lambda group, kv, half, hidden, ffn, draft, extra: DraftSpec(
        hidden, group * kv, kv, 2 * half, ffn, draft, draft + extra
    ),
    *(st.integers(1, 6) for _ in range(4)),
    st.integers(1, 40),
    st.integers(1, 50),
    st.integers(0, 50),
)


def test_the_kimi_draft_has_the_published_size() -> None:
    assert KIMI.parameters() == 1_190_948_864
    assert KIMI.parameters(with_embedding=True) == 2_365_353_984
    assert KIMI.kv_bytes_per_token() == 32_768
    assert PRESETS["kimi-k2.5-gqa8"].kv_bytes_per_token() == 4_096
    assert KIMI.aux_width == 21504


def test_the_kimi_tensor_table() -> None:
    assert KIMI.tensors() == {
        "fc.weight": (7168, 21504),
        "midlayer.input_layernorm.weight": (7168,),
        "midlayer.hidden_norm.weight": (7168,),
        "midlayer.self_attn.q_proj.weight": (8192, 14336),
        "midlayer.self_attn.k_proj.weight": (8192, 14336),
        "midlayer.self_attn.v_proj.weight": (8192, 14336),
        "midlayer.self_attn.o_proj.weight": (7168, 8192),
        "midlayer.post_attention_layernorm.weight": (7168,),
        "midlayer.mlp.gate_proj.weight": (18432, 7168),
        "midlayer.mlp.up_proj.weight": (18432, 7168),
        "midlayer.mlp.down_proj.weight": (7168, 18432),
        "norm.weight": (7168,),
        "lm_head.weight": (32000, 7168),
        "d2t": (32000,),
        "t2d": (163840,),
    }


@given(sizes)
def test_counts_agree_with_the_closed_formula(spec: DraftSpec) -> None:
    h, d, n, g = spec.hidden, spec.head_dim, spec.heads, spec.kv_heads
    formula = 3 * h * h + 2 * h * d * (n + 2 * g) + n * d * h + 3 * h * spec.intermediate + 4 * h + spec.draft_vocab * h
    assert spec.parameters() == formula == sum(math.prod(shape) for shape in spec.weights().values())
    assert ("d2t" in spec.tensors()) == (spec.draft_vocab != spec.target_vocab)


@given(sizes)
def test_a_spec_survives_its_dict_and_its_config(spec: DraftSpec) -> None:
    assert DraftSpec.from_dict(spec.as_dict()) == spec
    target = TargetFacts("llama", "llama", spec.hidden, 12, spec.target_vocab, spec.max_position, (0,))
    config = config_json(spec, target, [2, 6, 9])
    assert spec_from_config(config, "config.json") == spec


@pytest.mark.parametrize(
    "change",
    [
        {"kv_heads": 5},
        {"head_dim": 63},
        {"draft_vocab": 50000},
        {"hidden": 0},
        {"hidden": "576"},
        {"heads": True},
        {"rope_theta": math.nan},
        {"rms_eps": math.inf},
        {"target_hidden": 577},
        {"width": 3},
    ],
)
def test_sizes_that_do_not_fit_are_one_line(change: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        DraftSpec.from_dict({**PRESETS["smollm2"].as_dict(), **change})
    assert "\n" not in str(caught.value)


def test_a_missing_field_is_named() -> None:
    raw = PRESETS["smollm2"].as_dict()
    del raw["heads"]
    with pytest.raises(UsageError, match="heads"):
        DraftSpec.from_dict(raw)


def test_layer_lists_for_both_families() -> None:
    kimi = config_json(KIMI, KIMI_TARGET, [2, 30, 58])
    assert kimi[IDS_KEY] == kimi["eagle_config"][IDS_KEY] == [2, 30, 58]
    llama = config_json(PRESETS["smollm2"], LLAMA_TARGET, [2, 15, 27])
    assert llama[IDS_KEY] == [2, 15, 27]
    assert llama["eagle_config"][IDS_KEY] == [1, 14, 26]
    assert kimi["target_hidden_size"] == 7168
    assert kimi["norm_before_residual"] is False
    assert llama["max_position_embeddings"] >= 8192


@given(st.sets(st.integers(1, 59), min_size=1, max_size=5), st.sampled_from(["llama", "deepseek"]))
def test_both_engines_capture_the_canonical_layers(chosen: set[int], family: str) -> None:
    layers = sorted(chosen)
    if family == "deepseek" and layers[0] == 1:
        with pytest.raises(UsageError, match="begins with 1"):
            validate_canonical(layers, 61, family)
        return
    validate_canonical(layers, 61, family)
    top, nested = portable_ids(layers, family)
    assert SHIFTS["as-written"](top) == layers  # vLLM
    sglang = SHIFTS["plus-one" if family == "llama" else "plus-one-if-first-is-one"]
    assert sglang(nested) == layers


@pytest.mark.parametrize("layers", [[], [0, 5, 9], [5, 2, 9], [2, 2, 9], [2, 15, 30]])
def test_layers_no_engine_can_serve_are_refused(layers: list[int]) -> None:
    with pytest.raises(UsageError):
        validate_canonical(layers, 30, "llama")


@pytest.mark.parametrize(
    "change",
    [
        {"norm_before_residual": True},
        {"fc_norm": True},
        {"eagle_config": {"norm_before_fc": True}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 64.0}},
        {"num_hidden_layers": 2},
        {"hidden_size": "576"},
        {"intermediate_size": None},
        {"rms_norm_eps": "small"},
        {"num_aux_hidden_states": [3]},
        {"rope_parameters": {"rope_type": "yarn", "factor": 64.0}},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5},
        {"sliding_window": 512, "layer_types": ["sliding_attention"]},
        {"use_aux_norm": True},
        {"eagle_config": {"use_aux_hidden_state": False}},
    ],
)
def test_a_config_of_other_mathematics_is_refused(change: dict[str, object]) -> None:
    config = {**config_json(PRESETS["smollm2"], LLAMA_TARGET, [2, 15, 27]), **change}
    with pytest.raises(UsageError):
        spec_from_config(config, "config.json")


def test_positions_are_read_as_transformers_reads_them() -> None:
    """The old key, where it has a value, hides the new one and its theta; both may hold theta."""
    config = config_json(PRESETS["smollm2"], LLAMA_TARGET, [2, 15, 27])
    linear, plain = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "default", "rope_theta": 7e5}

    def read(**changes: object) -> tuple[float, object]:
        function = mathematics({**config, **changes}, "config.json")
        return function.spec.rope_theta, function.rope_scaling

    assert read(rope_parameters=plain) == (7e5, None)
    assert read(rope_scaling=linear, rope_parameters=plain) == (1e5, linear)
    assert read(rope_scaling={**linear, "rope_theta": 3e5}) == (3e5, linear)
    assert read(rope_theta=None) == (1e4, None)


def test_sizes_are_read_where_mathematics_differ() -> None:
    config = {**config_json(PRESETS["smollm2"], LLAMA_TARGET, [2, 15, 27]), "norm_before_residual": True}
    assert sizes_from_config(config, "config.json") == PRESETS["smollm2"]


def test_the_spellings_of_one_tensor() -> None:
    for spelled in ("model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight"):
        assert portable_name(spelled) == "midlayer.mlp.up_proj.weight"
    assert portable_name("fc.weight") == "fc.weight"
