"""Every format reads into one function and one set of bits; what would change the mathematics is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import convert_cases as cases
import pytest
import torch
from convert_cases import IDS, KIMI, LAYERS, LLAMA, SPEC, WRITERS, put, write_target
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from k25stack.draft.convert import Request, convert
from k25stack.draft.formats import FORMATS, Hints, read_config
from k25stack.draft.inspect import inspect_draft
from k25stack.draft.spec import PRESETS, DraftSpec
from k25stack.draft.target import read_object
from k25stack.errors import DamageError, K25Error, UsageError

RECORD_OF_THE_WAY = ("files", "format", "converted")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


def contents(directory: Path) -> tuple[dict[str, Any], bytes]:
    return json.loads((directory / "config.json").read_text()), (directory / "model.safetensors").read_bytes()


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_becomes_the_same_portable_draft(tmp_path: Path, target: Path, name: str) -> None:
    """Four trainers' directories of the same weights: one portable directory, to the byte."""
    source = WRITERS[name](tmp_path / name)
    convert(source, tmp_path / "out", Request("portable", format="specforge" if name == "specforge" else None,
                                              target=target))  # fmt: skip
    plain = cases.portable(tmp_path / "ours")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    config, wanted = contents(tmp_path / "out")[0], contents(plain)[0]
    assert config == wanted
    assert list(config) == list(wanted)
    assert json.loads((tmp_path / "out" / "k25stack.json").read_text())["canonical_layers"] == LAYERS


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators", "specforge"])
@pytest.mark.parametrize("family", ["llama", "deepseek"])
def test_a_round_trip_is_the_identity(tmp_path: Path, to: str, family: str) -> None:
    target = LLAMA if family == "llama" else KIMI
    source = cases.portable(tmp_path / "ours", target=target)
    convert(source, tmp_path / to, Request(to))
    convert(tmp_path / to, tmp_path / "back", Request("portable"))
    assert contents(tmp_path / "back") == contents(source)
    before, after = (json.loads((place / "k25stack.json").read_text()) for place in (source, tmp_path / "back"))
    kept = {name: value for name, value in before.items() if name not in RECORD_OF_THE_WAY}
    assert kept == {name: value for name, value in after.items() if name not in RECORD_OF_THE_WAY}


