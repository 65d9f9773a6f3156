"""Weights in and out of files, and drafts that start from a target or from another draft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from draft_cases import LAYERS, SPEC, VOCAB, write_target
from safetensors.torch import load_file, save_file

from k25stack.draft.config import config_json
from k25stack.draft.model import DraftModel
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.draft.weights import held_mask, init_from_draft, init_from_target, load_draft, save_portable
from k25stack.errors import DamageError, UsageError


def model_with_ids(ids: list[int], seed: int = 0, spec: DraftSpec = SPEC) -> DraftModel:
    model = DraftModel(spec).init_random(seed)
    model.d2t = torch.tensor(ids) - torch.arange(len(ids))
    model.t2d = held_mask(model.d2t, spec.target_vocab)
    return model


def write_draft_dir(directory: Path, model: DraftModel, target: Path) -> Path:
    config = config_json(model.spec, TargetFacts.read(target), [2, 4, 6])
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_portable(directory / "model.safetensors", model.spec, model.state_dict(), {"format": "pt"})
    return directory


def big_target(root: Path, prefix: str = "", tied: bool = False) -> Path:
    """A target whose layers have the draft's attention and MLP sizes."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    h, q, kv, ffn = SPEC.hidden, SPEC.heads * SPEC.head_dim, SPEC.kv_heads * SPEC.head_dim, SPEC.intermediate
    tensors = {"model.embed_tokens.weight": normal(VOCAB, h), "model.norm.weight": normal(h)}
    if not tied:
        tensors["lm_head.weight"] = normal(VOCAB, h)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "self_attn.q_proj.weight": normal(q, h),
            name + "self_attn.k_proj.weight": normal(kv, h),
            name + "self_attn.v_proj.weight": normal(kv, h),
            name + "self_attn.o_proj.weight": normal(h, q),
            name + "post_attention_layernorm.weight": normal(h),
            name + "mlp.gate_proj.weight": normal(ffn, h),
            name + "mlp.up_proj.weight": normal(ffn, h),
            name + "mlp.down_proj.weight": normal(h, ffn),
        }
    target = write_target(root / "target")
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


IDS = list(range(0, 64, 2))
OTHER_IDS = list(range(0, 96, 3))


def test_a_draft_survives_its_file(tmp_path: Path) -> None:
    model = model_with_ids(IDS).to(torch.bfloat16)
    directory = write_draft_dir(tmp_path / "draft", model, write_target(tmp_path / "target"))
    loaded = load_draft(directory)
    assert loaded.spec == SPEC
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert loaded.target_ids().tolist() == IDS
    # the public library reads the same bits
    assert torch.equal(load_file(directory / "model.safetensors")["fc.weight"], model.fc.weight)


def test_other_spellings_and_a_shipped_embedding_load_too(tmp_path: Path) -> None:
    model = model_with_ids(IDS).to(torch.bfloat16)
    directory = write_draft_dir(tmp_path / "draft", model, write_target(tmp_path / "target"))
    tensors = load_file(directory / "model.safetensors")
    renamed = {name.replace("midlayer.", "model.layers.0."): tensor for name, tensor in tensors.items()}
    save_file({**renamed, "embed_tokens.weight": torch.zeros(VOCAB, 24)}, directory / "model.safetensors")
    assert torch.equal(load_draft(directory).midlayer.mlp.up_proj.weight, model.midlayer.mlp.up_proj.weight)


@pytest.mark.parametrize("what", ["missing", "extra", "shape", "twice"])
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, what: str) -> None:
    directory = write_draft_dir(tmp_path / "draft", model_with_ids(IDS), write_target(tmp_path / "target"))
    tensors = load_file(directory / "model.safetensors")
    if what == "missing":
        del tensors["midlayer.hidden_norm.weight"]
    elif what == "extra":
        tensors["midlayer.extra.weight"] = torch.zeros(3)
    elif what == "shape":
        tensors["fc.weight"] = tensors["fc.weight"].T.contiguous()
    else:
        tensors["layers.0.hidden_norm.weight"] = torch.ones(24)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(DamageError, match="tensor"):
        load_draft(directory)


