"""Words of a config that one engine reads and another does not, and drafts beyond what the tables hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_cases import (
    ALL_ENGINES,
    Case,
    edit_config,
    kimi_case,
    llama_case,
    put_tensors,
    tensors_of,
    write_case,
)

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Verdict
from k25stack.draft.target import TargetFacts

CASE = llama_case()
QUESTION = Question(layers=tuple(CASE.layers), target=CASE.target)
OLD = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
READS_OLDER = {"sglang@0.5.16", "sglang@0.5.20", "sglang@0.5.23"}
OLD_READER = {"sglang@0.5.9"}  # its transformers is a 4
SGLANG = READS_OLDER | OLD_READER
VLLM = {"vllm@0.31.0", "vllm@0.32.0", "vllm@0.33.0"}


def messages(directory: Path, name: str) -> dict[str, str]:
    """Engine -> the message of this check."""
    checks = check_draft(directory, ALL_ENGINES, QUESTION).checks
    return {check.group: check.message for check in checks if check.id == name}


def passing(directory: Path, name: str) -> set[str]:
    """The engines for which this check passes."""
    return {engine for engine, verdict in found(directory, name).items() if verdict is Verdict.PASS}


def found(directory: Path, name: str) -> dict[str, Verdict]:
    """Engine -> the worst verdict of this check."""
    checks = [check for check in check_draft(directory, ALL_ENGINES, QUESTION).checks if check.id == name]
    return {
        engine: max((check.verdict for check in checks if check.group.startswith(engine)), key=lambda one: one.rank)
        for engine in ALL_ENGINES
    }


@pytest.mark.parametrize("older_names", [True, False])
def test_the_older_word_for_norms_before_fc_is_sglangs_alone(tmp_path: Path, older_names: bool) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    norms = {f"{old}.weight" if older_names else f"{new}.weight": tensors_of(directory)["norm.weight"]
             for old, new in OLD.items()}  # fmt: skip
    put_tensors(directory, {**tensors_of(directory), **norms})
    edit_config(directory, use_aux_norm=True)
    for name in ("C2", "C7"):
        passes = {engine for engine, verdict in found(directory, name).items() if verdict is Verdict.PASS}
        assert passes == READS_OLDER, name
    edit_config(directory, use_aux_norm=False, fc_norm=True)
    reads = {engine for engine, verdict in found(directory, "C7").items() if verdict is Verdict.PASS}
    assert reads == READS_OLDER | {"vllm@0.31.0", "vllm@0.32.0", "vllm@0.33.0"}


@pytest.mark.parametrize(("norm", "serves"), [("hidden_norm", READS_OLDER), ("input_layernorm", VLLM)])
def test_a_second_layer_has_the_norm_that_the_engine_applies(tmp_path: Path, norm: str, serves: set[str]) -> None:
    """SGLang's later layers apply hidden_norm, vLLM's input_layernorm; the other one lands where nothing reads it."""
    directory = write_case(tmp_path / "draft", CASE)
    tensors = tensors_of(directory)
    first = {name: one for name, one in tensors.items() if "midlayer" in name}
    second = {name.replace("midlayer", "layers.1"): one.clone() for name, one in first.items()}
    for letter in "qkv":
        name = f"layers.1.self_attn.{letter}_proj.weight"
        second[name] = second[name][:, : CASE.spec.hidden]
    both = {**tensors, **second}
    edit_config(directory, num_hidden_layers=2)
    other = {"hidden_norm": "input_layernorm", "input_layernorm": "hidden_norm"}[norm]
    put_tensors(directory, {name: one for name, one in both.items() if name != f"layers.1.{other}.weight"})
    assert passing(directory, "C2") == serves
    put_tensors(directory, both)
    assert passing(directory, "C2") == set()
    assert found(directory, "C7")["sglang@0.5.9"] is Verdict.FAIL
    put_tensors(directory, {**both, "layers.1.mlp.up_proj.weight": first["midlayer.mlp.down_proj.weight"].clone()})
    assert passing(directory, "C2") == set()


def test_a_number_of_layers_that_is_none_is_refused(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, num_hidden_layers=10**9)
    assert set(found(directory, "C2").values()) >= {Verdict.FAIL}


BIASED = {
    # config switch -> tensors with a bias, the engines that compute them
    "bias": (("fc", "midlayer.self_attn.o_proj"), SGLANG),
    "attention_bias": (tuple(f"midlayer.self_attn.{letter}_proj" for letter in "qkvo"), VLLM),
    "mlp_bias": (tuple(f"midlayer.mlp.{half}_proj" for half in ("gate", "up", "down")), VLLM),
}


@pytest.mark.parametrize("switch", BIASED)
def test_biases_are_where_the_engine_builds_them(tmp_path: Path, switch: str) -> None:
    """SGLang's ``bias`` gives one to o_proj too; vLLM drops what the config does not announce without a word."""
    modules, engines = BIASED[switch]
    directory = write_case(tmp_path / "draft", CASE)
    plain = tensors_of(directory)
    biases = {f"{module}.bias": plain[f"{module}.weight"][:, 0].clone() for module in modules}
    put_tensors(directory, {**plain, **biases})
    assert passing(directory, "C2") == set()
    assert "dropped in silence" in messages(directory, "C2")["vllm@0.33.0"]
    edit_config(directory, **{switch: True})
    assert passing(directory, "C2") == engines
    assert passing(directory, "C7") == engines
    biases.pop(f"{modules[-1]}.bias")
    put_tensors(directory, {**plain, **biases})
    assert passing(directory, "C2") == set()


