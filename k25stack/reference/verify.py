"""The verifier: which of k proposed tokens stand, and which token comes after them.

Pure functions of logits or probabilities, proposals and uniform numbers.  Rules (`speculation.rounds.VERIFY_RULES`):

``greedy``       a proposal stands when it is the target's argmax; text equals plain greedy decoding.
``rejection``    proposal x ~ q stands with probability min(1, p(x) / q(x)); the first one that falls is replaced by a
                 draw from norm(max(p - q, 0)); after k standing ones the bonus token is drawn from p.  The result is
                 distributed as p (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).
``target_only``  the draft proposes its argmax, which stands with probability p(x); a fallen one is replaced by a draw
                 from p without x.  This is rejection sampling with a one-hot q: also distributed as p, with fewer
                 accepted tokens at high temperature, and it needs no draft probabilities (what SGLang does when the
                 draft vocabulary is smaller than the target's).

q lives on the draft vocabulary and is scattered into the target's before the comparison.  Target mass outside the
draft vocabulary has q = 0 there, so it comes back through the residual: leaving the residual out would starve
exactly those tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from k25stack.reference.sampling import draw


class Verdict(NamedTuple):
    """``accepted`` leading proposals stand; ``tokens`` are these and the target's own token (accepted + 1 ids)."""

    accepted: int
    tokens: list[int]


def greedy(proposals: Sequence[int], argmax: Sequence[int]) -> Verdict:
    """``proposals`` [k] target ids; ``argmax`` [k + 1]: the target's choice after the context and each proposal."""
    accepted = 0
    while accepted < len(proposals) and proposals[accepted] == argmax[accepted]:
        accepted += 1
    return Verdict(accepted, list(argmax[: accepted + 1]))


def rejection(proposals: Sequence[int], p: Tensor, q: Tensor, uniforms: Sequence[float]) -> Verdict:
    """Rejection sampling of a chain.

    ``proposals`` [k] target ids, each drawn from its row of ``q`` [k, V] (`scatter`); ``p`` [k + 1, V] the target's
    distributions after the context and after each proposal; ``uniforms`` [k + 1] in [0, 1): one per proposal, the
    last for the draw that ends the round.
    """
    for index, token in enumerate(proposals):
        if not uniforms[index] * float(q[index, token]) < float(p[index, token]):
            weights = residual(p[index], q[index])
            if not bool(weights.any()):  # p and q equal up to rounding: any draw from p is as good
                weights = p[index]
            return Verdict(index, [*proposals[:index], draw(weights, uniforms[-1])])
    return Verdict(len(proposals), [*proposals, draw(p[len(proposals)], uniforms[-1])])


def target_only(proposals: Sequence[int], p: Tensor, uniforms: Sequence[float]) -> Verdict:
    """Verification of proposals that were not drawn but chosen (draft argmax); arguments as in `rejection`."""
    one_hot = torch.zeros_like(p[:-1])
    one_hot[torch.arange(len(proposals)), torch.tensor(proposals, dtype=torch.long)] = 1.0
    return rejection(proposals, p, one_hot, uniforms)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0) [V], not normalised: what a fallen proposal is replaced from."""
    return (p - q).clamp_min(0.0)


def scatter(q: Tensor, target_ids: Tensor, vocab: int) -> Tensor:
    """Draft distribution [..., D] -> [..., vocab]: entry i goes to ``target_ids[i]`` (= d2t[i] + i), the rest is 0."""
    full = q.new_zeros(*q.shape[:-1], vocab)
    full[..., target_ids] = q
    return full