def test_a_file_that_the_index_leaves_out_is_not_read(tmp_path: Path) -> None:
    """Both engines pass over it without a word; so does what trains and scores here."""
    model = model_with_ids(IDS).to(torch.bfloat16)
    directory = write_draft_dir(tmp_path / "draft", model, write_target(tmp_path / "target"))
    (directory / "model.safetensors").rename(directory / "part.safetensors")
    save_file({"fc.weight": torch.zeros(24, 72)}, directory / "older.safetensors")
    names = load_file(directory / "part.safetensors")
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "part.safetensors")})
    )
    assert torch.equal(load_draft(directory).fc.weight, model.fc.weight)


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    directory = write_draft_dir(tmp_path / "draft", model_with_ids(IDS), write_target(tmp_path / "target"))
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UsageError, match="pickles"):
        load_draft(directory)


@pytest.mark.parametrize(("prefix", "tied"), [("", False), ("", True), ("language_model.", False)])
def test_init_from_target_takes_norm_and_head_rows(tmp_path: Path, prefix: str, tied: bool) -> None:
    target = big_target(tmp_path, prefix, tied)
    theirs = {name.removeprefix(prefix): t for name, t in load_file(target / "model.safetensors").items()}
    model = model_with_ids(IDS)
    before = model.midlayer.self_attn.q_proj.weight.clone()
    assert sorted(init_from_target(model, target)) == ["lm_head.weight", "norm.weight"]
    head = theirs["model.embed_tokens.weight" if tied else "lm_head.weight"]
    assert torch.equal(model.lm_head.weight, head[IDS])
    assert torch.equal(model.norm.weight, theirs["model.norm.weight"])
    assert torch.equal(model.midlayer.self_attn.q_proj.weight, before)


def test_init_from_a_target_layer_fills_the_state_half(tmp_path: Path) -> None:
    target = big_target(tmp_path)
    theirs = load_file(target / "model.safetensors")
    model = model_with_ids(IDS)
    before = model.midlayer.self_attn.q_proj.weight.clone()
    filled = init_from_target(model, target, layer=5)
    assert len(filled) == 10
    assert torch.equal(model.midlayer.mlp.down_proj.weight, theirs["model.layers.5.mlp.down_proj.weight"])
    q = model.midlayer.self_attn.q_proj.weight
    assert torch.equal(q[:, 24:], theirs["model.layers.5.self_attn.q_proj.weight"])
    assert torch.equal(q[:, :24], before[:, :24])


def test_init_from_a_target_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no final norm and head"):
        init_from_target(DraftModel(DraftSpec(16, 2, 2, 8, 20, 32, VOCAB)).init_random(0), big_target(tmp_path))


def test_init_from_another_draft_keeps_shared_rows(tmp_path: Path) -> None:
    other = model_with_ids(OTHER_IDS, seed=1).to(torch.bfloat16)
    directory = write_draft_dir(tmp_path / "other", other, write_target(tmp_path / "target"))
    model = model_with_ids(IDS, seed=2)
    own_head = model.lm_head.weight.clone()
    match = init_from_draft(model, directory, counts=dict.fromkeys(IDS, 1))
    shared = sorted(set(IDS) & set(OTHER_IDS))
    assert match.shared == len(shared)
    assert match.coverage == pytest.approx(len(shared) / len(IDS))
    assert torch.equal(model.fc.weight, other.fc.weight.float())
    for token in IDS:
        place = IDS.index(token)
        expected = other.lm_head.weight[OTHER_IDS.index(token)].float() if token in shared else own_head[place]
        assert torch.equal(model.lm_head.weight[place], expected)


@pytest.mark.parametrize("change", [{"intermediate": 48}, {"rope_theta": 5e4}, {"norm_output": True}])
def test_a_draft_of_other_sizes_or_mathematics_is_refused(tmp_path: Path, change: dict) -> None:
    other = model_with_ids(OTHER_IDS, spec=DraftSpec(**{**SPEC.as_dict(), **change}))
    directory = write_draft_dir(tmp_path / "other", other, write_target(tmp_path / "target"))
    with pytest.raises(UsageError):
        init_from_draft(model_with_ids(IDS), directory)