def test_whole_projections_are_loaded_as_they_are(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    tensors = tensors_of(directory)
    halves = [tensors.pop(f"midlayer.self_attn.{letter}_proj.weight") for letter in "qkv"]
    tensors["midlayer.self_attn.qkv_proj.weight"] = torch.cat(halves)
    put_tensors(directory, tensors)
    assert passing(directory, "C2") == SGLANG | VLLM
    tensors["midlayer.self_attn.qkv_proj.weight"] = torch.cat(halves)[1:]
    put_tensors(directory, tensors)
    assert passing(directory, "C2") == set()


def test_an_embedding_of_another_shape_is_found(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    tensors = tensors_of(directory)
    for rows, engines in ((64, set(ALL_ENGINES)), (63, set())):
        put_tensors(directory, {**tensors, "embed_tokens.weight": torch.zeros(rows, 24, dtype=torch.bfloat16)})
        assert passing(directory, "C2") == engines


def test_a_full_vocabularys_map_moves_no_id(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", llama_case(draft_vocab=64))
    tensors = tensors_of(directory)
    still, moved = torch.zeros(64, dtype=torch.int64), torch.ones(64, dtype=torch.int64)
    for d2t, engines in ((still, SGLANG), (moved, set()), (still[1:].clone(), set())):
        put_tensors(directory, {**tensors, "d2t": d2t})
        told = check_draft(directory, ALL_ENGINES, QUESTION)
        failed = {check.group for check in told.checks if check.id == "C4" and check.verdict is Verdict.FAIL}
        assert {engine for engine in ALL_ENGINES if not any(group.startswith(engine) for group in failed)} == engines


def test_tables_of_rope_are_passed_over(tmp_path: Path) -> None:
    """Older trainers save them; every engine computes its own."""
    directory = write_case(tmp_path / "draft", CASE)
    put_tensors(directory, {**tensors_of(directory), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(5)})
    assert passing(directory, "C2") == set(ALL_ENGINES)


def test_quantisation_is_promised_or_not(tmp_path: Path) -> None:
    """A config copied from the target's: the engines would build quantised tensors and find none."""
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, quantization_config={"quant_method": "fp8"})
    told = check_draft(directory, ["sglang@0.5.23"], QUESTION)
    assert told.verdict is Verdict.FAIL
    assert any("quantization_config beside plain weights" in check.message for check in told.checks)
    tensors = tensors_of(directory)
    tensors["midlayer.mlp.up_proj.weight"] = tensors["midlayer.mlp.up_proj.weight"].to(torch.float8_e4m3fn)
    put_tensors(directory, tensors)
    assert {check.verdict for check in check_draft(directory, ["vllm"], QUESTION).checks if check.id == "C2"} == {
        Verdict.UNKNOWN
    }


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
POSITIONS: list[tuple[dict[str, Any], set[str]]] = [
    # (what the config says, the engines that turn positions so)
    ({"rope_scaling": YARN}, SGLANG | VLLM),
    ({"rope_scaling": {"type": "su", "factor": 4.0}}, set()),
    ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, VLLM),
    ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, set(ALL_ENGINES)),
    (
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        set(ALL_ENGINES) - OLD_READER,
    ),
    ({"rope_parameters": YARN}, (SGLANG | VLLM) - OLD_READER),
    (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        SGLANG | VLLM,
    ),
]


