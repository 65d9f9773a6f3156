"""Muon for the matrices, AdamW for head and norms, fp32 masters, divided among ranks.

Every rank forms gradients of its own documents; each *unit* (a whole matrix, or a block of head rows) belongs to one
rank, which sums the gradients of all ranks in rank order, updates its fp32 master and writes the compute copy that
all ranks read.  So the optimizer's work is divided as the data is, and the sum does not depend on timing.

Muon: K. Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024): momentum, then the update is
replaced by a nearby matrix with equal singular values, found by a few steps of a quintic Newton-Schulz iteration in
bf16.  Its size does not depend on the gradient's, so the learning rate is scaled by sqrt(max(1, rows/columns)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from k25stack.draft.spec import DraftSpec
from k25stack.train.config import OptimizerConfig
from k25stack.train.weights import HEAD, MATRICES, shapes

Quintic = tuple[float, float, float]  # a, b, c of a x + b x^3 + c x^5
COEFFICIENTS: Quintic = (3.4445, -4.7750, 2.0315)  # chosen by Muon's author for a steep slope at zero
# Each step's quintic is the one that brings what the step before leaves nearest to one, from 0.02 on: within 0.09.
THREE: tuple[Quintic, ...] = ((7.7110, -22.1138, 16.2487), (3.2153, -2.4112, 0.5013), (2.2183, -1.5940, 0.4107))
PUBLISHED_STEPS = 5
SAFETY = 1.03  # rounding must not lift a singular value above the range of the first quintic
SMALLEST_BOUND = 1e-3  # for an update of zeros; n equal singular values give n ** -0.375
BLOCK = 192  # side of the blocks in which symmetric products are formed
HEAD_BLOCKS = 8
ADAM_EPS = 1e-8
MUON_STATE = ("momentum",)
ADAM_STATE = ("average", "square")


def symmetric(left: Tensor, right: Tensor) -> Tensor:
    """``left`` [m, n] times ``right`` [n, m], when the product is known to be symmetric: of it only the lower block
    triangle is computed."""
    side = left.shape[0]
    result = left.new_empty(side, side)
    for begin in range(0, side, BLOCK):
        end = min(begin + BLOCK, side)
        torch.mm(left[begin:end], right[:, :end], out=result[begin:end, :end])
        result[:begin, begin:end] = result[begin:end, :begin].t()
    return result


def coefficients(steps: int) -> tuple[Quintic, ...]:
    """Those of each of ``steps`` iterations."""
    return THREE if steps == len(THREE) else (COEFFICIENTS,) * steps


def quintic(gram: Tensor, square: Tensor, chosen: Quintic) -> Tensor:
    """a I + b G + c G^2: what one iteration multiplies x from the left, for G = x x^T; ``square`` is used up."""
    a, b, c = chosen
    result = square.mul_(c).add_(gram, alpha=b)
    result.diagonal().add_(a)
    return result


def orthogonalized(update: Tensor, steps: int) -> Tensor:
    """Newton-Schulz: ``update`` [m, n] with its singular values brought near one, bf16.

    Five steps are Muon as published: singular values are first divided by the Frobenius norm.  With fewer they are
    divided by a bound that follows from G = x x^T, G^2 being formed anyway: it leaves them several times larger, which
    makes up for an iteration.  Three steps have coefficients of their own (after Amsel et al., "The Polar Express",
    2025), which make up for another.

    Neighbouring iterations share one pass over the long side: the next G follows from the last, since all are
    polynomials of one symmetric matrix and commute.  Rounding in G grows up to twelvefold with each iteration that
    does so, which the passes that follow mend; so only the first may hold three.  Against fp64 the result is then as
    near as the plain iteration's in bf16, at three fifths of its time for the shapes of a small draft.
    """
    tall = update.shape[0] > update.shape[1]
    x: Tensor = (update / update.norm().clamp_min(1e-7)).to(torch.bfloat16)
    x = x.t().contiguous() if tall else x
    chosen = iter(coefficients(steps))
    for number, count in enumerate(passes(steps)):
        gram = symmetric(x, x.t())
        square = symmetric(gram, gram)
        scale = 1.0
        if number == 0 and steps < PUBLISHED_STEPS:
            # No singular value exceeds the fourth root of |G^2|, which is far below |x| = 1.
            scale = 1 / max(SMALLEST_BOUND, SAFETY * float(square.float().norm()) ** 0.25)
            gram.mul_(scale**2)
            square.mul_(scale**4)
        factor = quintic(gram, square, next(chosen))
        product = factor * scale
        for _ in range(count - 1):
            gram = symmetric(symmetric(factor, gram), factor)
            factor = quintic(gram, symmetric(gram, gram), next(chosen))
            product = symmetric(factor, product)
        x = torch.mm(product, x)
    return x.t() if tall else x


def passes(steps: int) -> list[int]:
    """Iterations per pass: pairs, and three in the first where the number is odd."""
    odd = steps % 2
    return [1] if steps == 1 else [2 + odd] + [2] * ((steps - 2 - odd) // 2)


def schedule(step: int, total: int, config: OptimizerConfig) -> float:
    """Share of the learning rate at optimizer step 0 <= ``step`` < ``total``: linear warm-up, then cosine or constant.

    It depends on the planned number of steps only, never on the clock, so a run can be repeated.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    past = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    return config.final_lr_share + (1 - config.final_lr_share) * (1 + math.cos(math.pi * min(1.0, past))) / 2


