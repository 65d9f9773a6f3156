"""The optimizer against torch's own, and the division of its work among ranks."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from twin_draft import SPEC

from k25stack.train.config import OptimizerConfig
from k25stack.train.optim import (
    COEFFICIENTS,
    Optimizer,
    orthogonalized,
    passes,
    schedule,
    state_shapes,
    symmetric,
    units,
)
from k25stack.train.weights import NORMS, shapes

MUON = OptimizerConfig(lr=0.03, kind="muon", adamw_lr=0.003, clip_norm=1e9)
ADAMW = OptimizerConfig(lr=0.003, kind="adamw", clip_norm=1e9, weight_decay=0.1)


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=generator) for name, shape in shapes(SPEC).items()}


def run(config: OptimizerConfig, world: int, gradients: list[list[dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Masters after one step per entry of ``gradients`` (one table per rank each), all ranks in this process."""
    state = {name: torch.zeros(shape) for name, shape in state_shapes(SPEC, config).items()}
    for name, value in tensors(0).items():
        state[f"{name}.master"].copy_(value)
    values = {n: v.clone() if n in NORMS else v.to(torch.bfloat16) for n, v in tensors(0).items()}
    grads = [{name: torch.zeros_like(value) for name, value in values.items()} for _ in gradients[0]]
    everything = units(SPEC, config, world)
    ranks = [Optimizer(config, [u for u in everything if u.owner == r], state, values, grads) for r in range(world)]
    for number, step in enumerate(gradients):
        for table, given in zip(grads, step, strict=True):
            for name, gradient in given.items():
                table[name].copy_(gradient)
        squares = sum(rank.sum_gradients() for rank in ranks)
        for rank in ranks:
            rank.update(squares, number, 1.0)
    for name, value in values.items():
        assert torch.equal(value, state[f"{name}.master"].to(value.dtype))
    return {name: state[f"{name}.master"] for name in values}


def test_symmetric_product_is_the_product() -> None:
    for rows in (5, 192, 500):
        x = torch.randn(rows, 70, dtype=torch.float64)
        torch.testing.assert_close(symmetric(x, x.T), x @ x.T)


@pytest.mark.parametrize("shape", [(96, 48), (48, 96), (64, 64)])
def test_newton_schulz_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalized(x, 5).float())
    assert values.min() > 0.5 and values.max() < 1.4
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    cosine = torch.cosine_similarity(orthogonalized(x, 5).float().flatten(), (u @ v).flatten(), dim=0)
    assert cosine > 0.97
    turned = orthogonalized(x.T.contiguous(), 5).T
    torch.testing.assert_close(turned, orthogonalized(x, 5), rtol=0, atol=0.05)


@pytest.mark.parametrize("largest", [1, 10])
def test_shared_passes_are_as_near_as_the_plain_iteration(largest: int) -> None:
    """A few large singular values over many small ones: what gradients look like, and what rounding hurts most."""
    generator = torch.Generator().manual_seed(3)
    u, _, v = torch.linalg.svd(torch.randn(96, 160, generator=generator), full_matrices=False)
    values = torch.full((96,), 1e-2)
    values[:largest] = 1.0
    update = u @ torch.diag(values) @ v

    def plain(dtype: torch.dtype) -> Tensor:
        a, b, c = COEFFICIENTS
        x = (update / update.norm()).to(dtype)
        for _ in range(5):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.double()

    exact = plain(torch.float64)
    ours, bf16 = (
        (x - exact).norm() / exact.norm() for x in (orthogonalized(update, 5).double(), plain(torch.bfloat16))
    )
    assert ours < max(0.05, bf16)


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_the_direction_of_small_singular_values_counts_too(steps: int) -> None:
    """Over a spectrum as wide as a gradient's the result is near the matrix with equal singular values."""
    generator = torch.Generator().manual_seed(2)
    u, _, v = torch.linalg.svd(torch.randn(96, 160, generator=generator), full_matrices=False)
    for spectrum in (torch.logspace(0, -1.5, 96), torch.tensor([1.0] + [0.03] * 95), torch.ones(96)):
        values = torch.linalg.svdvals(orthogonalized(u @ torch.diag(spectrum) @ v, steps).float())
        assert values.max() < 1.7 and values.min() > 0.5  # bf16 rounding adds to the quintics' own tenth
    assert orthogonalized(torch.zeros(8, 16), steps).abs().max() == 0