@pytest.mark.parametrize(("changes", "engines"), POSITIONS)
def test_positions_are_turned_as_the_engine_reads_them(
    tmp_path: Path, changes: dict[str, Any], engines: set[str]
) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, **changes)
    assert passing(directory, "C7") == engines


def test_scaled_positions_reach_further(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, max_position_embeddings=256, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert passing(directory, "C8") == set(ALL_ENGINES)
    edit_config(directory, rope_scaling=None)
    assert passing(directory, "C8") == set()
    edit_config(directory, max_position_embeddings=512, model_max_length=100)  # SGLang reads older names first
    assert passing(directory, "C8") == set(ALL_ENGINES) - SGLANG


def test_an_empty_list_captures_nothing_in_sglang(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", replace(CASE, layers=[2, 7, 11]))
    question = Question(target=CASE.target)
    key = "eagle_aux_hidden_state_layer_ids"
    for written, verdict in ({}, Verdict.PASS), ({key: []}, Verdict.FAIL):
        edit_config(directory, eagle_config=written)
        told = [check for check in check_draft(directory, ["sglang@0.5.20"], question).checks if check.id == "C5"]
        assert [check.verdict for check in told] == [verdict]


def test_a_width_that_heads_do_not_divide_is_refused_by_transformers(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", llama_case(hidden=20, target_hidden=20))
    assert passing(directory, "C1") == {"reference", "sglang@0.5.9"}


NO_CONFIG: list[tuple[dict[str, Any], set[str]]] = [
    # (what no class of transformers takes, the engines that stop)
    ({"tie_word_embeddings": None}, (SGLANG | VLLM) - OLD_READER),
    ({"num_hidden_layers": "1"}, (SGLANG | VLLM) - OLD_READER),
    ({"rms_norm_eps": 1}, (SGLANG | VLLM) - OLD_READER),
    ({"eos_token_id": ["2"]}, (SGLANG | VLLM) - OLD_READER),
    ({"layer_types": ["full_attention"] * 14}, (SGLANG | VLLM) - OLD_READER),  # a target's list
    ({"layer_types": ["some_attention"]}, (SGLANG | VLLM) - OLD_READER),
    ({"torch_dtype": "bf16"}, SGLANG | VLLM),
    ({"rope_scaling": {"rope_type": "linear"}}, SGLANG | VLLM),
    ({"rope_scaling": "linear"}, SGLANG | VLLM),
    ({"quantization_config": []}, SGLANG | VLLM),
    ({"eos_token_id": [1, 2], "pad_token_id": None, "head_dim": 10, "use_cache": False, "rope_theta": 10000}, set()),
]


@pytest.mark.parametrize(("changes", "stopped"), NO_CONFIG)
def test_types_that_transformers_refuses_are_found(tmp_path: Path, changes: dict[str, Any], stopped: set[str]) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, **changes)
    assert passing(directory, "C1") == set(ALL_ENGINES) - stopped


PARTIAL: list[tuple[dict[str, Any], set[str]]] = [
    ({"partial_rotary_factor": 0.5}, SGLANG | VLLM),
    ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, VLLM),
    ({"partial_rotary_factor": "x"}, set()),
    ({"partial_rotary_factor": 1.0}, set(ALL_ENGINES)),
]


@pytest.mark.parametrize(("changes", "engines"), PARTIAL)
def test_a_share_of_turned_channels(tmp_path: Path, changes: dict[str, Any], engines: set[str]) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, **changes)
    assert passing(directory, "C7") == engines


