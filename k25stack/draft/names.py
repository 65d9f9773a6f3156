"""The spellings of draft tensors that trainers write, and the portable one (no torch)."""

from __future__ import annotations

import re

# Names that carry nothing a draft needs: the embedding is the target's, and rope tables are computed.
LENT = re.compile(r"(^|\.)(embed_tokens\.weight|rotary_emb\.inv_freq)$")


def portable_name(name: str) -> str:
    """``model.layers.0.mlp.up_proj.weight``, ``layers.0.mlp...`` and ``midlayer.mlp...`` are one tensor."""
    return re.sub(r"^layers\.0\.", "midlayer.", name.removeprefix("model."))
