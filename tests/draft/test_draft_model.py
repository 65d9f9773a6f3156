"""The module against the same mathematics written out with loops, and its cache against the whole sequence."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from k25stack.draft.model import DraftModel, causal_attend
from k25stack.draft.spec import DraftSpec

SPEC = DraftSpec(hidden=24, heads=6, kv_heads=2, head_dim=8, intermediate=40, draft_vocab=32, target_vocab=100)


def rms(x: list[float], scale: Tensor, eps: float) -> Tensor:
    """x_c * scale_c / sqrt(mean(x^2) + eps)."""
    mean = sum(value * value for value in x) / len(x)
    return torch.tensor([value * float(w) / math.sqrt(mean + eps) for value, w in zip(x, scale, strict=True)])


def turned(vector: Tensor, position: int, theta: float) -> Tensor:
    """Rope: pair (c, c + d/2) turned by position * theta^(-2c/d)."""
    half = len(vector) // 2
    out = vector.clone()
    for c in range(half):
        angle = position * theta ** (-2 * c / len(vector))
        out[c] = vector[c] * math.cos(angle) - vector[c + half] * math.sin(angle)
        out[c + half] = vector[c + half] * math.cos(angle) + vector[c] * math.sin(angle)
    return out


def formula(w: dict[str, Tensor], spec: DraftSpec, states: Tensor, embeds: Tensor, start: int) -> Tensor:
    """One draft step over a document, row by row, head by head: [n, H], [n, H] -> raw stream [n, H]."""
    layer = {name.removeprefix("midlayer.").removesuffix(".weight"): t for name, t in w.items()}
    d, group = spec.head_dim, spec.heads // spec.kv_heads
    queries, keys, values, out = [], [], [], []
    for row in range(len(states)):
        e = rms(embeds[row].tolist(), layer["input_layernorm"], spec.rms_eps)
        s = rms(states[row].tolist(), layer["hidden_norm"], spec.rms_eps)
        x = torch.cat((e, s))
        q, k, v = (layer[f"self_attn.{name}_proj"] @ x for name in "qkv")
        queries.append([turned(q[h * d : h * d + d], start + row, spec.rope_theta) for h in range(spec.heads)])
        keys.append([turned(k[h * d : h * d + d], start + row, spec.rope_theta) for h in range(spec.kv_heads)])
        values.append([v[h * d : h * d + d] for h in range(spec.kv_heads)])
    for row in range(len(states)):
        heads = []
        for h in range(spec.heads):
            scores = [float(queries[row][h] @ keys[seen][h // group]) / math.sqrt(d) for seen in range(row + 1)]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            mixed = sum(weight * values[seen][h // group] for seen, weight in enumerate(weights))
            heads.append(mixed / sum(weights))
        stream = states[row] + layer["self_attn.o_proj"] @ torch.cat(heads)  # the raw state is the residual
        y = rms(stream.tolist(), layer["post_attention_layernorm"], spec.rms_eps)
        gate, up = layer["mlp.gate_proj"] @ y, layer["mlp.up_proj"] @ y
        swiglu = torch.tensor([float(g) / (1 + math.exp(-float(g))) * float(u) for g, u in zip(gate, up, strict=True)])
        out.append(stream + layer["mlp.down_proj"] @ swiglu)
    return torch.stack(out)


def model_with_odd_norms(spec: DraftSpec = SPEC, seed: int = 0) -> DraftModel:
    """Random weights of a size that matters, and norm scales that are not one."""
    model = DraftModel(spec).init_random(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
            else:
                parameter.mul_(10)
    return model


def rows(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_state_dict_is_the_portable_table() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in DraftModel(SPEC).state_dict().items()}
    assert shapes == SPEC.tensors()
    full = DraftSpec(24, 6, 2, 8, 40, 100, 100)
    assert {name: tuple(t.shape) for name, t in DraftModel(full).state_dict().items()} == full.tensors()


def test_the_forward_pass_is_the_formula() -> None:
    model = model_with_odd_norms()
    weights = dict(model.state_dict())
    aux, embeds = rows(5, SPEC.aux_width), rows(5, SPEC.hidden, seed=6)
    with torch.no_grad():
        state = model.fuse(aux)
        assert torch.allclose(state, aux @ weights["fc.weight"].T, atol=1e-5)
        positions = torch.arange(5) + 7
        stream = model.step(state[None], embeds[None], positions, causal_attend)[0]
        logits = model.logits(stream)
    expected = formula(weights, SPEC, state, embeds, start=7)
    assert torch.allclose(stream, expected, atol=1e-4, rtol=1e-4)
    normed = torch.stack([rms(row.tolist(), weights["norm.weight"], SPEC.rms_eps) for row in expected])
    assert torch.allclose(logits, normed @ weights["lm_head.weight"].T, atol=1e-3, rtol=1e-3)


def test_next_state_is_raw_unless_norm_output() -> None:
    stream = rows(1, 3, SPEC.hidden)
    plain = model_with_odd_norms()
    assert torch.equal(plain.next_hidden(stream), stream)
    normed = model_with_odd_norms(DraftSpec(**{**SPEC.as_dict(), "norm_output": True}))
    assert torch.allclose(normed.next_hidden(stream), normed.norm(stream))


def test_rope_depends_on_distance_only() -> None:
    model = model_with_odd_norms()
    state, embeds = rows(1, 4, SPEC.hidden), rows(1, 4, SPEC.hidden, seed=6)
    with torch.no_grad():
        near = model.step(state, embeds, torch.arange(4), causal_attend)
        far = model.step(state, embeds, torch.arange(4) + 50, causal_attend)
    assert torch.allclose(near, far, atol=1e-4)


@pytest.mark.parametrize("slots", [[0, 1, 2], [4, 0, 2]])
def test_pieces_with_a_cache_equal_the_whole(slots: list[int]) -> None:
    model = model_with_odd_norms()
    count, pieces = 9, [3, 1, 2, 3]
    state, embeds = rows(3, count, SPEC.hidden), rows(3, count, SPEC.hidden, seed=6)
    with torch.no_grad():
        whole = model.step(state, embeds, torch.arange(count), causal_attend)
        cache, place = model.new_cache(5, count), 0
        start = torch.zeros(3, dtype=torch.int64)
        for piece in pieces:
            part = slice(place, place + piece)
            out = model.forward_cached(state[:, part], embeds[:, part], cache, torch.tensor(slots), start)
            assert torch.allclose(out, whole[:, part], atol=1e-5)
            place, start = place + piece, start + piece


def test_rows_may_start_at_different_positions_and_roll_back() -> None:
    model = model_with_odd_norms()
    state, embeds = rows(2, 8, SPEC.hidden), rows(2, 8, SPEC.hidden, seed=6)
    with torch.no_grad():
        whole = model.step(state, embeds, torch.arange(8), causal_attend)
        cache, slots = model.new_cache(2, 8), torch.tensor([1, 0])
        model.forward_cached(state[:, :5], embeds[:, :5], cache, slots, torch.tensor([0, 0]))
        # wrong guesses beyond the present row, overwritten after the roll-back
        model.forward_cached(rows(2, 2, 24, seed=9), rows(2, 2, 24, seed=10), cache, slots, torch.tensor([5, 5]))
        pair = torch.stack((state[0, 3:6], state[1, 5:8])), torch.stack((embeds[0, 3:6], embeds[1, 5:8]))
        model.forward_cached(state[1:, 5:7], embeds[1:, 5:7], cache, slots[1:], torch.tensor([5]))
        out = model.forward_cached(*pair, cache, slots, torch.tensor([3, 5]))
    assert torch.allclose(out[0], whole[0, 3:6], atol=1e-5)
    assert torch.allclose(out[1], whole[1, 5:8], atol=1e-5)


def test_a_full_cache_is_an_error_not_a_wrap() -> None:
    model = model_with_odd_norms()
    with pytest.raises(ValueError, match="outside the draft cache of 4"):
        model.forward_cached(
            rows(1, 2, 24), rows(1, 2, 24), model.new_cache(1, 4), torch.tensor([0]), torch.tensor([3])
        )


def test_bf16_keeps_rope_in_float32() -> None:
    model = model_with_odd_norms()
    state, embeds = rows(1, 3, SPEC.hidden), rows(1, 3, SPEC.hidden, seed=6)
    far = torch.arange(3) + 200_001
    with torch.no_grad():
        exact = model.step(state, embeds, far, causal_attend)
        half = model.to(torch.bfloat16).step(state.bfloat16(), embeds.bfloat16(), far, causal_attend)
    assert (half.float() - exact).norm() / exact.norm() < 0.02
    assert model.d2t.dtype == torch.int64
    assert model.t2d.dtype == torch.bool


def test_random_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    first, again, other = (DraftModel(SPEC).init_random(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])
    assert torch.equal(first["norm.weight"], torch.ones(SPEC.hidden))
    assert 0.015 < float(first["midlayer.mlp.gate_proj.weight"].std()) < 0.025