@pytest.mark.parametrize("to", ["vllm", "specforge"])
def test_a_trainers_own_draft_comes_back(tmp_path: Path, target: Path, to: str) -> None:
    """speculators -> another format -> speculators: the same tensors, the frozen embedding too, the same function."""
    source = cases.speculators(tmp_path / "source")
    convert(source, tmp_path / "there", Request(to, target=target))
    convert(tmp_path / "there", tmp_path / "back", Request("speculators", target=target))
    assert same_bits(load_file(source / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors"))
    told = [read_config(read_object(place / "config.json"), None, "", Hints()) for place in (source, tmp_path / "back")]
    assert told[0].function == told[1].function
    assert told[0].layers == told[1].layers
    back = read_object(tmp_path / "back" / "config.json")
    assert back["speculators_config"]["verifier"]["name_or_path"] == "small"


@st.composite
def specs(draw: st.DrawFn) -> DraftSpec:
    kv, group, half = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    draft = draw(st.integers(2, 24))
    eps, theta = draw(st.sampled_from([1e-5, 1e-6])), draw(st.sampled_from([1e4, 5e4, 1e6]))
    return DraftSpec(draw(st.integers(2, 24)), kv * group, kv, 2 * half, draw(st.integers(1, 40)), draft,
                     draft + draw(st.integers(0, 30)), rms_eps=eps, rope_theta=theta,
                     max_position=draw(st.integers(1, 99)))  # fmt: skip


@given(specs(), st.sampled_from(["sglang", "vllm", "speculators", "specforge"]), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_any_small_draft_converts_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, spec: DraftSpec, to: str, seed: int
) -> None:
    root = tmp_path_factory.mktemp("trip")
    facts = replace(LLAMA, hidden=spec.hidden, vocab=spec.target_vocab, context=1)
    source = cases.portable(root / "ours", spec, seed, facts)
    convert(source, root / to, Request(to))
    convert(root / to, root / "back", Request("portable"))
    assert contents(root / "back") == contents(source)


REFUSED: list[tuple[str, dict[str, Any], Request, str]] = [
    ("speculators", {"norm_before_residual": True}, Request("sglang"), "norm_before_residual is on"),
    ("speculators", {"norm_before_residual": True}, Request("specforge"), "norm_before_residual is on"),
    ("speculators", {"norm_before_residual": None}, Request("vllm"), "norm_before_residual is left out"),
    ("speculators", {"norm_before_fc": True, "fc_norm": True}, Request("vllm"), "both on"),
    ("speculators", {"norm_before_fc": True}, Request("specforge"), "norm_before_fc"),
    ("speculators", {"norm_output": True}, Request("specforge"), "norm_output"),
    ("speculators", {"embed_requires_grad": True}, Request("sglang"), "embedding was trained"),
    ("speculators", {"speculators_model_type": "dflash"}, Request("portable"), "only eagle3"),
    ("speculators", {"draft_vocab_size": "16"}, Request("portable"), "not of type int"),
    ("speculators", {"transformer_layer_config": None}, Request("portable"), "transformer_layer_config"),
    ("specforge", {"norm_output": False}, Request("portable", format="specforge"), "without the final norm"),
    ("specforge", {"norm_output": True}, Request("portable"), "--from specforge"),
    ("specforge", {"hidden_act": "gelu"}, Request("portable"), "hidden_act"),
    ("specforge", {"num_hidden_layers": 2}, Request("portable"), "num_hidden_layers"),
    ("specforge", {"attention_bias": True}, Request("portable"), "attention_bias"),
    ("specforge", {"eagle_config": {"use_aux_hidden_state": False}}, Request("portable"), "last layer alone"),
    ("specforge", {"eagle_config": {IDS: ["1", "5", "8"]}}, Request("portable"), "whole numbers"),
    ("modelopt", {"vocab_size": 65}, Request("portable"), "the target has"),
    ("modelopt", {"intermediate_size": 40}, Request("portable"), "the config says"),
    ("modelopt", {}, Request("gguf"), "cannot write the format"),
    ("modelopt", {}, Request("portable", window=512), "full attention"),
]


@pytest.mark.parametrize(("source", "changes", "request_", "message"), REFUSED)
def test_what_would_change_the_mathematics_is_refused(
    tmp_path: Path, target: Path, source: str, changes: dict[str, Any], request_: Request, message: str
) -> None:
    directory = WRITERS[source](tmp_path / "source", **changes)  # type: ignore[call-arg]
    with pytest.raises(K25Error, match=message):
        convert(directory, tmp_path / "out", replace(request_, target=target))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_normed_residual_is_kept_for_vllm(tmp_path: Path, target: Path) -> None:
    source = cases.speculators(tmp_path / "source", norm_before_residual=True)
    convert(source, tmp_path / "out", Request("vllm", target=target))
    config = read_object(tmp_path / "out" / "config.json")
    assert config["norm_before_residual"] is True
    assert config[IDS] == LAYERS


@pytest.mark.parametrize("switch", ["norm_before_fc", "fc_norm"])
def test_norms_before_fc_travel_with_their_tensors(tmp_path: Path, target: Path, switch: str) -> None:
    source = cases.speculators(tmp_path / "source", **{switch: True})
    convert(source, tmp_path / "out", Request("portable", target=target))
    assert read_object(tmp_path / "out" / "config.json")[switch] is True
    extra = {"norm_before_fc": {"input_norm.weight"}, "fc_norm": {f"fc_norm.{i}.weight" for i in range(3)}}[switch]
    assert extra < set(load_file(tmp_path / "out" / "model.safetensors"))


def test_a_window_needs_the_served_one(tmp_path: Path, target: Path) -> None:
    source = cases.speculators(tmp_path / "source")
    config = read_object(source / "config.json")
    config["transformer_layer_config"] |= {"layer_types": ["sliding_attention"], "sliding_window": 2048}
    (source / "config.json").write_text(json.dumps(config))
    for window in (None, 1024):
        with pytest.raises(UsageError, match="a window of 2048"):
            convert(source, tmp_path / "out", Request("sglang", target=target, window=window))
    done = convert(source, tmp_path / "out", Request("sglang", target=target, window=2048))
    assert any("--speculative-draft-window-size 2048" in note for note in done["notes"])
    convert(source, tmp_path / "vllm", Request("vllm", target=target))
    written = read_object(tmp_path / "vllm" / "config.json")
    assert (written["layer_types"], written["sliding_window"]) == (["sliding_attention"], 2048)


def test_a_latent_attention_draft_is_converted_for_the_engines(tmp_path: Path) -> None:
    source = cases.modelopt_mla(tmp_path / "source")
    target = write_target(tmp_path / "target", KIMI)
    for to in ("portable", "sglang", "vllm"):
        convert(source, tmp_path / to, Request(to, target=target))
    config = read_object(tmp_path / "portable" / "config.json")
    assert config["model_type"] == "deepseek_v2"  # vLLM sizes a kimi_k2 draft wrongly and takes deepseek_v3 for MTP
    assert config[IDS] == config["eagle_config"][IDS] == [2, 30, 58]
    assert config["moe_layer_freq"] == 1
    report = inspect_draft(tmp_path / "portable")
    assert report["kv_bytes_per_token"] == (6 + 4) * 2
    assert all(tensor["portable"] for tensor in report["tensors"])
    with pytest.raises(UsageError, match="MLA"):
        convert(source, tmp_path / "no", Request("speculators", target=target))
    windowed = {**read_object(source / "config.json"), "sliding_window": 64, "layer_types": ["sliding_attention"]}
    (source / "config.json").write_text(json.dumps(windowed))
    with pytest.raises(UsageError, match="neither engine's MLA draft has one"):
        convert(source, tmp_path / "no", Request("sglang", target=target, window=64))


def test_inspect_reads_every_format(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        report = inspect_draft(write(tmp_path / name))
        assert report["parameters"] == SPEC.parameters()
        assert report["format"] == ("sglang" if name == "specforge" else name)  # nothing in it says SpecForge
    two = inspect_draft(cases.specforge(tmp_path / "two", num_hidden_layers=2))
    assert two["kv_bytes_per_token"] == 2 * report["kv_bytes_per_token"]
    special = inspect_draft(cases.specforge(tmp_path / "biased", attention_bias=True))
    assert "attention_bias" in special["special"]


def test_a_list_of_outputs_on_kimi_must_be_explained(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", KIMI)
    source = cases.specforge(tmp_path / "source", eagle_config={IDS: [3, 29, 57], "use_aux_hidden_state": True})
    with pytest.raises(UsageError, match="captures outputs, SGLang inputs"):
        convert(source, tmp_path / "out", Request("portable", format="specforge", target=target))
    convert(source, tmp_path / "out", Request("portable", format="specforge", target=target, layers=(3, 29, 57)))
    assert read_object(tmp_path / "out" / "config.json")[IDS] == [3, 29, 57]


@pytest.mark.parametrize("name", ["speculators", "specforge", "modelopt"])
def test_left_out_layers_are_the_default_of_the_target(tmp_path: Path, target: Path, name: str) -> None:
    source = WRITERS[name](tmp_path / "source", **{IDS: None})  # type: ignore[call-arg]
    config = read_object(source / "config.json")
    config.get("eagle_config", {}).pop(IDS, None)
    (source / "config.json").write_text(json.dumps(config))
    form = name if name == "specforge" else None
    convert(source, tmp_path / "out", Request("portable", format=form, target=target))
    assert read_object(tmp_path / "out" / "config.json")[IDS] == [2, 7, 11]
    with pytest.raises(UsageError, match=r"which layers|depends on the target"):
        convert(source, tmp_path / "other", Request("vllm", format=form))


def test_a_full_vocabulary_loses_its_identity_maps_only(tmp_path: Path, target: Path) -> None:
    spec = replace(SPEC, draft_vocab=64)
    source = cases.specforge(tmp_path / "source", spec)
    convert(source, tmp_path / "out", Request("portable", format="specforge", target=target))
    assert not {"d2t", "t2d"} & set(load_file(tmp_path / "out" / "model.safetensors"))
    tensors = load_file(source / "model.safetensors")
    tensors["d2t"][3] = 1
    put(source, read_object(source / "config.json"), tensors)
    with pytest.raises(DamageError, match="moves ids"):
        convert(source, tmp_path / "other", Request("portable", format="specforge", target=target))


@pytest.mark.parametrize(
    ("name", "message"),
    [("lm_head.weight", "borrows the target's"), ("d2t", "no d2t"), ("fc.weight", "is missing")],
)
def test_a_missing_tensor_is_named(tmp_path: Path, target: Path, name: str, message: str) -> None:
    source = cases.portable(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    del tensors[name]
    put(source, read_object(source / "config.json"), tensors)
    with pytest.raises(K25Error, match=message):
        convert(source, tmp_path / "out", Request("sglang", target=target))


@pytest.mark.parametrize("how", ["absolute", "one id moved", "extra tensor", "twice"])
def test_broken_tensors_are_named(tmp_path: Path, target: Path, how: str) -> None:
    source = cases.portable(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    if how == "absolute":
        tensors["d2t"] = torch.nonzero(tensors["t2d"]).flatten()
    elif how == "one id moved":
        ids = torch.nonzero(tensors["t2d"]).flatten()
        tensors["t2d"][ids[2]], tensors["t2d"][int((~tensors["t2d"]).nonzero()[0])] = False, True
    elif how == "extra tensor":
        tensors["midlayer.self_attn.q_norm.weight"] = torch.ones(8, dtype=torch.bfloat16)
    else:
        tensors["layers.0.mlp.up_proj.weight"] = tensors["midlayer.mlp.up_proj.weight"].clone()
    put(source, read_object(source / "config.json"), tensors)
    with pytest.raises(DamageError, match=r"T5|name different|no tensor of this draft|are one tensor"):
        convert(source, tmp_path / "out", Request("sglang", target=target))


def test_never_in_place_and_never_over_other_things(tmp_path: Path) -> None:
    source = cases.portable(tmp_path / "source")
    before = contents(source)
    for out in (source, source / "inner", tmp_path / "source" / ".." / "source"):
        with pytest.raises(UsageError, match="may not be the source"):
            convert(source, out, Request("sglang"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    for request in (Request("sglang"), Request("sglang", replace=True)):
        with pytest.raises(UsageError, match=r"exists already|holds mine.txt"):
            convert(source, tmp_path / "notes", request)
    convert(source, tmp_path / "out", Request("sglang"))
    with pytest.raises(UsageError, match="exists already"):
        convert(source, tmp_path / "out", Request("vllm"))
    convert(source, tmp_path / "out", Request("vllm", replace=True))
    assert read_object(tmp_path / "out" / "k25stack.json")["format"] == "vllm"
    assert contents(source) == before
    assert convert(source, tmp_path / "dry", Request("vllm"), dry=True)["tensors"] == 15
    assert not (tmp_path / "dry").exists()


def test_pickles_are_read_without_code(tmp_path: Path, target: Path) -> None:
    source = cases.portable(tmp_path / "source")
    expected = (source / "model.safetensors").read_bytes()
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    torch.save({"state_dict": tensors}, source / "pytorch_model.bin")
    with pytest.raises(UsageError, match="is a pickle"):
        convert(source, tmp_path / "out", Request("portable", target=target))
    convert(source, tmp_path / "out", Request("portable", target=target, pickle=True))
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == expected

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({**tensors, "fc.weight": Trap()}, source / "pytorch_model.bin")
    with pytest.raises(DamageError, match="plain tensors"):
        convert(source, tmp_path / "other", Request("portable", target=target, pickle=True))
    assert not (tmp_path / "ran").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "target"]


GARBAGE = [
    ("config.json", b"\x00\xff"), ("config.json", b"[]"), ("config.json", b'{"hidden_size": NaN}'),
    ("model.safetensors", b"short"), ("model.safetensors", b"\x80\x04pickle"), ("k25stack.json", b"{"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), GARBAGE)
def test_garbage_is_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    source = cases.portable(tmp_path / "source")
    (source / name).write_bytes(content)
    with pytest.raises(K25Error):
        convert(source, tmp_path / "out", Request("portable"))
    assert not (tmp_path / "out").exists()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from(["portable", "speculators", "specforge", "modelopt"]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_value_in_any_key_is_read_or_refused(name: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    source = tmp_path_factory.mktemp("any") / "draft"
    WRITERS[name](source)
    config = read_object(source / "config.json")
    holder = config
    if data.draw(st.booleans()):
        holder = config.get("transformer_layer_config") or config["eagle_config"]
    holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(json_values)
    for form in (None, *FORMATS):
        try:
            read_config(config, None, "config", Hints(form, None, "llama", 14))
        except K25Error as error:
            assert str(error)


def sparse_draft(directory: Path) -> Path:
    """2.4 GB of weights as holes in a file: Kimi's draft, with a real vocabulary map."""
    spec = PRESETS["kimi-k2.5"]
    facts = replace(KIMI, hidden=7168, vocab=163840, context=262144)
    from k25stack.draft.config import config_json
    from k25stack.draft.vocab import maps
    from k25stack.model.tensorfile import ITEM_BYTES

    directory.mkdir()
    config = config_json(spec, facts, [2, 30, 58])
    (directory / "config.json").write_text(json.dumps(config))
    d2t, t2d = maps(list(range(0, 5 * spec.draft_vocab, 5)), spec.target_vocab)
    types = {"d2t": "I64", "t2d": "BOOL"}
    order = ["d2t", *spec.weights(), "t2d"]
    table, place = {}, 0
    for name in order:
        shape = spec.tensors()[name]
        size = torch.Size(shape).numel() * ITEM_BYTES[types.get(name, "BF16")]
        table[name] = {"dtype": types.get(name, "BF16"), "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(table).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + d2t.tobytes())
        file.seek(8 + len(text) + table["t2d"]["data_offsets"][0])
        file.write(t2d)
    return directory


def test_a_dry_run_of_full_size_reads_little_and_needs_no_torch(tmp_path: Path) -> None:
    """Everything but the copy: under 300 MB, from the header and the maps alone."""
    source = sparse_draft(tmp_path / "big")
    code = (
        "import sys; from pathlib import Path; from k25stack.draft.convert import *; "
        f"d = make_plan(Path({str(source)!r}), Request('speculators', layers=(2, 30, 58))); "
        "assert 'torch' not in sys.modules; "
        "up = next(part for part in d.parts if part.name == 'layers.0.mlp.up_proj.weight'); "
        "print(sum(len(piece) for piece in up.pieces)); "
        "print(*(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    size, peak_kb = map(int, done.stdout.split())
    assert size == 2 * 18432 * 7168  # a 264 MB tensor went by in pieces
    assert peak_kb < 150_000
