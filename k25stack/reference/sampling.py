"""From logits to probabilities and tokens: temperature, top-k, top-p, and inverse-CDF draws.

Every draw takes its uniform number as an argument: the functions are pure, and a request with a seed gives the same
tokens whatever else runs beside it (up to the rounding noise of the batch's shape).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from k25stack.errors import UsageError

TOP_P_CANDIDATES = 1024
"""Candidates looked at first for top-p: sorting the whole vocabulary costs milliseconds and is rarely needed."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.  Temperature 0 is greedy, and then the other fields have no effect.

    Raises UsageError for a value outside its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0  # keep the smallest set of tokens whose mass reaches this
    top_k: int = 0  # keep the k most likely tokens; 0 keeps all
    seed: int | None = None  # None: the engine derives one

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise UsageError(f"temperature is {self.temperature}, expected 0 to 100", where="sampling")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p is {self.top_p}, expected more than 0 and at most 1", where="sampling")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}, expected 0 (all) or more", where="sampling")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling()


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [..., V] -> the distribution tokens are drawn from, float32 [..., V], rows summing to 1.

    Order: temperature, top-k, top-p (as SGLang and vLLM do).  Exactly ``top_k`` tokens stay even when logits tie.
    """
    if sampling.greedy:
        raise UsageError("greedy decoding has no distribution", where="sampling", remedy="take the argmax")
    scaled = logits.float() / sampling.temperature
    vocab = scaled.shape[-1]
    if 0 < sampling.top_k < vocab:
        values, index = scaled.topk(sampling.top_k, dim=-1)  # [..., k], descending
        kept = _nucleus(values.softmax(-1), sampling.top_p)
        return torch.zeros_like(scaled).scatter_(-1, index, kept)
    probs = scaled.softmax(-1)
    if sampling.top_p == 1.0:
        return probs
    values, index = probs.topk(min(TOP_P_CANDIDATES, vocab), dim=-1)
    if bool((values.sum(-1) < sampling.top_p).any()):  # a flat distribution: the nucleus is larger
        values, index = probs.sort(dim=-1, descending=True)
    return torch.zeros_like(probs).scatter_(-1, index, _nucleus(values, sampling.top_p))


def _nucleus(descending: Tensor, top_p: float) -> Tensor:
    """Zero the tail of sorted probabilities [..., n] after the mass ``top_p``, then renormalise."""
    before = descending.cumsum(-1) - descending  # mass of the tokens ranked ahead
    kept = torch.where(before < top_p, descending, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def draw(weights: Tensor, uniform: float) -> int:
    """Index drawn in proportion to ``weights`` [V] (non-negative, any positive sum), from ``uniform`` in [0, 1).

    An index of weight 0 is never returned.  The sum runs in float64, where 10^5 entries lose no mass.
    """
    cumulative = weights.double().cumsum(0)
    total = float(cumulative[-1])
    if not total > 0.0:
        raise UsageError("nothing to draw from: all weights are zero", where="sampling")
    point = torch.tensor(min(uniform * total, math.nextafter(total, 0.0)), dtype=torch.float64)
    return int(torch.searchsorted(cumulative, point, right=True))
