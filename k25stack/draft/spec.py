"""Shapes of an EAGLE-3 draft with one Llama layer: the tensor table, the counts, the presets (no torch).

The portable spelling of the tensors is the one that old and new SGLang and vLLM all load::

    fc.weight                         [H, aux*H]    three captured states -> one
    midlayer.input_layernorm.weight   [H]           on the embedding half
    midlayer.hidden_norm.weight       [H]           on the state half
    midlayer.self_attn.q_proj.weight  [n*d, 2H]     both halves side by side: the input is twice as wide
    midlayer.self_attn.k_proj.weight  [g*d, 2H]
    midlayer.self_attn.v_proj.weight  [g*d, 2H]
    midlayer.self_attn.o_proj.weight  [H, n*d]
    midlayer.post_attention_layernorm.weight [H]
    midlayer.mlp.gate_proj.weight     [I, H]
    midlayer.mlp.up_proj.weight       [I, H]
    midlayer.mlp.down_proj.weight     [H, I]
    norm.weight                       [H]
    lm_head.weight                    [D, H]        D rows of the draft vocabulary
    d2t                               int64 [D]     target id minus draft id
    t2d                               bool [V]      True where the target id is in the draft vocabulary

The embedding is the target's own and is not shipped.  A draft over the whole target vocabulary (D == V) ships no
d2t and t2d: vLLM 0.31 refuses to load a map it has no place for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from k25stack.errors import UsageError

MAPS = ("d2t", "t2d")
LARGEST = 1 << 40  # of any size: what is larger was never one


@dataclass(frozen=True)
class DraftSpec:
    """Sizes of one draft.  Raises UsageError when they do not fit together."""

    hidden: int  # H, also the target's width: the embedding is shared
    heads: int  # n, query heads
    kv_heads: int  # g, key/value heads
    head_dim: int  # d
    intermediate: int  # I
    draft_vocab: int  # D
    target_vocab: int  # V
    aux: int = 3  # captured target states that fc fuses
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position: int = 4096  # longest context that the draft is said to serve
    norm_output: bool = False  # feed the normed state to the next draft step instead of the raw residual
    target_hidden: int = 0  # width of the target's states; 0, or left out: hidden

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_hidden", self.target_hidden or self.hidden)
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = (int, float) if field.type == "float" else (bool,) if field.type == "bool" else (int,)
            if not isinstance(value, wanted) or (isinstance(value, bool) and field.type != "bool"):
                raise UsageError(f"{field.name} is {value!r}, not of type {field.type}", where="draft spec")
            if field.type != "bool" and not 0 < value < math.inf:
                raise UsageError(f"{field.name} is {value!r}, not above zero", where="draft spec")
            if isinstance(value, int) and value > LARGEST:
                raise UsageError(f"{field.name} is a number of {value.bit_length()} bits", where="draft spec")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.heads} query heads do not divide into groups of {self.kv_heads} kv heads", where="draft spec"
            )
        if self.head_dim % 2:
            raise UsageError(f"head_dim {self.head_dim} is odd: rope turns pairs", where="draft spec")
        if self.target_hidden != self.hidden:
            raise UsageError(
                f"hidden {self.hidden} beside target states of {self.target_hidden}: the embedding is shared",
                where="draft spec",
            )
        if self.draft_vocab > self.target_vocab:
            raise UsageError(
                f"draft vocabulary {self.draft_vocab} exceeds the target's {self.target_vocab}", where="draft spec"
            )

    @property
    def aux_width(self) -> int:
        """Width of the concatenated target states that fc takes: aux * hidden."""
        return self.aux * self.hidden

    @property
    def full_vocab(self) -> bool:
        """True when draft ids are target ids, so no map is shipped."""
        return self.draft_vocab == self.target_vocab

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Portable name -> shape of the 13 trained tensors."""
        wide, query, kv = 2 * self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "fc.weight": (self.hidden, self.aux_width),
            "midlayer.input_layernorm.weight": (self.hidden,),
            "midlayer.hidden_norm.weight": (self.hidden,),
            "midlayer.self_attn.q_proj.weight": (query, wide),
            "midlayer.self_attn.k_proj.weight": (kv, wide),
            "midlayer.self_attn.v_proj.weight": (kv, wide),
            "midlayer.self_attn.o_proj.weight": (self.hidden, query),
            "midlayer.post_attention_layernorm.weight": (self.hidden,),
            "midlayer.mlp.gate_proj.weight": (self.intermediate, self.hidden),
            "midlayer.mlp.up_proj.weight": (self.intermediate, self.hidden),
            "midlayer.mlp.down_proj.weight": (self.hidden, self.intermediate),
            "norm.weight": (self.hidden,),
            "lm_head.weight": (self.draft_vocab, self.hidden),
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Portable name -> shape of everything that ``model.safetensors`` holds: the weights and the two maps."""
        maps = {} if self.full_vocab else {"d2t": (self.draft_vocab,), "t2d": (self.target_vocab,)}
        return {**self.weights(), **maps}

    def parameters(self, with_embedding: bool = False) -> int:
        """Number of weights, optionally with the target's embedding that the engine lends to the draft."""
        own = sum(size(shape) for shape in self.weights().values())
        return own + (self.target_vocab * self.hidden if with_embedding else 0)

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Bytes of keys and values that one token of context costs in the draft's cache."""
        return 2 * self.kv_heads * self.head_dim * bytes_per_value

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str = "draft spec") -> DraftSpec:
        """The inverse of ``as_dict``.  Raises UsageError for a missing or unknown name or an unfit value."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise UsageError(f"unknown field {unknown[0]}", where=where, remedy=f"one of: {', '.join(sorted(known))}")
        try:
            return cls(**raw)
        except TypeError as error:
            raise UsageError(str(error).partition("() ")[2] or str(error), where=where) from None


def size(shape: tuple[int, ...]) -> int:
    """Number of values in a tensor of this shape."""
    product = 1
    for side in shape:
        product *= side
    return product


# Widths of the public Kimi-K2.5 target; rope and context as TorchSpec's kimi_k25_eagle3.json has them for that target
# (plain rope, theta 1e6, 262,144 positions).
_KIMI = DraftSpec(7168, 64, 64, 128, 18432, 32000, 163840, rms_eps=1e-6, rope_theta=1e6, max_position=262144)

PRESETS = {
    "kimi-k2.5": _KIMI,  # 1,190,948,864 parameters without the embedding, 32 KiB of cache per token
    "kimi-k2.5-gqa8": replace(_KIMI, kv_heads=8),  # 205 M parameters and 28 KiB per token less
    "smollm2": DraftSpec(576, 9, 3, 64, 1536, 8192, 49152, rms_eps=1e-5, rope_theta=1e5, max_position=8192),
}
