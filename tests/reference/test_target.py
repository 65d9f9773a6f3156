"""The target against Hugging Face, and its forms of forward pass against each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_llama import hf_states, write_llama
from safetensors.torch import load_file, save_file
from torch import Tensor

from k25stack.errors import DamageError, UsageError
from k25stack.reference import linear
from k25stack.reference.exact import shape_exact
from k25stack.reference.target import Target, common_prefix, top_ids

ALL = tuple(range(7))  # every canonical id of the six-layer target


def text(count: int, seed: int = 0) -> Tensor:
    return torch.randint(4, 500, (count,), generator=torch.Generator().manual_seed(seed))


def whole(target: Target, ids: Tensor) -> Tensor:
    """States of all layers and the last, side by side [T, 8H], from one packed prefill."""
    out = target.prefill_packed(ids, torch.tensor([0, len(ids)]), ALL)
    return torch.cat([out.aux, out.last], -1)


def stepped(target: Target, ids: Tensor, rows: int) -> Tensor:
    """The same from ``rows`` tokens at a time through a cache."""
    cache, slot = target.new_cache(2, len(ids)), torch.tensor([1])
    outs = [
        target.forward(ids[None, begin : begin + rows], cache, slot, torch.tensor([begin]), ALL)
        for begin in range(0, len(ids), rows)
    ]
    return torch.cat([torch.cat([out.aux[0], out.last[0]], -1) for out in outs])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def close(target: Target, a: Tensor, b: Tensor) -> bool:
    """Equal to the bit where the machine allows it, else to the type's rounding."""
    if target.dtype == torch.bfloat16 and shape_exact(target):
        return torch.equal(a, b)
    return relative(a, b) < (1e-5 if target.dtype == torch.float32 else 0.03)


# -- against Hugging Face


def test_states_and_logits_are_hugging_faces_in_float32(target32: Target, tiny_target_dir: Path) -> None:
    ids = text(150)
    hidden, logits = hf_states(tiny_target_dir, ids, torch.float32)
    out = target32.prefill_packed(ids, torch.tensor([0, 150]), ALL)
    aux = out.aux.view(150, 7, -1)
    for layer in range(6):  # canonical id i is hidden_states[i], the input of layer i
        assert relative(aux[:, layer], hidden[layer]) < 1e-5
    assert relative(out.last, hidden[6]) < 1e-5  # Hugging Face's last entry is after the final norm
    assert relative(target32.logits(out.last), logits) < 1e-5
    assert torch.equal(target32.argmax(out.last), logits.argmax(-1))


def test_bf16_is_as_near_to_float32_as_hugging_faces_bf16(target16: Target, tiny_target_dir: Path) -> None:
    ids = text(150)
    truth, _ = hf_states(tiny_target_dir, ids, torch.float32)
    theirs, _ = hf_states(tiny_target_dir, ids, torch.bfloat16)
    ours = target16.prefill_packed(ids, torch.tensor([0, 150]), ALL)
    aux = ours.aux.view(150, 7, -1)
    for layer in range(1, 6):
        assert relative(aux[:, layer], truth[layer]) < 1.2 * relative(theirs[layer], truth[layer]) < 0.05
    assert relative(ours.last, truth[6]) < 1.2 * relative(theirs[6], truth[6])


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 24},  # a scale that is no power of two
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},  # no grouping
        {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 300},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    ],
    ids=["scale", "untied", "ungrouped", "wide", "rope"],
)
def test_other_shapes_are_hugging_faces(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_llama(tmp_path, changes)
    ids = text(40) % 300
    hidden, logits = hf_states(tmp_path, ids, torch.float32)
    target = Target.load(tmp_path, dtype=torch.float32)
    out = target.prefill_packed(ids, torch.tensor([0, 40]), (1, 2))
    assert relative(out.aux, torch.cat([hidden[1], out.aux[:, target.config.hidden :]], -1)) < 1e-5
    assert relative(out.last, hidden[2]) < 1e-5
    assert relative(target.logits(out.last), logits) < 1e-5


# -- forms of one forward pass


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 70])
@pytest.mark.parametrize("dtype", ["target32", "target16"])
def test_cache_and_packed_agree(dtype: str, rows: int, request: pytest.FixtureRequest) -> None:
    target: Target = request.getfixturevalue(dtype)
    ids = text(210)
    assert close(target, stepped(target, ids, rows), whole(target, ids))


def test_packed_documents_see_only_themselves(target16: Target) -> None:
    ids = text(300)
    alone = [whole(target16, part) for part in torch.split(ids, [130, 1, 40, 129])]
    out = target16.prefill_packed(ids, torch.tensor([0, 130, 131, 171, 300]), ALL)
    assert close(target16, torch.cat([out.aux, out.last], -1), torch.cat(alone))


def test_a_common_beginning_is_computed_once(target16: Target) -> None:
    ids = text(200)
    texts = [ids[:150], torch.cat([ids[:50], text(60, seed=1)])]
    prefix = target16.prefix(ids[:50], ALL)
    tails = torch.cat([part[50:] for part in texts])
    offsets = torch.tensor([0, 100, 160])
    wanted = torch.cat([whole(target16, part)[50:] for part in texts])
    out = target16.prefill_packed(tails, offsets, ALL, prefix=prefix)
    assert close(target16, torch.cat([out.aux, out.last], -1), wanted)
    cache = target16.new_cache(3, 160)
    cached = target16.prefill_packed(tails, offsets, ALL, cache, [2, 0], prefix)
    assert torch.equal(cached.aux, out.aux)
    following = target16.forward(ids[None, 150:151], cache, torch.tensor([2]), torch.tensor([150]), ALL)
    assert close(target16, following.aux[0], whole(target16, ids[:151])[150:, : following.aux.shape[-1]])