def test_passes_add_up() -> None:
    assert [passes(steps) for steps in range(1, 8)] == [[1], [2], [3], [2, 2], [3, 2], [2, 2, 2], [3, 2, 2]]


def bf16_gradients(steps: int, ranks: int) -> list[list[dict[str, Tensor]]]:
    """Gradients that bf16 holds exactly, so that compute copies lose nothing."""
    return [
        [{n: g.to(torch.bfloat16).float() for n, g in tensors(100 * s + r + 1).items()} for r in range(ranks)]
        for s in range(steps)
    ]


@pytest.mark.parametrize("name", ["fc", "gate_up", "down"])
def test_muon_is_torchs(name: str) -> None:
    gradients = bf16_gradients(3, 1)
    weight = torch.nn.Parameter(tensors(0)[name].clone())
    reference = torch.optim.Muon([weight], lr=MUON.lr, momentum=0.9, weight_decay=0.0, adjust_lr_fn="original")
    for (table,) in gradients:
        weight.grad = table[name].clone()
        reference.step()
    # Both iterate in bf16; products formed in another order differ in its last bits.
    torch.testing.assert_close(run(MUON, 1, gradients)[name], weight.detach(), rtol=0, atol=0.1 * MUON.lr)


@pytest.mark.parametrize("name", ["head", "o"])
def test_adamw_is_torchs(name: str) -> None:
    gradients = bf16_gradients(4, 1)
    weight = torch.nn.Parameter(tensors(0)[name].clone())
    reference = torch.optim.AdamW([weight], lr=ADAMW.lr, betas=ADAMW.betas, weight_decay=ADAMW.weight_decay)
    for (table,) in gradients:
        weight.grad = table[name].clone()
        reference.step()
    torch.testing.assert_close(run(ADAMW, 1, gradients)[name], weight.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("config", [MUON, ADAMW], ids=["muon", "adamw"])
def test_the_number_of_ranks_changes_no_bit(config: OptimizerConfig) -> None:
    """The same gradients give the same masters, whoever owns which unit."""
    gradients = bf16_gradients(2, 2)
    alone, shared = run(config, 1, gradients), run(config, 2, gradients)
    for name, value in alone.items():
        assert torch.equal(value, shared[name]), name


@pytest.mark.parametrize("world", [1, 2, 3, 16])
def test_every_row_has_one_owner(world: int) -> None:
    for name, shape in shapes(SPEC).items():
        owned = torch.zeros(shape[0], dtype=torch.int64)
        for unit in units(SPEC, MUON, world):
            if unit.name == name:
                assert 0 <= unit.owner < world
                owned[unit.rows] += 1
        assert (owned == 1).all()


def test_clip_scales_the_whole_gradient() -> None:
    gradients = bf16_gradients(1, 1)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients[0][0].values()))
    clipped = OptimizerConfig(lr=0.003, kind="adamw", clip_norm=norm / 4)
    quarter = [[{name: g / 4 for name, g in gradients[0][0].items()}]]
    free = OptimizerConfig(lr=0.003, kind="adamw", clip_norm=1e9)
    for name, value in run(clipped, 1, gradients).items():
        torch.testing.assert_close(value, run(free, 1, quarter)[name])


def test_schedule_follows_the_planned_steps() -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=10, final_lr_share=0.05)
    rates = [schedule(step, 100, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert 0.05 <= rates[-1] < 0.06
    constant = OptimizerConfig(lr=1.0, warmup_steps=0, schedule="constant")
    assert {schedule(step, 100, constant) for step in range(100)} == {1.0}
