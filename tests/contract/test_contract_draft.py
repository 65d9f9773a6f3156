"""Good drafts pass for every listed engine; each known trap is found by its own check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_cases import (
    ALL_ENGINES,
    ENGINES,
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
from k25stack.contract.finding import Check, Result, Verdict
from k25stack.draft.config import config_json
from k25stack.draft.spec import PRESETS, size
from k25stack.draft.target import TargetFacts
from k25stack.draft.vocab import maps
from k25stack.errors import UsageError
from k25stack.model.tensorfile import ITEM_BYTES


def judge(directory: Path, case: Case, engines: list[str] = ENGINES, **question: Any) -> Result:
    return check_draft(directory, engines, Question(target=case.target, **question))


def failing(result: Result, verdict: Verdict = Verdict.FAIL) -> dict[tuple[str, str], Check]:
    return {(check.id, check.group): check for check in result.checks if check.verdict is verdict}


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Path, Case]:
    case = llama_case()
    return write_case(tmp_path / "draft", case), case


@pytest.mark.parametrize("deep", [False, True])
def test_a_good_draft_passes_everywhere(llama: tuple[Path, Case], deep: bool) -> None:
    result = judge(*llama, engines=ALL_ENGINES, deep=deep)
    assert [check for check in result.checks if check.verdict is not Verdict.PASS] == []
    assert {check.id for check in result.checks} == {f"C{n}" for n in range(10)}


def test_a_good_kimi_draft_passes_where_kimi_can_be_captured(tmp_path: Path) -> None:
    case = kimi_case()
    directory = write_case(tmp_path / "draft", case)
    assert judge(directory, case).verdict is Verdict.PASS
    old = failing(judge(directory, case, ["sglang@0.5.9"]))
    assert "cannot capture" in old["C5", "sglang@0.5.9"].message


def test_a_full_vocabulary_draft_ships_no_map(tmp_path: Path) -> None:
    case = llama_case(draft_vocab=64)
    directory = write_case(tmp_path / "draft", case)
    assert judge(directory, case).verdict is Verdict.PASS
    tensors = {**tensors_of(directory), "d2t": torch.zeros(64, dtype=torch.int64)}
    put_tensors(directory, tensors)
    failed = failing(judge(directory, case))
    assert {("C4", "vllm@0.31.0"), ("C4", "reference@0.1.0")} == {key for key in failed if key[0] == "C4"}
    assert ("C2", "vllm@0.31.0") in failed
    assert ("C2", "sglang@0.5.20") not in failed


TRAPS = [
    # (what is changed in config.json, the check that must fail, in which groups)
    ({"architectures": ["Eagle3LlamaForCausalLM"]}, "C1", ["reference@0.1.0", "sglang@0.5.20"]),
    ({"architectures": ["Eagle3Speculator"], "speculators_config": {}}, "C1", ["sglang@0.5.20", "vllm@0.31.0"]),
    ({"architectures": "LlamaForCausalLMEagle3"}, "C1", ["sglang@0.5.20"]),
    ({"model_type": "kimi_k2"}, "C1", ["vllm@0.31.0"]),
    ({"draft_vocab_size": ...}, "C3", ["sglang@0.5.20"]),
    ({"draft_vocab_size": None}, "C3", ["sglang@0.5.20"]),
    ({"tie_word_embeddings": True}, "C3", ["sglang@0.5.20"]),
    ({"target_hidden_size": None}, "C6", ["sglang@0.5.20", "vllm@0.31.0"]),
    ({"target_hidden_size": 40}, "C6", ["sglang@0.5.20"]),
    ({"norm_before_residual": True}, "C7", ["sglang@0.5.20", "reference@0.1.0"]),
    ({"hidden_act": "gelu"}, "C7", ["sglang@0.5.20", "vllm@0.31.0"]),
    ({"attention_bias": True}, "C7", ["sglang@0.5.20"]),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "C7", ["reference@0.1.0"]),
    ({"max_position_embeddings": 100}, "C8", ["sglang@0.5.20"]),
    ({"intermediate_size": 40}, "C2", ENGINES[1:]),
    ({"num_aux_hidden_states": 2}, "C2", ENGINES[1:]),
    ({"rope_theta": 5e5}, "C9", ["files"]),
    ({"vocab_size": 65}, "C6", ["files"]),
    ({"hidden_size": "24"}, "C0", ["files"]),
    ({"num_attention_heads": None}, "C0", ["files"]),
    ({"eagle_config": None}, "C5", ["sglang@0.5.20"]),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "C5", ["sglang@0.5.20", "vllm@0.31.0"]),
    ({"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}, "C5", ["vllm@0.31.0", "reference@0.1.0"]),
    ({"eagle_aux_hidden_state_layer_ids": ["2", "6", "9"]}, "C5", ["vllm@0.31.0"]),
    ({"eagle_aux_hidden_state_layer_ids": [2, 6, True]}, "C5", ["vllm@0.31.0"]),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}}, "C5", ["sglang@0.5.20"]),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,5,8"}}, "C5", ["sglang@0.5.20"]),
]


@pytest.mark.parametrize(("changes", "check", "groups"), TRAPS)
def test_a_trap_in_the_config_is_found(
    llama: tuple[Path, Case], changes: dict[str, Any], check: str, groups: list[str]
) -> None:
    directory, case = llama
    edit_config(directory, **changes)
    failed = failing(judge(directory, case))
    for group in groups:
        assert (check, group) in failed, sorted(failed)
        assert failed[check, group].fix


def test_each_engine_is_judged_by_the_list_it_reads(tmp_path: Path) -> None:
    case = kimi_case()
    directory = write_case(tmp_path / "draft", case, record=False)
    edit_config(directory, eagle_aux_hidden_state_layer_ids=...)
    result = judge(directory, case, layers=(2, 30, 58))
    # runner V1 falls back to the nested list, V2 to the default, which happens to be the same three layers
    paths = {
        check.evidence["path"]: check for check in result.checks if check.group == "vllm@0.31.0" and check.id == "C5"
    }
    assert paths["runner V1"].evidence["read_from"] == "eagle_config.eagle_aux_hidden_state_layer_ids"
    assert paths["runner V2"].evidence["read_from"] == "nowhere"
    assert paths["runner V2"].verdict is Verdict.PASS
    other = judge(directory, case, layers=(3, 30, 58))
    assert {check.group for check in failing(other).values()} >= {"sglang@0.5.20", "vllm@0.31.0"}


@pytest.mark.parametrize(
    ("engine", "written", "captured"),
    [
        ("sglang@0.5.20", [1, 29, 57], [2, 30, 58]),
        ("sglang@0.5.20", [2, 30, 58], [2, 30, 58]),
        ("sglang@0.5.20", [3, 29, 57], [3, 29, 57]),
        ("vllm@0.31.0", [1, 29, 57], [1, 29, 57]),
    ],
)
def test_captured_layers_on_kimi(tmp_path: Path, engine: str, written: list[int], captured: list[int]) -> None:
    case = kimi_case()
    directory = write_case(tmp_path / "draft", case)
    key = "eagle_aux_hidden_state_layer_ids"
    edit_config(directory, **{key: written, "eagle_config": {key: written}})
    found = [check for check in judge(directory, case, [engine]).checks if check.id == "C5"]
    assert all(check.evidence["captured"] == captured for check in found)
    assert all((check.verdict is Verdict.PASS) == (captured == [2, 30, 58]) for check in found)


def test_without_any_word_on_layers_the_verdict_is_unknown(tmp_path: Path) -> None:
    case = llama_case()
    directory = write_case(tmp_path / "draft", case, record=False)
    result = judge(directory, case)
    assert result.verdict is Verdict.UNKNOWN
    assert judge(directory, case, layers=(2, 6, 9)).verdict is Verdict.WARN  # no record: origin unknown


def break_map(tensors: dict[str, torch.Tensor], how: str) -> None:
    ids = torch.nonzero(tensors["t2d"]).flatten()
    if how == "absolute":
        tensors["d2t"] = ids.clone()
    elif how == "one off":
        tensors["d2t"][5] += 1
    elif how == "short":
        tensors["d2t"] = tensors["d2t"][:-1].clone()
    elif how == "int32":
        tensors["d2t"] = tensors["d2t"].to(torch.int32)
    elif how == "t2d as bytes":
        tensors["t2d"] = tensors["t2d"].to(torch.uint8)
    elif how == "t2d longer":
        tensors["t2d"] = torch.cat((tensors["t2d"], torch.tensor([True])))
    elif how == "swapped pair":
        t2d = tensors["t2d"]
        t2d[ids[3]], t2d[int((~t2d).nonzero()[0])] = False, True
    elif how == "no d2t":
        del tensors["d2t"]
    else:
        tensors["d2t"] = tensors["d2t"] - 100


@pytest.mark.parametrize(
    "how",
    ["absolute", "one off", "short", "int32", "t2d as bytes", "t2d longer", "swapped pair", "no d2t", "negative"],
)
def test_a_broken_map_is_found(llama: tuple[Path, Case], how: str) -> None:
    directory, case = llama
    tensors = tensors_of(directory)
    break_map(tensors, how)
    put_tensors(directory, tensors)
    (directory / "k25stack.json").unlink()
    result = judge(directory, case, layers=(2, 6, 9))
    assert {check.id for check in failing(result).values()} & {"C0", "C2", "C4"}
    if how == "absolute":
        assert "T5" in failing(result)["C4", "files"].message


def test_a_missing_head_is_trap_three(llama: tuple[Path, Case]) -> None:
    directory, case = llama
    tensors = tensors_of(directory)
    del tensors["lm_head.weight"]
    put_tensors(directory, tensors)
    failed = failing(judge(directory, case))
    assert "T3" in failed["C3", "sglang@0.5.20"].message
    assert "27829" in failed["C3", "sglang@0.5.20"].source


def test_old_names_lose_the_layer_in_the_old_engine_only(llama: tuple[Path, Case]) -> None:
    directory, case = llama
    put_tensors(directory, {name.replace("midlayer", "layers.0"): t for name, t in tensors_of(directory).items()})
    failed = failing(judge(directory, case, ALL_ENGINES))
    assert {group for check, group in failed if check == "C2"} == {"sglang@0.5.9"}
    assert len(failed["C2", "sglang@0.5.9"].evidence["dropped"]) == 10


def test_weights_altered_after_packaging(llama: tuple[Path, Case]) -> None:
    directory, case = llama
    data = bytearray((directory / "model.safetensors").read_bytes())
    data[-3000] ^= 1  # a weight, not a map
    (directory / "model.safetensors").write_bytes(data)
    assert judge(directory, case).verdict is Verdict.PASS  # contents are not read
    assert ("C9", "files") in failing(judge(directory, case, deep=True))


def test_states_of_other_layers_are_found(llama: tuple[Path, Case], tmp_path: Path) -> None:
    directory, case = llama
    (tmp_path / "states").mkdir()
    meta = {"layers": [2, 6, 9], "hidden": 24, "target_revision": "r1"}
    (tmp_path / "states" / "manifest.json").write_text(json.dumps({"schema": 1, "meta": meta}))
    assert judge(directory, case, states=tmp_path / "states").verdict is Verdict.PASS
    (tmp_path / "states" / "manifest.json").write_text(json.dumps({"schema": 1, "meta": {**meta, "layers": [1, 5, 8]}}))
    assert "layers" in failing(judge(directory, case, states=tmp_path / "states"))["C9", "files"].message


def test_an_unlisted_version_says_so(llama: tuple[Path, Case]) -> None:
    result = judge(*llama, engines=["sglang@0.5.21"])
    assert result.verdict is Verdict.WARN
    assert "judged as 0.5.20" in failing(result, Verdict.WARN)["C0", "sglang@0.5.21"].message


def test_no_directory_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        check_draft(tmp_path / "nowhere", ENGINES)


@pytest.fixture
def mla(tmp_path: Path) -> tuple[Path, Case]:
    """A draft with latent attention on Kimi."""
    case = kimi_case()
    directory = write_case(tmp_path / "draft", case, record=False)
    ranks = {"q_lora_rank": 10, "kv_lora_rank": 6, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    edit_config(directory, architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="deepseek_v2", **ranks)
    tensors = {name: t for name, t in tensors_of(directory).items() if "self_attn" not in name}
    attention = {
        "q_a_proj": (10, 48),
        "q_a_layernorm": (10,),
        "q_b_proj": (72, 10),
        "kv_a_proj_with_mqa": (10, 48),
        "kv_a_layernorm": (6,),
        "kv_b_proj": (96, 6),
        "o_proj": (24, 48),
    }
    for name, shape in attention.items():
        tensors[f"midlayer.self_attn.{name}.weight"] = torch.zeros(shape, dtype=torch.bfloat16)
    put_tensors(directory, tensors)
    return directory, case


MLA_ENGINES = ["sglang@0.5.16", "sglang@0.5.20", "sglang@0.5.23", "vllm@0.31.0", "vllm@0.33.0"]


def test_the_switches_of_an_mla_draft_are_its_own_classes(mla: tuple[Path, Case]) -> None:
    """SGLang's MLA class sizes fc by the lists of ids, lends its head, and has no window; nor has vLLM's."""
    directory, case = mla

    def failed(check: str) -> set[str]:
        found = failing(judge(directory, case, MLA_ENGINES, layers=(2, 30, 58)))
        return {group for name, group in found if name == check}

    sglang, key = set(MLA_ENGINES[:3]), "eagle_aux_hidden_state_layer_ids"
    edit_config(directory, sliding_window=64, layer_types=["sliding_attention"])
    assert failed("C7") == set(MLA_ENGINES)
    edit_config(directory, sliding_window=..., layer_types=..., attention_bias=True)
    assert failed("C7") == set(MLA_ENGINES)
    edit_config(
        directory, attention_bias=False, num_aux_hidden_states=..., eagle_config={}, **{key: [2, 20, 30, 40, 58]}
    )
    assert failed("C2") == sglang  # five states by the top-level list, while the nested one decides what is captured
    edit_config(directory, **{key: [2, 30, 58]}, draft_vocab_size=...)
    assert failed("C3") == sglang  # its own head would be replaced
    edit_config(directory, target_hidden_size=None)
    assert failed("C6") == set(MLA_ENGINES[3:])
    edit_config(directory, target_hidden_size=24, vocab_size=16)
    tensors = tensors_of(directory)
    for name in ("lm_head.weight", "d2t", "t2d"):
        del tensors[name]
    put_tensors(directory, tensors)
    assert failed("C3") == set()


def test_an_mla_draft_is_judged_by_its_own_table(mla: tuple[Path, Case]) -> None:
    directory, case = mla
    engines = ["sglang@0.5.20", "vllm@0.31.0"]
    assert failing(judge(directory, case, engines, layers=(2, 30, 58))) == {}
    tensors = tensors_of(directory)
    del tensors["midlayer.self_attn.kv_b_proj.weight"]
    put_tensors(directory, tensors)
    assert ("C2", "sglang@0.5.20") in failing(judge(directory, case, engines, layers=(2, 30, 58)))
    # transformers knows no kimi_k2, and vLLM sizes such a draft's cache wrongly
    edit_config(directory, model_type="kimi_k2")
    assert ("C1", "vllm@0.31.0") in failing(judge(directory, case, engines, layers=(2, 30, 58)))


def test_checking_needs_no_torch(llama: tuple[Path, Case], tmp_path: Path) -> None:
    directory, _ = llama
    program = (
        "import sys; from pathlib import Path; from k25stack.contract.draft import check_draft\n"
        f"result = check_draft(Path({str(directory)!r}), {ENGINES!r})\n"
        "print(result.verdict.value, sorted({'torch', 'numpy', 'transformers', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "pass []"


def test_a_draft_of_full_size_is_judged_by_a_few_bytes(tmp_path: Path) -> None:
    """2.4 GB of weights, as holes in the file: under 2 MB are read."""
    spec = PRESETS["kimi-k2.5"]
    target = TargetFacts("kimi_k25", "deepseek", 7168, 61, 163840, 262144, (163585,))
    (tmp_path / "config.json").write_text(json.dumps(config_json(spec, target, [2, 30, 58])))
    d2t, t2d = maps(list(range(0, 5 * spec.draft_vocab, 5)), spec.target_vocab)
    types = {"d2t": "I64", "t2d": "BOOL"}
    sizes = {name: size(shape) * ITEM_BYTES[types.get(name, "BF16")] for name, shape in spec.tensors().items()}
    order = ["d2t", *spec.weights(), "t2d"]
    begin = {name: sum(sizes[earlier] for earlier in order[:place]) for place, name in enumerate(order)}
    table = {
        name: {
            "dtype": types.get(name, "BF16"),
            "shape": list(spec.tensors()[name]),
            "data_offsets": [begin[name], begin[name] + sizes[name]],
        }
        for name in order
    }
    text = json.dumps(table).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + d2t.tobytes())
        file.seek(8 + len(text) + begin["t2d"])
        file.write(t2d)

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])  # rchar

    question = Question(layers=(2, 30, 58), target=target)
    check_draft(tmp_path, ENGINES, question)  # the rules are loaded now
    before = bytes_read()
    result = check_draft(tmp_path, ENGINES, question)
    assert bytes_read() - before < 2_000_000
    assert (tmp_path / "model.safetensors").stat().st_size > 2_380_000_000
    assert {check.id for check in result.checks if check.verdict is not Verdict.PASS} == {"C9"}  # no record


def test_a_copied_directory_is_the_same_draft(llama: tuple[Path, Case], tmp_path: Path) -> None:
    directory, case = llama
    shutil.copytree(directory, tmp_path / "copy")
    assert judge(tmp_path / "copy", case, deep=True).verdict is Verdict.PASS


@pytest.mark.parametrize("engine", ["sglang@0.5.9", "sglang@0.5.20", "vllm@0.31.0", "reference"])
@pytest.mark.parametrize("family", ["llama", "deepseek"])
def test_the_list_that_a_fix_names_is_the_one_that_mends_it(tmp_path: Path, engine: str, family: str) -> None:
    """The fix of C5 is typed into the config as it stands, and the check passes."""
    kimi = replace(kimi_case().target, model_type="deepseek_v3")
    case = llama_case() if family == "llama" else replace(kimi_case(), target=kimi)
    directory = write_case(tmp_path / "draft", case)
    for wrong in ([3, 4, 5], [6, 9, 2], [2, 2, 9], [0, 6, 9], [2, 6, 999]):
        edit_config(directory, eagle_aux_hidden_state_layer_ids=wrong,
                    eagle_config={"eagle_aux_hidden_state_layer_ids": wrong})  # fmt: skip
        found = check_draft(directory, [engine], Question(layers=tuple(case.layers), target=case.target))
        told = next(check for check in found.checks if check.id == "C5" and check.verdict is Verdict.FAIL)
        assert told.fix.startswith('write "')
        edit_config(directory, **json.loads("{" + told.fix.removeprefix("write ") + "}"))
        found = check_draft(directory, [engine], Question(layers=tuple(case.layers), target=case.target))
        assert {check.verdict for check in found.checks if check.id == "C5"} == {Verdict.PASS}


def test_layers_that_no_list_captures_are_told_so(tmp_path: Path) -> None:
    directory = write_case(tmp_path / "draft", kimi_case())
    found = check_draft(directory, ["sglang@0.5.20"], Question(layers=(1, 30, 58), target=kimi_case().target))
    told = next(check for check in found.checks if check.id == "C5")
    assert told.verdict is Verdict.FAIL
    assert "no list captures [1, 30, 58]" in told.fix