def test_a_smaller_start_rolls_back(target16: Target) -> None:
    ids, wrong = text(64), text(64, seed=1)
    wanted = stepped(target16, ids, 4)
    cache, slot = target16.new_cache(2, 70), torch.tensor([1])
    for begin in range(0, 60, 4):
        mixed = torch.cat([ids[begin : begin + 2], wrong[begin + 2 : begin + 6]])[None]
        target16.forward(mixed, cache, slot, torch.tensor([begin]))
        target16.forward(ids[None, begin : begin + 4], cache, slot, torch.tensor([begin]))
    out = target16.forward(ids[None, 60:], cache, slot, torch.tensor([60]), ALL)
    assert torch.equal(torch.cat([out.aux[0], out.last[0]], -1), wanted[60:])


@pytest.mark.parametrize("dtype", ["target32", "target16"])
def test_at_one_shape_a_row_depends_on_nothing_else(dtype: str, request: pytest.FixtureRequest) -> None:
    """What the engine's same-rows mode rests on: bits do not depend on the other rows, the slot or the row's index."""
    target: Target = request.getfixturevalue(dtype)
    ids = text(36)

    def run(others: int, slots: list[int], at: int, shift: int) -> Tensor:
        """States of token 35, ``shift`` tokens into a verify row at batch index ``at``."""
        cache = target.new_cache(6, 200, whole=True)
        start = torch.tensor([5 + 2 * row for row in range(4)])
        start[at] = 35 - shift
        for row, slot in enumerate(slots):
            context = ids if row == at else text(36, seed=others + row)
            target.prefill_packed(context, torch.tensor([0, 36]), (), cache, [slot])
        batch = torch.stack([text(4, seed=others + 9 + row) for row in range(4)])
        batch[at, : shift + 1] = ids[35 - shift :]
        out = target.forward(batch, cache, torch.tensor(slots), start, ALL)
        return torch.cat([out.aux[at, shift], out.last[at, shift]])

    wanted = run(others=100, slots=[0, 1, 2, 3], at=0, shift=0)
    assert torch.equal(run(others=200, slots=[0, 1, 2, 3], at=0, shift=0), wanted)
    assert torch.equal(run(others=200, slots=[5, 2, 0, 1], at=3, shift=0), wanted)
    assert torch.equal(run(others=300, slots=[5, 2, 0, 1], at=2, shift=3), wanted)


# -- head and products


@pytest.mark.parametrize("vocab", [300, 512, 1000])
def test_argmax_takes_the_lowest_id_of_equal_logits(vocab: int) -> None:
    logits = torch.randint(-4, 3, (50, vocab), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    assert torch.equal(top_ids(logits), logits.float().argmax(-1))
    assert torch.equal(top_ids(torch.full((2, vocab), -torch.inf)), torch.zeros(2, dtype=torch.int64))


def test_without_the_private_operators_the_products_are_the_same_up_to_rounding(
    target16: Target, tiny_target_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "prepacks", lambda: False)
    plain = Target.load(tiny_target_dir)
    ids = text(60)
    assert relative(whole(plain, ids), whole(target16, ids)) < 0.03


@pytest.mark.parametrize(
    ("texts", "length"),
    [
        ([(1, 2, 3), (1, 2, 4), (1, 2)], 1),
        ([(5,), (5, 6)], 0),
        ([(1, 2), (1, 2)], 1),
        ([(1, 2), (3,)], 0),
        ([(1, 9, 3), (1, 9, 3, 4), (1, 9, 2)], 2),
    ],
)
def test_a_common_prefix_leaves_every_text_a_token(texts: list[tuple[int, ...]], length: int) -> None:
    assert common_prefix(texts) == length


# -- bad input


def edit_config(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "config.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda raw: raw.update(architectures=["MistralForCausalLM"]), "MistralForCausalLM"),
        (lambda raw: raw.update(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "llama3"),
        (lambda raw: raw.update(attention_bias=True), "biases"),
        (lambda raw: raw.update(hidden_act="gelu"), "gelu"),
        (lambda raw: raw.update(quantization_config={}), "quantized"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    tiny_target_dir: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    directory = Path(shutil.copytree(tiny_target_dir, tmp_path / "copy"))
    edit_config(directory, change)
    with pytest.raises(UsageError, match=named):
        Target.load(directory)


def test_missing_and_misshapen_weights_are_named(tiny_target_dir: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(tiny_target_dir, tmp_path / "copy"))
    tensors = load_file(directory / "model.safetensors")
    taken = tensors.pop("model.layers.3.mlp.up_proj.weight")
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(DamageError, match=r"model\.layers\.3\.mlp\.up_proj\.weight is missing"):
        Target.load(directory)
    save_file({**tensors, "model.layers.3.mlp.up_proj.weight": taken[1:]}, directory / "model.safetensors")
    with pytest.raises(DamageError, match=r"\[159, 64\], the config says \[160, 64\]"):
        Target.load(directory)
    (directory / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(DamageError, match="not readable"):
        Target.load(directory)
    (directory / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no safetensors file"):
        Target.load(directory)
    with pytest.raises(UsageError, match=r"no config\.json"):
        Target.load(tmp_path)
