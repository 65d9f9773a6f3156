"""The EAGLE-3 draft as a plain torch module: one Llama layer that reads a target state beside an embedding.

Choices, all as SGLang 0.5.20's ``LlamaForCausalLMEagle3`` computes them:

* fc fuses the three captured target states; it has no bias and no norm before it.
* The embedding half and the state half are normed apart, then laid side by side: q, k and v read 2H.
* The residual is the **raw** state, not its normed form.
* What the next draft step reads is the raw residual stream; ``norm_output`` in the spec feeds the normed one.
* Parameter names are the portable names of ``draft/spec.py``, so ``state_dict`` is the file.

Alignment.  Row t pairs the state of token t with the embedding of token t+1 and predicts token t+2::

    row        0        1        2
    state      h(x0)    h(x1)    h(x2)       aux states of the target, fused; in later draft steps the draft's own
    embedding  e(x1)    e(x2)    e(x3)
    predicts   x2       x3       x4          in draft ids: target id = d2t[i] + i

The caller gives the attention: a key/value cache or masks.  This is the readable form: the reference engine and the
trainer have faster ones, and tests keep them together.  Not here: the embedding (the target's own), sampling, losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from k25stack.draft.spec import DraftSpec
from k25stack.files import sha256_text

# (q [B, n_heads, n, d], k [B, kv_heads, n, d], v [B, kv_heads, n, d]) -> [B, n_heads, n, d]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

INIT_STD = 0.02


def random_tensor(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """The starting value of one parameter, float32: ones for a norm, else N(0, 0.02) from its own seeded generator."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    own_seed = int(sha256_text(f"{seed}:{name}")[:12], 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(own_seed)) * INIT_STD


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale per channel."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return normed