@dataclass(frozen=True)
class Unit:
    """A piece of a tensor that is updated as a whole by one rank."""

    name: str
    rows: slice  # all rows of a matrix; a block of the head's
    muon: bool
    cost: float  # seconds, roughly: only the proportions matter
    owner: int


def units(spec: DraftSpec, config: OptimizerConfig, world: int) -> list[Unit]:
    """All pieces of all tensors with their owners: dearest first, each to the rank with the least so far."""
    found: list[tuple[str, slice, bool, float]] = []
    for name, shape in shapes(spec).items():
        count = math.prod(shape)
        adam_cost = 4e-9 * count
        if name in MATRICES and config.kind == "muon":
            small, large = min(shape), max(shape)
            flops = len(passes(config.newton_schulz_steps)) * 3.3 * small * small * large
            flops += config.newton_schulz_steps * 5.3 * small**3
            found.append((name, slice(0, shape[0]), True, flops / 2e11))
        elif name == HEAD:
            bounds = [shape[0] * i // HEAD_BLOCKS for i in range(HEAD_BLOCKS + 1)]
            pieces = [slice(a, b) for a, b in pairwise(bounds) if b > a]
            found += [(name, piece, False, adam_cost / len(pieces)) for piece in pieces]
        else:
            found.append((name, slice(0, shape[0]), False, adam_cost))
    load = [0.0] * world
    result = []
    for name, rows, muon, cost in sorted(found, key=lambda item: -item[3]):
        owner = load.index(min(load))
        load[owner] += cost
        result.append(Unit(name, rows, muon, cost, owner))
    return result


def state_shapes(spec: DraftSpec, config: OptimizerConfig) -> dict[str, tuple[int, ...]]:
    """ "name.part" -> shape of everything fp32 that the optimizer keeps, masters included."""
    result = {}
    for name, shape in shapes(spec).items():
        muon = name in MATRICES and config.kind == "muon"
        for part in ("master", *(MUON_STATE if muon else ADAM_STATE)):
            result[f"{name}.{part}"] = shape
    return result


class Optimizer:
    """The units of one rank over tensors that all ranks see.

    ``state`` has the names of `state_shapes`; ``values`` the compute copies; ``grads`` one table per rank.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        mine: Sequence[Unit],
        state: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        grads: Sequence[Mapping[str, Tensor]],
    ) -> None:
        self.config, self.mine = config, mine
        self.state, self.values, self.grads = state, values, grads
        self.summed: list[Tensor] = [torch.empty_like(state[f"{u.name}.master"][u.rows]) for u in mine]

    def publish(self) -> None:
        """Write the compute copies of this rank's masters."""
        for unit in self.mine:
            self.values[unit.name][unit.rows].copy_(self.state[f"{unit.name}.master"][unit.rows])

    def sum_gradients(self) -> float:
        """Sum all ranks' gradients of this rank's units; returns the sum of their squares."""
        squares = 0.0
        for unit, total in zip(self.mine, self.summed, strict=True):
            total.copy_(self.grads[0][unit.name][unit.rows])
            for grads in self.grads[1:]:
                total += grads[unit.name][unit.rows]
            squares += float(total.norm()) ** 2
        return squares

    def update(self, squares: float, step: int, share: float) -> None:
        """Update this rank's units: ``squares`` over all ranks decides the clip, ``share`` scales the rates."""
        norm = math.sqrt(squares)
        clip = min(1.0, self.config.clip_norm / norm) if norm > 0 else 1.0
        for unit, gradient in zip(self.mine, self.summed, strict=True):
            if clip < 1.0:
                gradient *= clip
            part = partial(self._state, unit)
            if unit.muon:
                self._muon(gradient, part("master"), part("momentum"), share)
            else:
                self._adamw(gradient, part("master"), part("average"), part("square"), step, share)
        self.publish()

    def _state(self, unit: Unit, part: str) -> Tensor:
        return self.state[f"{unit.name}.{part}"][unit.rows]

    def _muon(self, gradient: Tensor, master: Tensor, momentum: Tensor, share: float) -> None:
        config = self.config
        momentum.mul_(config.momentum).add_(gradient)
        update = orthogonalized(gradient.add_(momentum, alpha=config.momentum), config.newton_schulz_steps)  # Nesterov
        rate = config.lr * share * math.sqrt(max(1.0, master.shape[0] / master.shape[1]))
        if config.weight_decay:
            master.mul_(1 - config.lr * share * config.weight_decay)
        master.add_(update, alpha=-rate)

    def _adamw(
        self, gradient: Tensor, master: Tensor, average: Tensor, square: Tensor, step: int, share: float
    ) -> None:
        config = self.config
        adamw(
            [master],
            [gradient],
            [average],
            [square],
            [],
            [torch.tensor(float(step), device=master.device)],  # counted up by one inside
            fused=True,
            amsgrad=False,
            beta1=config.betas[0],
            beta2=config.betas[1],
            lr=(config.adamw_lr or config.lr) * share,
            weight_decay=config.weight_decay if master.dim() > 1 else 0.0,
            eps=ADAM_EPS,
            maximize=False,
        )
