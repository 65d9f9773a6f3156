"""One document's hidden states, and the layout of a shard's tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from k25stack.errors import DamageError
from k25stack.states.manifest import AUX_LAYERS, SampleLike, document_name

E4M3_MAX = 448.0  # largest finite value of float8_e4m3fn


@dataclass(frozen=True)
class Document:
    """T tokens with their states; row t is the state *of* ``token_ids[t]``, nothing is shifted."""

    doc_id: str
    turn: int
    domain: str
    token_ids: Tensor  # int64 [T]
    loss_mask: Tensor  # bool [T], true where the token belongs to the response
    aux: Tensor  # bfloat16 [T, 3H], the residual stream at the input of three layers, side by side
    last: Tensor  # bfloat16 [T, H]
    argmax: Tensor  # int32 [T], the target's greedy choice for token t+1; -1 (not asked) if that is no response token

    @property
    def name(self) -> str:
        return document_name(self.doc_id, self.turn)

    def __len__(self) -> int:
        return self.token_ids.shape[0]

    @classmethod
    def from_sample(cls, sample: SampleLike, aux: Tensor, last: Tensor, argmax: Tensor) -> Document:
        """Pair a sample with states computed over ``prompt_ids + response_ids``."""
        ids = torch.tensor([*sample.prompt_ids, *sample.response_ids], dtype=torch.int64)
        mask = torch.arange(len(ids)) >= len(sample.prompt_ids)
        return cls(sample.doc_id, sample.turn, sample.domain, ids, mask, aux, last, argmax)

    def check(self, hidden: int) -> None:
        """Raises DamageError naming the document when a shape is wrong or a state is not finite."""
        tokens = len(self)
        expected = {
            "loss_mask": (self.loss_mask, (tokens,)),
            "aux": (self.aux, (tokens, AUX_LAYERS * hidden)),
            "last": (self.last, (tokens, hidden)),
            "argmax": (self.argmax, (tokens,)),
        }
        for name, (tensor, shape) in expected.items():
            if tuple(tensor.shape) != shape:
                raise DamageError(f"{name} is {list(tensor.shape)}, expected {list(shape)}", where=self.name)
        for name, tensor in (("aux", self.aux), ("last", self.last)):
            # The extremes of a tensor with a NaN are NaN: far cheaper than a test of every value.
            if not all(bool(torch.isfinite(bound)) for bound in torch.aminmax(tensor)):
                remedy = "the engine computed NaN or infinity: check its precision and weights"
                raise DamageError(f"{name} has values that are not finite", where=self.name, remedy=remedy)


def to_fp8(states: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Quantise [T, groups*H] to float8_e4m3fn with one scale per token and group.

    Returns the values [T, groups*H] and their scales f32 [T, groups]; value * scale is the state.  One scale per token
    over all layers would lose the early layers, whose norms are several times smaller.
    """
    split = states.float().reshape(len(states), groups, -1)  # [T, groups, H]
    scales = split.abs().amax(-1) / E4M3_MAX  # [T, groups]
    scales = torch.where(scales > 0, scales, 1.0)
    return (split / scales[..., None]).to(torch.float8_e4m3fn).flatten(1), scales


def from_fp8(values: Tensor, scales: Tensor) -> Tensor:
    """The bfloat16 states of [T, groups*H] fp8 values and their f32 [T, groups] scales."""
    split = values.to(torch.bfloat16).reshape(*scales.shape, -1)  # [T, groups, H], exact in bf16
    return (split * scales[..., None]).to(torch.bfloat16).flatten(1)