def rope_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine for ``positions`` [...], each [..., head_dim]; angles in float32, result in ``dtype``."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device)
    angles = positions[..., None].to(torch.float32) * theta ** (-pairs / head_dim)  # [..., d/2]
    angles = torch.cat((angles, angles), dim=-1)  # [..., d]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn channel pairs (c, c + d/2) of ``x`` [..., n, d] by the angles of its rows [..., n, d]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Attention(nn.Module):
    """Projections of the layer; the products themselves are the caller's."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        wide, query, kv = 2 * spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.head_dim = spec.head_dim
        self.q_proj = nn.Linear(wide, query, bias=False)
        self.k_proj = nn.Linear(wide, kv, bias=False)
        self.v_proj = nn.Linear(wide, kv, bias=False)
        self.o_proj = nn.Linear(query, spec.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q, k, v = (self.split(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        mixed = attend(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)  # [B, heads, n, d]
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))  # [B, n, H]
        return output

    def split(self, x: Tensor) -> Tensor:
        """[B, n, heads*d] -> [B, heads, n, d]."""
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.up_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.down_proj = nn.Linear(spec.intermediate, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class MidLayer(nn.Module):
    """The one decoder layer."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden, spec.rms_eps)
        self.hidden_norm = RMSNorm(spec.hidden, spec.rms_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden, spec.rms_eps)
        self.mlp = MLP(spec)

    def forward(self, hidden: Tensor, embeds: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = torch.cat((self.input_layernorm(embeds), self.hidden_norm(hidden)), dim=-1)  # [B, n, 2H]
        stream = hidden + self.self_attn(x, cos, sin, attend)  # [B, n, H]; the residual is the raw state
        output: Tensor = stream + self.mlp(self.post_attention_layernorm(stream))  # [B, n, H]
        return output


@dataclass
class DraftCache:
    """Keys and values of the draft, each [slots, kv_heads, max_len, head_dim]; position p of a slot is column p."""

    keys: Tensor
    values: Tensor

    @property
    def max_len(self) -> int:
        return self.keys.shape[2]


class DraftModel(nn.Module):
    """One draft.  Float parameters in any one dtype; ``d2t`` int64 and ``t2d`` bool stay what they are."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.spec = spec
        self.fc = nn.Linear(spec.aux_width, spec.hidden, bias=False)
        self.midlayer = MidLayer(spec)
        self.norm = RMSNorm(spec.hidden, spec.rms_eps)
        self.lm_head = nn.Linear(spec.hidden, spec.draft_vocab, bias=False)
        held = torch.arange(spec.target_vocab) < spec.draft_vocab
        persistent = not spec.full_vocab
        self.register_buffer("d2t", torch.zeros(spec.draft_vocab, dtype=torch.int64), persistent=persistent)
        self.register_buffer("t2d", held, persistent=persistent)

    def init_random(self, seed: int) -> DraftModel:
        """Matrices from N(0, 0.02), norms one; the same weights for the same seed on every machine's CPU."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(random_tensor(seed, name, tuple(parameter.shape)))
        return self

    def target_ids(self) -> Tensor:
        """Target id of every draft id, int64 [D]."""
        return self.d2t + torch.arange(self.spec.draft_vocab, device=self.d2t.device)

    def fuse(self, aux: Tensor) -> Tensor:
        """Concatenated target states [..., aux*H] -> the state of the first draft step [..., H]."""
        fused: Tensor = self.fc(aux)
        return fused

    def step(self, hidden: Tensor, embeds: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """One draft step over rows: ``hidden``, ``embeds`` [B, n, H], ``positions`` [B, n] or [n].

        Returns the raw residual stream [B, n, H]: ``logits`` reads it, and ``next_hidden`` says what the next step
        reads.
        """
        cos, sin = rope_tables(positions, self.spec.head_dim, self.spec.rope_theta, hidden.dtype)  # [..., n, d]
        if cos.dim() == 3:
            cos, sin = cos[:, None], sin[:, None]  # [B, 1, n, d]: the same for every head
        stream: Tensor = self.midlayer(hidden, embeds, cos, sin, attend)
        return stream

    def next_hidden(self, stream: Tensor) -> Tensor:
        """What the next draft step takes as its state: the stream itself, or normed with ``norm_output``."""
        return self.norm(stream) if self.spec.norm_output else stream

    def logits(self, stream: Tensor) -> Tensor:
        """Scores of the draft vocabulary for a raw stream [..., H] -> [..., D]."""
        scores: Tensor = self.lm_head(self.norm(stream))
        return scores

    def new_cache(self, slots: int, max_len: int) -> DraftCache:
        """An empty cache in the parameters' dtype and place."""
        spec, weight = self.spec, self.fc.weight
        shape = (slots, spec.kv_heads, max_len, spec.head_dim)
        keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        return DraftCache(keys, torch.zeros_like(keys))

    def forward_cached(self, hidden: Tensor, embeds: Tensor, cache: DraftCache, slots: Tensor, start: Tensor) -> Tensor:
        """``step`` with the engine's cache: ``hidden``, ``embeds`` [B, n, H], ``slots``, ``start`` int64 [B].

        Row j of sequence b sits at position start[b]+j of slot slots[b]; its keys and values are written there and it
        sees positions 0..start[b]+j of that slot.  A smaller start later rolls the slot back.  Slots must differ.
        """
        count = hidden.shape[1]
        positions = start[:, None] + torch.arange(count, device=start.device)  # [B, n]
        span = int(start.max()) + count
        if span > cache.max_len:
            raise ValueError(f"position {span - 1} is outside the draft cache of {cache.max_len}")
        columns = torch.arange(span, device=start.device)
        visible = (columns <= positions[..., None])[:, None]  # [B, 1, n, span]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.keys[slots[:, None], :, positions] = k.transpose(1, 2)  # [B, n, kv, d]
            cache.values[slots[:, None], :, positions] = v.transpose(1, 2)
            keys, values = cache.keys[slots, :, :span], cache.values[slots, :, :span]  # [B, kv, span, d]
            return functional.scaled_dot_product_attention(q, keys, values, attn_mask=visible, enable_gqa=True)

        return self.step(hidden, embeds, positions, attend)


def causal_attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain causal attention inside each row of the batch: the trainer's first step for one unpadded document."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
