"""Where training starts: from nothing, from the target, from a foreign draft with another vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import DRAFT_VOCAB, HIDDEN, SPEC, VOCAB, params, write_inputs
from twin_draft import SPEC as TWIN_SPEC
from twin_draft import make_twin

from k25stack.draft.config import config_json
from k25stack.draft.model import DraftModel
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.draft.weights import held_mask, save_portable
from k25stack.errors import UsageError
from k25stack.states.reader import States, open_states
from k25stack.train.config import TrainConfig
from k25stack.train.init import SOFT_START, Start, channel_rms, first_weights, frozen_tensors
from k25stack.train.weights import Frozen, from_portable, to_portable

LAYERS = (2, 4, 5)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_target_dir: Path) -> dict[str, Path]:
    found = write_inputs(
        tmp_path_factory.mktemp("inputs"), tiny_target_dir, {"train": 6, "validation": 1, "held_out": 1}
    )
    return {name: Path(path) for name, path in found.items()}


def start(inputs: dict[str, Path], **changes: Any) -> tuple[Start, Frozen, States]:
    config = TrainConfig.from_params(params(dtype="float32", **changes))
    states = open_states(inputs["states"])
    frozen = frozen_tensors(config, inputs["target"], inputs["vocab"], channel_rms(states), "post")
    return first_weights(config, frozen, states, inputs["target"]), frozen, states


def foreign(directory: Path, target: Path, ids: torch.Tensor, **changes: Any) -> Path:
    """A draft package of the same shape over other target ids, all of whose weights are recognisable."""
    spec = DraftSpec.from_dict({**SPEC, "draft_vocab": len(ids), **changes})
    model = DraftModel(spec).init_random(77)
    model.d2t = ids - torch.arange(len(ids))
    model.t2d = held_mask(model.d2t, VOCAB)
    with torch.no_grad():
        model.lm_head.weight.copy_(ids[:, None].expand(-1, HIDDEN))  # the row of id i holds i
    directory.mkdir()
    save_portable(directory / "model.safetensors", spec, model.state_dict(), {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config_json(spec, TargetFacts.read(target), LAYERS)))
    return directory


def test_portable_round_trip() -> None:
    twin = make_twin()
    rms = twin.frozen.channel_rms.double()
    back = from_portable(to_portable(TWIN_SPEC, twin.values, rms), rms)
    for name, value in twin.values.items():
        torch.testing.assert_close(back[name], value)


def test_scratch_has_the_targets_norm_and_head(inputs: dict[str, Path]) -> None:
    begun, frozen, _ = start(inputs)
    target = load_file(inputs["target"] / "model.safetensors")
    assert torch.equal(begun.weights["head"], target["model.embed_tokens.weight"][:DRAFT_VOCAB].float())
    assert torch.equal(begun.weights["norm_out"], target["model.norm.weight"].float() * SOFT_START)
    assert torch.equal(frozen.teacher, begun.weights["head"])
    for name in ("fc", "qkv_embed", "qkv_state", "o", "gate_up", "down"):
        assert begun.weights[name].std() == pytest.approx(0.02, rel=0.1)
    assert begun.remapped is None


def test_channel_scale_is_the_rms_of_the_train_split(inputs: dict[str, Path]) -> None:
    states = open_states(inputs["states"])
    aux = torch.cat([document.aux for document in states.documents("train")]).double()
    rms = channel_rms(states)
    torch.testing.assert_close(rms.double(), aux.square().mean(0).sqrt(), rtol=1e-5, atol=0)
    assert rms[-HIDDEN:].mean() > 10 * rms[:HIDDEN].mean()  # the fixture's late layer is larger


def test_target_passes_the_last_state_to_its_own_layer(inputs: dict[str, Path]) -> None:
    begun, frozen, _ = start(inputs, spec={**SPEC, "intermediate": 160}, init="target")
    portable = to_portable(DraftSpec.from_dict({**SPEC, "intermediate": 160}), begun.weights, frozen.channel_rms)
    target = load_file(inputs["target"] / "model.safetensors")
    aux = torch.randn(4, 3 * HIDDEN)
    torch.testing.assert_close(aux @ portable["fc.weight"].T, aux[:, -HIDDEN:])
    layer = "model.layers.5."
    for part in ("mlp.down_proj", "mlp.gate_proj", "self_attn.o_proj"):
        assert torch.equal(portable[f"midlayer.{part}.weight"], target[f"{layer}{part}.weight"].float())
    state_half = portable["midlayer.self_attn.q_proj.weight"][:, HIDDEN:]
    assert torch.equal(state_half, target[layer + "self_attn.q_proj.weight"].float())


def test_foreign_draft_remapped(tmp_path: Path, inputs: dict[str, Path]) -> None:
    """Half of the rows are shared: those are the foreign ones, the others the target's."""
    directory = foreign(tmp_path / "draft", inputs["target"], torch.arange(24, 24 + DRAFT_VOCAB))
    begun, frozen, _ = start(inputs, init=str(directory))
    tensors = load_file(directory / "model.safetensors")
    shared = torch.arange(24, DRAFT_VOCAB)
    assert torch.equal(begun.weights["head"][shared], shared[:, None].expand(-1, HIDDEN).float())
    assert torch.equal(begun.weights["head"][:24], frozen.teacher[:24])
    portable = to_portable(DraftSpec.from_dict(SPEC), begun.weights, frozen.channel_rms)
    torch.testing.assert_close(portable["fc.weight"], tensors["fc.weight"].float())
    assert torch.equal(portable["midlayer.mlp.up_proj.weight"], tensors["midlayer.mlp.up_proj.weight"].float())
    assert begun.remapped is not None
    assert (begun.remapped["shared"], begun.remapped["dropped"]) == (24, 24)
    assert 0 <= begun.remapped["coverage"] <= 1


def test_foreign_vocabulary_kept(tmp_path: Path, inputs: dict[str, Path]) -> None:
    ids = torch.arange(100, 100 + DRAFT_VOCAB)
    directory = foreign(tmp_path / "draft", inputs["target"], ids)
    begun, frozen, _ = start(inputs, init=str(directory), vocab_map="keep")
    assert torch.equal(frozen.target_ids, ids)
    assert torch.equal(begun.weights["head"], ids[:, None].expand(-1, HIDDEN).float())


def test_foreign_draft_of_another_kind_is_refused(tmp_path: Path, inputs: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="norm_output"):
        start(inputs, init=str(foreign(tmp_path / "a", inputs["target"], torch.arange(48), norm_output=True)))
    with pytest.raises(UsageError, match="use its sizes"):
        start(inputs, init=str(foreign(tmp_path / "b", inputs["target"], torch.arange(48), intermediate=100)))
    with pytest.raises(UsageError, match="make spec and vocabulary agree"):
        directory = foreign(tmp_path / "c", inputs["target"], torch.arange(60))
        start(inputs, init=str(directory), vocab_map="keep")
