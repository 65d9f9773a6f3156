"""What a draft model asks of each card, from its shape alone (no torch).

SGLang builds a Llama draft's layer as the base class has it and then replaces its MLP and its query/key/value
projection by wider ones.  The replaced ones stay on the card until Python's garbage collector runs, which is after the
cache was sized; so does the draft's own embedding, until the target's replaces it.  The rotary table (float32, one row
for every position) stays for good.  Seen on an H200 with sglang 0.5.16: "mem usage=5.60 GB" for a draft of 2.22 GiB.

Source: sglang 0.5.9 to 0.5.23 ``srt/models/llama_eagle3.py``, ``srt/layers/rotary_embedding``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.draft.mathematics import Mathematics, mathematics
from k25stack.draft.spec import MAPS, DraftSpec, size
from k25stack.draft.target import read_object
from k25stack.model.shapes import DTYPE_BYTES, heads_per_gpu

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

WHOLE = ("fc.weight",)  # held by every card, as everything of one dimension is
ROTARY_BYTES = 4


@dataclass(frozen=True)
class DraftCost:
    """Bytes on each card."""

    token: int = 0  # of cache
    weights: int = 0
    table: int = 0  # of rotations
    embedding: int = 0  # while the pools are sized; the target's replaces it
    leftover: int = 0  # while the pools are sized; collected later

    @property
    def transient(self) -> int:
        return self.embedding + self.leftover

    @property
    def loaded(self) -> int:
        """What the engine reports for loading the draft."""
        return self.weights + self.table + self.transient


def draft_cost(stack: Stack, profile: Profile, width: int = 2) -> DraftCost:
    """The cost of the draft that the profile serves; of the stack's own shape where that is not a local directory.

    ``width``: bytes of one cached value.
    """
    if profile.speculative is None:
        return DraftCost()
    function, tp, wide = draft_function(stack, profile), profile.tensor_parallel, DTYPE_BYTES[stack.target.dtype]
    spec = function.spec
    weights = draft_bytes(function, tp, wide)
    if profile.engine != "sglang":
        return DraftCost(draft_bytes_per_token(function, tp, width), weights)
    query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    replaced = 0 if function.mla else spec.hidden * (3 * spec.intermediate + query + 2 * kv)
    turned = function.mla["qk_rope_head_dim"] if function.mla else spec.head_dim
    return DraftCost(
        token=draft_bytes_per_token(function, tp, width),
        weights=weights,
        table=max(spec.max_position, stack.target.context) * turned * ROTARY_BYTES,
        embedding=spec.target_vocab * spec.hidden * wide // tp,
        leftover=replaced * wide // tp,
    )


def draft_function(stack: Stack, profile: Profile) -> Mathematics:
    """What the draft computes: by the config of a local directory, else by the stack's draft section.

    Raises UsageError for a directory whose config is none.
    """
    name = profile.speculative.draft if profile.speculative else "own"
    config = Path(name) / "config.json"
    if name.startswith(("/", ".")) and config.is_file():
        return mathematics(read_object(config), str(config))
    return Mathematics(DraftSpec.from_dict(stack.draft_spec()))


def draft_bytes_per_token(function: Mathematics, tensor_parallel: int, width: int = 2) -> int:
    """Cache of one token on each card: a latent held whole, or keys and values divided by heads."""
    if function.mla:
        return function.kv_bytes_per_token() * width // 2
    spec = function.spec
    return 2 * heads_per_gpu(spec.kv_heads, tensor_parallel) * spec.head_dim * width


def draft_bytes(function: Mathematics, tensor_parallel: int, wide: int) -> int:
    """Weights of the draft on each card; the embedding is the target's."""
    shapes = {name: shape for name, shape in function.tensors().items() if name not in MAPS}
    whole = sum(size(shape) for name, shape in shapes.items() if name in WHOLE or len(shape) == 1)
    return round((whole + (sum(map(size, shapes.values())) - whole) / tensor_parallel) * wide)
