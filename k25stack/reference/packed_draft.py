"""The draft for serving: the same maths as `draft.model.DraftModel`, with reordered weights and its own cache.

`DraftModel` is the readable form that trains; this one does the work of a round: q, k and v in one product, weights
reordered for few rows (`linear`), rotation and attention of the target.  A test keeps the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from k25stack.draft.model import DraftModel
from k25stack.draft.spec import DraftSpec
from k25stack.reference.attention import Attention, Batched, Ragged, Span
from k25stack.reference.kv import KVCache
from k25stack.reference.linear import Linear
from k25stack.reference.target import neighbours


class PackedDraft:
    """Weights and cache of one draft; row p of a slot sits at position p (see `drafting` for the alignment)."""

    def __init__(self, model: DraftModel, slots: int, max_len: int) -> None:
        spec, layer = model.spec, model.midlayer
        attention, mlp = layer.self_attn, layer.mlp
        self.spec = spec
        self.dtype = model.fc.weight.dtype
        self.scale = spec.head_dim**-0.5
        q, k = attention.q_proj.weight.detach(), attention.k_proj.weight.detach()
        # A power of two changes no mantissa; any other scale is applied in float32 by `_rotate`.
        self.late_scale = 0.0 if math.log2(self.scale).is_integer() else self.scale
        q = q if self.late_scale else q * self.scale
        turned = [neighbours(q, spec.head_dim), neighbours(k, spec.head_dim)]
        self.qkv = Linear(torch.cat([*turned, attention.v_proj.weight.detach()]))
        self.fc, self.o, self.gate, self.up, self.down, self.head = (
            Linear(module.weight.detach())
            for module in (model.fc, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj, model.lm_head)
        )
        self.norms = {
            name: module.weight.detach()
            for name, module in (
                ("embedding", layer.input_layernorm),
                ("state", layer.hidden_norm),
                ("mlp", layer.post_attention_layernorm),
                ("final", model.norm),
            )
        }
        self.cache = KVCache(1, slots, max_len, spec.kv_heads, spec.head_dim, self.dtype)
        self.rotation = rotation_table(spec, max_len)

    def fuse(self, aux: Tensor) -> Tensor:
        """Captured target states [T, 3H] -> states of the first draft step [T, H]."""
        return self.fc(aux)

    def step(self, hidden: Tensor, embeds: Tensor, slots: Tensor, start: Tensor) -> Tensor:
        """``hidden``, ``embeds`` [B, n, H], at positions start[b] + j of slots[b] -> raw residual stream [B, n, H]."""
        batch, n, width = hidden.shape
        positions = (start[:, None] + torch.arange(n)).flatten()
        attend = Batched(self.cache, slots, start, n)
        return self._rows(hidden.view(-1, width), embeds.view(-1, width), positions, attend).view(batch, n, width)

    def step_packed(self, hidden: Tensor, embeds: Tensor, spans: Sequence[Span]) -> Tensor:
        """Rows of several slots side by side, [T, H]; for prompts."""
        positions = torch.cat([torch.arange(span.start, span.start + span.end - span.begin) for span in spans])
        return self._rows(hidden, embeds, positions, Ragged(self.cache, list(spans)))

    def next_hidden(self, stream: Tensor) -> Tensor:
        """What the next chain step takes as its state."""
        return self._norm(stream, "final") if self.spec.norm_output else stream

    def logits(self, stream: Tensor) -> Tensor:
        """Raw stream [R, H] -> scores of the draft vocabulary [R, D]."""
        return self.head(self._norm(stream, "final"))

    def _rows(self, hidden: Tensor, embeds: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        spec = self.spec
        x = torch.cat((self._norm(embeds, "embedding"), self._norm(hidden, "state")), dim=-1)  # [T, 2H]
        heads = self.qkv(x).view(-1, spec.heads + 2 * spec.kv_heads, spec.head_dim)  # [T, heads + 2 KV, D]
        turned = self._rotate(heads[:, : -spec.kv_heads], self.rotation[positions].unsqueeze(1))
        q, k = turned[:, : spec.heads], turned[:, spec.heads :]
        stream = hidden + self.o(attend(0, q, k, heads[:, -spec.kv_heads :]))  # the residual is the raw state
        normed = self._norm(stream, "mlp")
        return self.down.plus(self.up.times(normed, self.gate.silu(normed)), stream)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (self.spec.hidden,), self.norms[name], self.spec.rms_eps)

    def _rotate(self, heads: Tensor, rotation: Tensor) -> Tensor:
        pairs = torch.view_as_complex(heads.float().view(*heads.shape[:2], -1, 2))  # [T, heads + KV, D/2]
        turned = pairs * rotation
        if self.late_scale:
            turned[:, : self.spec.heads] *= self.late_scale
        return torch.view_as_real(turned).flatten(2).to(heads.dtype)


def rotation_table(spec: DraftSpec, length: int) -> Tensor:
    """exp(i * position * frequency), complex64 [length, D/2], from float64 angles."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
    angles = torch.arange(length, dtype=torch.float64)[:, None] / spec.rope_theta**exponents
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