CLASSES = [
    ("Eagle3Qwen3vlForCausalLM", Verdict.PASS),
    ("LlamaForCausalLM", Verdict.PASS),  # vLLM puts Eagle3 before it
    ("Eagle3Qwen3ForCausalLM", Verdict.UNKNOWN),
    ("Eagle3MistralForCausalLM", Verdict.FAIL),
]


@pytest.mark.parametrize(("architecture", "verdict"), CLASSES)
def test_vllm_has_more_classes_than_sglang(tmp_path: Path, architecture: str, verdict: Verdict) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, architectures=[architecture])
    verdicts = found(directory, "C1")
    assert {verdicts[engine] for engine in VLLM} == {verdict}
    assert {verdicts[engine] for engine in SGLANG} == {Verdict.FAIL}


@pytest.mark.parametrize("model_type", ["glm4_moe_lite", "glm_moe_dsa"])
def test_models_built_on_deepseeks_class_shift_as_it_does(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": model_type, "hidden_size": 24, "num_hidden_layers": 61, "vocab_size": 64,
                    "max_position_embeddings": 512})
    )  # fmt: skip
    target = TargetFacts.read(tmp_path)
    directory = write_case(tmp_path / "draft", Case(CASE.spec, target, [2, 30, 58]))
    told = check_draft(directory, ["sglang@0.5.20"], Question(target=target))
    assert [check.evidence["captured"] for check in told.checks if check.id == "C5"] == [[2, 30, 58]]


ODD_TARGETS: list[tuple[str, list[int] | None, str, list[int]]] = [
    ("gpt_oss", [2, 7, 14], "sglang@0.5.20", [2, 7, 14]),  # a list that ends with the number of layers is kept
    ("gpt_oss", [1, 6, 10], "sglang@0.5.20", [2, 7, 11]),
    ("gpt_oss", [2, 7, 14], "sglang@0.5.16", [3, 8, 15]),
    ("minimax_m3_vl", None, "sglang@0.5.23", [3, 8, 12]),  # its default is shifted too
    ("llama", None, "sglang@0.5.23", [2, 7, 11]),
]


@pytest.mark.parametrize(("model_type", "written", "engine", "captured"), ODD_TARGETS)
def test_targets_that_count_in_their_own_way(
    tmp_path: Path, model_type: str, written: list[int] | None, engine: str, captured: list[int]
) -> None:
    directory = write_case(tmp_path / "draft", CASE)
    edit_config(directory, eagle_config={"eagle_aux_hidden_state_layer_ids": written} if written else {})
    question = Question(layers=tuple(captured), target=replace(CASE.target, model_type=model_type))
    told = [check for check in check_draft(directory, [engine], question).checks if check.id == "C5"]
    assert [check.evidence["captured"] for check in told] == [captured]
    assert [check.verdict is Verdict.PASS for check in told] == [captured[-1] <= 14]


def test_a_target_without_capture_is_told(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", kimi_case())
    target = replace(kimi_case().target, model_type="kimi_vl")
    told = check_draft(directory, ["sglang@0.5.23"], Question(target=target))
    assert "cannot capture states of a kimi_vl target" in " ".join(check.message for check in told.checks)
