"""The drafter: keeps the draft's cache level with the target's and proposes chains of k tokens.

With tokens x_0 .. x_m known and the target's states of positions 0 .. m-1 captured::

    draft row t    = (aux state of t, embedding of x_(t+1))        predicts x_(t+2), sits at position t
    extend         rows m-c .. m-1   from the target's states      -> candidate for x_(m+1)
    chain step 1   row m             (own state of row m-1, embedding of candidate 1)
    chain step i   row m+i-1         (own state of the row before, embedding of candidate i)

After the verify call the target's states of the c committed positions replace the draft's own: their rows are
computed anew at the start of the next round (`extend`), and chain rows behind them are overwritten later.  A row
attends to positions up to its own, so leftovers are never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from k25stack.draft.model import DraftModel
from k25stack.reference.attention import Span
from k25stack.reference.packed_draft import PackedDraft
from k25stack.reference.request import Active
from k25stack.reference.sampling import draw
from k25stack.reference.target import top_ids


@dataclass(frozen=True)
class Proposals:
    """Chains of one round: ``tokens`` [B][k] target ids; ``probs[b]`` [k, D] for requests that sample, else None."""

    tokens: list[list[int]]
    probs: list[Tensor | None]


class Drafter:
    """Draft, its cache, and the target states that wait for their draft rows."""

    def __init__(self, model: DraftModel, embed: Tensor, k: int, slots: int, max_len: int) -> None:
        """``embed`` [V, H]: the target's embedding, which the draft borrows."""
        self.model = PackedDraft(model, slots, max_len)
        self.embed = embed
        self.k = k
        self.waiting = torch.zeros(slots, k + 1, model.spec.aux_width, dtype=embed.dtype)
        self.target_ids = model.target_ids()  # [D]

    def prefill(self, following: Tensor, aux: Tensor, spans: Sequence[Span]) -> None:
        """Rows of prompt chunks: ``following`` [T] the *next* token of each position, ``aux`` [T, 3H]."""
        self.model.step_packed(self.model.fuse(aux), self.embed[following], spans)

    def observe(self, slots: Tensor, aux: Tensor) -> None:
        """Keep the target's states [B, n <= k+1, 3H] of positions whose draft rows are still to be computed."""
        self.waiting[slots, : aux.shape[1]] = aux

    def propose(self, batch: Sequence[Active], sample: bool) -> Proposals:
        """Chains for all requests of the batch, which all have at least one pending position.

        ``sample``: requests that sample draw their proposals from the draft at their own temperature; otherwise
        (target_only) every proposal is the draft's argmax.
        """
        slots = torch.tensor([active.slot for active in batch])
        known = torch.tensor([active.cached for active in batch])  # position of the newest token
        chain = Chain(batch, sample, self.target_ids)
        stream = self._extend(batch, slots, known)  # [B, H]
        chain.choose(self.model.logits(stream))
        for step in range(self.k - 1):
            # [B, 1, H]: own state of the row before, and the embedding of the candidate just chosen
            state = self.model.next_hidden(stream).unsqueeze(1)
            embeds = self.embed[chain.newest].unsqueeze(1)
            stream = self.model.step(state, embeds, slots, known + step)[:, 0]
            chain.choose(self.model.logits(stream))
        return chain.proposals()

    def _extend(self, batch: Sequence[Active], slots: Tensor, known: Tensor) -> Tensor:
        """Compute the pending rows; returns the stream [B, H] of the last one of each request."""
        counts = [active.pending for active in batch]
        width = max(counts)
        following = [
            [active.token(active.cached - count + 1 + min(row, count - 1)) for row in range(width)]
            for active, count in zip(batch, counts, strict=True)
        ]
        pending = torch.tensor(counts)
        aux = self.waiting[slots, :width].flatten(0, 1)  # [B*width, 3H]
        hidden = self.model.fuse(aux).view(len(batch), width, -1)
        stream = self.model.step(hidden, self.embed[torch.tensor(following)], slots, known - pending)
        return stream[torch.arange(len(batch)), pending - 1]


class Chain:
    """Collects the candidates of one round, step by step."""

    def __init__(self, batch: Sequence[Active], sample: bool, target_ids: Tensor) -> None:
        self.target_ids = target_ids
        self.sampled = [
            (row, active) for row, active in enumerate(batch) if sample and not active.request.sampling.greedy
        ]
        self.size = len(batch)
        self.steps: list[Tensor] = []  # [B] target ids each
        self.probs: dict[int, list[Tensor]] = {row: [] for row, _ in self.sampled}

    @property
    def newest(self) -> Tensor:
        """Target ids [B] of the last step's candidates."""
        return self.steps[-1]

    def choose(self, logits: Tensor) -> None:
        """Take the next candidate of each row from draft logits [B, D]."""
        local = top_ids(logits)  # [B]
        for row, active in self.sampled:
            probs = (logits[row].float() / active.request.sampling.temperature).softmax(-1)
            local[row] = draw(probs, active.rng.random())
            self.probs[row].append(probs)
        self.steps.append(self.target_ids[local])

    def proposals(self) -> Proposals:
        tokens: list[list[int]] = torch.stack(self.steps, dim=1).tolist()  # [B][k]
        probs = [torch.stack(self.probs[row]) if row in self.probs else None for row in range(self.size)]
        return Proposals(tokens, probs)
