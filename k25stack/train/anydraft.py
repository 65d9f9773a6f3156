"""Teacher-forced chains of any Llama-layer draft, whatever its switches: the readable form, one document at a time.

`forward.FastDraft` does the same for the drafts that this project trains; tests keep the two together.  Here are also
the switches of other trainers: norms before fc, the normed residual, a sliding window, scaled rope is refused.

A chain that starts at row t (the state of token t beside the embedding of token t+1)::

    step s        reads the embedding of token t+1+s and its own state of step s-1, sits at position t+s
    sees          rows 0..t of step 0, and its own rows of steps 1..s
    must propose  token t+2+s
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from k25stack.draft.mathematics import Mathematics
from k25stack.draft.model import apply_rope, rope_tables
from k25stack.draft.source import Source
from k25stack.draft.weights import read_tensors
from k25stack.errors import UsageError

EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "language_model.model.embed_tokens.weight")
HEAD_ROWS = 512  # rows of one head product


@dataclass(frozen=True)
class AnyDraft:
    """Weights under their portable names, in one type; ``embed`` [V, H]; ``ids`` int64 [D], target id of each row."""

    function: Mathematics
    weights: Mapping[str, Tensor]
    embed: Tensor
    ids: Tensor

    @classmethod
    def load(cls, source: Source, function: Mathematics, embed: Tensor, where: str) -> AnyDraft:
        """Raises UsageError for mathematics that is not computed here."""
        if function.mla:
            raise UsageError(
                "latent attention (MLA) is not scored", where=where, remedy="serve it and k25stack check URL"
            )
        if function.rope_scaling:
            raise UsageError(f"scaled rope ({function.rope_scaling}) is not scored", where=where,
                             remedy="serve it and k25stack check URL")  # fmt: skip
        names = {name: stored.name for name, stored in source.tensors.items()}
        tensors = read_tensors(source.files, names)
        spec = function.spec
        d2t = tensors.pop("d2t", torch.zeros(spec.draft_vocab, dtype=torch.int64))
        tensors.pop("t2d", None)
        return cls(function, tensors, embed.to(tensors["fc.weight"].dtype), d2t + torch.arange(spec.draft_vocab))

    @torch.inference_mode()
    def accepted(self, tokens: Tensor, aux: Tensor, starts: Tensor, k: int) -> Tensor:
        """int64 [S]: leading proposals of the chain at each row of ``starts`` [S] that are the text's own tokens.

        ``tokens`` int64 [T], ``aux`` [T, aux*H].
        """
        function, spec = self.function, self.function.spec
        last = len(tokens) - 1
        rows = torch.arange(last)  # row t reads token t+1: the last token has no row
        state = self._fuse(aux[:last].to(self.embed.dtype))  # [T-1, H]
        keys, values = self._keys(self._input(state, tokens[1:]), rows)  # [g, T-1, d]
        state = state[starts]
        own: list[tuple[Tensor, Tensor]] = []
        alive = torch.ones(len(starts), dtype=torch.bool)
        total = torch.zeros(len(starts), dtype=torch.int64)
        for step in range(k):
            x = self._input(state, tokens[(starts + 1 + step).clamp(max=last)])  # [S, 2H]
            if step > 0:
                own.append(self._keys(x, starts + step))
            base = x[:, spec.hidden :] if function.norm_before_residual else state
            stream = base + self._attend(x, starts, step, keys, values, own)  # [S, H]
            normed = self._norm(stream, "midlayer.post_attention_layernorm.weight")
            gate, up = (self._linear(normed, f"midlayer.mlp.{name}_proj.weight") for name in ("gate", "up"))
            stream = stream + self._linear(F.silu(gate) * up, "midlayer.mlp.down_proj.weight")
            wanted = starts + 2 + step
            hits = self._best(self._norm(stream, "norm.weight")) == tokens[wanted.clamp(max=last)]
            alive = alive & hits & (wanted <= last)
            total += alive
            state = self._norm(stream, "norm.weight") if spec.norm_output else stream
        return total

    def _fuse(self, aux: Tensor) -> Tensor:
        function, spec = self.function, self.function.spec
        if function.norm_before_fc:
            aux = self._norm(aux, "input_norm.weight")
        if function.fc_norm:
            parts = aux.chunk(spec.aux, dim=-1)
            aux = torch.cat([self._norm(part, f"fc_norm.{index}.weight") for index, part in enumerate(parts)], dim=-1)
        return self._linear(aux, "fc.weight")

    def _input(self, state: Tensor, tokens: Tensor) -> Tensor:
        embeds = self._norm(self.embed[tokens], "midlayer.input_layernorm.weight")
        return torch.cat((embeds, self._norm(state, "midlayer.hidden_norm.weight")), dim=-1)  # [R, 2H]

    def _heads(self, x: Tensor, letter: str) -> Tensor:
        """[R, 2H] -> [heads, R, d]."""
        projected = self._linear(x, f"midlayer.self_attn.{letter}_proj.weight")
        return projected.view(len(x), -1, self.function.spec.head_dim).transpose(0, 1)

    def _keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._rotate(self._heads(x, "k"), positions), self._heads(x, "v")

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        spec = self.function.spec
        cos, sin = rope_tables(positions, spec.head_dim, spec.rope_theta, torch.float32)  # [R, d]
        return apply_rope(heads.float(), cos, sin).to(heads.dtype)

    def _attend(
        self, x: Tensor, starts: Tensor, step: int, keys: Tensor, values: Tensor, own: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Output projection of the attention of step ``step``: [S, 2H] -> [S, H]."""
        spec, window = self.function.spec, self.function.window
        groups = spec.heads // spec.kv_heads
        q = self._rotate(self._heads(x, "q"), starts + step)  # [n, S, d]
        q = q.view(spec.kv_heads, groups, len(x), spec.head_dim)
        scores = torch.einsum("gnsd,gtd->gnst", q, keys).float()  # [g, n/g, S, T-1]
        columns = torch.arange(keys.shape[1])
        hidden = columns > starts[:, None]  # [S, T-1]
        if window is not None:
            hidden |= columns <= (starts + step - window)[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        near = own if window is None else own[max(0, len(own) - window) :]
        mine = [torch.einsum("gnsd,gsd->gns", q, key).float() for key, _ in near]
        weights = torch.cat([scores, *(one[..., None] for one in mine)], dim=-1).mul(spec.head_dim**-0.5).softmax(-1)
        weights = weights.to(values.dtype)
        mixed = torch.einsum("gnst,gtd->gnsd", weights[..., : keys.shape[1]], values)
        for index, (_, value) in enumerate(near):
            mixed = mixed + weights[..., keys.shape[1] + index, None] * value[:, None]
        flat = mixed.reshape(spec.heads, len(x), spec.head_dim).transpose(0, 1).reshape(len(x), -1)
        return self._linear(flat, "midlayer.self_attn.o_proj.weight")

    def _best(self, states: Tensor) -> Tensor:
        """Target id that the head ranks first, [S, H] -> int64 [S]."""
        head = self.weights["lm_head.weight"]
        return self.ids[torch.cat([(part @ head.t()).argmax(-1) for part in torch.split(states, HEAD_ROWS)])]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        return F.rms_norm(x, weight.shape, weight, self.function.spec.rms_eps)


def embedding_of(source: Source, target: Path | None, function: Mathematics, where: str) -> Tensor:
    """The draft's embedding: its own where it ships one, else one tensor of the target's files and nothing else.

    Raises UsageError when neither has it in the draft's shape.
    """
    if source.embedding is not None:
        files, names = source.files, {"embed": source.embedding.name}
    elif target is None:
        raise UsageError("it ships no embedding", where=where, remedy="give --target: only that tensor is read")
    else:
        from k25stack.draft.weights import weight_files

        files = tuple(weight_files(target))
        found = next((name for name in EMBEDDINGS for file in files if name in file.tensors), "")
        names = {"embed": found}
    tensor = read_tensors(files, names).get("embed")
    shape = (function.spec.target_vocab, function.spec.hidden)
    if tensor is None or tuple(tensor.shape) != shape:
        raise UsageError(
            f"no embedding of shape {list(shape)}", where=str(target or where), remedy="give the draft's target"
        )
    return tensor
