"""The packaged directory: complete, repeatable, whole or absent, and what a real library sees in it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from draft_cases import SPEC, make_vocab, random_rows, write_target
from safetensors.torch import load_file, save_file

from k25stack.draft.directory import replacing_directory, sweep
from k25stack.draft.model import DraftModel
from k25stack.draft.package import program
from k25stack.draft.vocab import vocab_hash
from k25stack.draft.weights import held_mask, load_draft
from k25stack.errors import DamageError, UsageError
from k25stack.worker import Spec

LAYERS = [2, 4, 6]
META = {
    "engine": "k25stack-reference",
    "engine_version": "0.1.0",
    "layers": LAYERS,
    "template_hash": "t" * 64,
    "target_revision": "r1",
    "decode": {"kind": "greedy"},
}


def step(root: Path, **changes: object) -> Spec:
    """A packaging step over a small trained draft; ``changes`` go into its params."""
    target = write_target(root / "target")
    inputs = {"target": target, "vocab": make_vocab(root, target, random_rows())}
    inputs |= {"states": root / "states", "train": root / "train"}
    for name in ("states", "train"):
        inputs[name].mkdir(exist_ok=True)
    (inputs["states"] / "manifest.json").write_text(json.dumps({"schema": 1, "meta": META, "shards": []}))
    weights = dict(DraftModel(SPEC).init_random(5).named_parameters())
    save_file({name: tensor.detach() for name, tensor in weights.items()}, inputs["train"] / "best.safetensors")
    predicted = {"accept_length": 1.7, "interval": [1.6, 1.8], "survival_uniform": 1.8, "rounds": 2000}
    figures = {
        "epochs": 3,
        "train": {"tok_s": time.time(), "steps": 9},
        "coverage": {"held_out": 0.5},
        "predicted": {**predicted, "verify_rule": "greedy"},
    }
    (inputs["train"] / "result.json").write_text(json.dumps(figures))
    out = root / "draft" / "out"
    out.mkdir(parents=True, exist_ok=True)
    params = {"spec": SPEC.as_dict(), "layers": LAYERS, "k": 3, "random": False, "seed": 4, "target_family": "llama"}
    return Spec({**params, **changes}, inputs, out, 1)


def test_a_trained_draft_is_packaged_bit_for_bit(tmp_path: Path) -> None:
    spec = step(tmp_path)
    result = program(spec)
    assert sorted(child.name for child in spec.out.iterdir()) == ["config.json", "k25stack.json", "model.safetensors"]
    tensors = load_file(spec.out / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == SPEC.tensors()
    for name, tensor in DraftModel(SPEC).init_random(5).named_parameters():
        assert torch.equal(tensors[name], tensor.to(torch.bfloat16))
    vocab = load_file(spec.inputs["vocab"] / "vocab.safetensors")
    assert torch.equal(tensors["d2t"], vocab["d2t"])
    assert torch.equal(tensors["t2d"], vocab["t2d"])
    assert result["parameters"] == SPEC.parameters()
    assert load_draft(spec.out).spec == SPEC


def test_the_record_names_every_origin(tmp_path: Path) -> None:
    spec = step(tmp_path)
    program(spec)
    record = json.loads((spec.out / "k25stack.json").read_text())
    assert record["canonical_layers"] == LAYERS
    assert record["target"] == {"name": "small", "revision": "r1", "family": "llama", "context": 512}
    assert record["engine"] == {"name": "k25stack-reference", "version": "0.1.0"}
    assert record["predicted"]["accept_length"] == 1.7
    assert record["predicted"]["verify_rule"] == "greedy"
    assert record["training"]["epochs"] == 3
    assert record["training"]["train"] == {"steps": 9}  # no timings: they differ from run to run
    assert record["decode"] == {"kind": "greedy"}
    assert 0 < record["coverage"]["by_split"]["held_out"] <= 1


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = step(tmp_path / "a"), step(tmp_path / "b")
    program(first)
    program(second)
    program(second)  # over an earlier result
    for name in ("config.json", "model.safetensors", "k25stack.json"):
        assert (first.out / name).read_bytes() == (second.out / name).read_bytes()


def test_the_random_control_is_what_the_module_makes(tmp_path: Path) -> None:
    spec = step(tmp_path, random=True)
    program(spec)
    expected = DraftModel(SPEC).init_random(4).to(torch.bfloat16)
    loaded = load_draft(spec.out)
    assert all(torch.equal(own, expected.state_dict()[name]) for name, own in loaded.named_parameters())
    record = json.loads((spec.out / "k25stack.json").read_text())
    assert (record["random"], record["training"], record["predicted"]) == (True, None, None)


def test_transformers_reads_the_config(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="part of the train extra")
    spec = step(tmp_path)
    program(spec)
    config = transformers.AutoConfig.from_pretrained(spec.out)
    assert config.model_type == "llama"
    assert config.rope_parameters["rope_theta"] == SPEC.rope_theta
    assert config.eagle_aux_hidden_state_layer_ids == [2, 4, 6]
    assert config.eagle_config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert config.draft_vocab_size == SPEC.draft_vocab


@pytest.mark.parametrize("family", ["kimi_k25", "deepseek_v3"])
def test_the_family_of_a_kimi_target_decides_the_lists(tmp_path: Path, family: str) -> None:
    spec = step(tmp_path, target_family=family)
    write_target(spec.inputs["target"], model_type=family)
    program(spec)
    config = json.loads((spec.out / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == LAYERS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": [2, 4, 5]}, "the states hold"),
        ({"layers": [2, 4]}, "the states hold"),
        ({"target_family": "deepseek"}, "target_family is deepseek"),
        ({"spec": {**SPEC.as_dict(), "draft_vocab": 30}}, "lm_head.weight"),
        ({"spec": {**SPEC.as_dict(), "intermediate": 41}}, "midlayer.mlp"),
        ({"spec": {**SPEC.as_dict(), "target_vocab": 121}}, "t2d"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    spec = step(tmp_path, **change)
    with pytest.raises((UsageError, DamageError), match=message):
        program(spec)
    assert list(spec.out.iterdir()) == []
    assert [child.name for child in spec.out.parent.iterdir() if child.name.endswith(".part")] == []


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    spec = step(tmp_path)
    file = spec.inputs["train"] / "best.safetensors"
    tensors = load_file(file)
    tensors["norm.weight"][3] = float("nan")
    save_file(tensors, file)
    with pytest.raises(DamageError, match=r"norm.weight holds NaN"):
        program(spec)
    assert list(spec.out.iterdir()) == []


def test_the_vocabulary_that_was_trained_is_shipped(tmp_path: Path) -> None:
    spec = step(tmp_path)
    file = spec.inputs["train"] / "best.safetensors"
    shifted = torch.ones(SPEC.draft_vocab, dtype=torch.int64)
    save_file({**load_file(file), "d2t": shifted, "t2d": held_mask(shifted, SPEC.target_vocab)}, file)
    program(spec)
    assert load_draft(spec.out).target_ids().tolist() == list(range(1, SPEC.draft_vocab + 1))
    record = json.loads((spec.out / "k25stack.json").read_text())
    assert record["vocab_hash"] == vocab_hash(range(1, SPEC.draft_vocab + 1))
    assert record["coverage"]["by_split"] == {"held_out": 0.5}  # the training's own, not the other vocabulary's


def test_a_trained_vocabulary_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    spec = step(tmp_path)
    file = spec.inputs["train"] / "best.safetensors"
    shifted = torch.ones(SPEC.draft_vocab, dtype=torch.int64)
    save_file({**load_file(file), "d2t": shifted, "t2d": held_mask(shifted + 1, SPEC.target_vocab)}, file)
    with pytest.raises(DamageError, match="different target ids"):
        program(spec)


def test_a_directory_that_is_no_draft_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    with pytest.raises(UsageError, match=r"thesis.txt"), replacing_directory(tmp_path / "home"):
        pass
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years"


def test_what_a_killed_try_left_is_swept(tmp_path: Path) -> None:
    spec = step(tmp_path)
    (spec.out.parent / ".out.abc123.part").mkdir()
    (spec.out.parent / ".out.abc123.part" / "model.safetensors").write_bytes(b"half")
    program(spec)
    assert sorted(child.name for child in spec.out.parent.iterdir()) == ["out", "progress.json"]


def test_an_error_leaves_the_earlier_draft(tmp_path: Path) -> None:
    spec = step(tmp_path)
    program(spec)
    before = (spec.out / "model.safetensors").read_bytes()
    with pytest.raises(RuntimeError), replacing_directory(spec.out) as part:
        (part / "model.safetensors").write_bytes(b"half")
        raise RuntimeError
    assert (spec.out / "model.safetensors").read_bytes() == before
    assert sorted(child.name for child in spec.out.parent.iterdir()) == ["out", "progress.json"]


def test_what_a_killed_try_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    """A conversion of 2.4 GB that is killed must not cost 2.4 GB of disk for ever."""
    out = tmp_path / "draft"
    stale = tmp_path / ".draft.abc.part"
    stale.mkdir()
    (stale / "model.safetensors").write_bytes(b"half")
    with replacing_directory(out) as other:  # a second process at the same place, seen from the first
        assert not stale.exists()
        (other / "config.json").write_text("{}")
        sweep(out)
        assert other.exists()
    assert [child.name for child in tmp_path.iterdir()] == ["draft"]


def test_a_draft_that_another_process_wrote_meanwhile_stays(tmp_path: Path) -> None:
    out = tmp_path / "draft"
    with pytest.raises(UsageError, match="another process"), replacing_directory(out) as part:
        (part / "config.json").write_text("ours")
        with replacing_directory(out) as other:
            (other / "config.json").write_text("theirs")
    assert (out / "config.json").read_text() == "theirs"
    assert [child.name for child in tmp_path.iterdir()] == ["draft"]


def test_the_earlier_draft_comes_back_when_a_try_died_between_its_renames(tmp_path: Path) -> None:
    out = tmp_path / "draft"
    for place, text in ((tmp_path / ".draft.abc.old", "earlier"), (tmp_path / ".draft.abc.part", "later")):
        place.mkdir()
        (place / "config.json").write_text(text)
    sweep(out)
    assert (out / "config.json").read_text() == "earlier"
    assert [child.name for child in tmp_path.iterdir()] == ["draft"]
