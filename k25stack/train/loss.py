"""What is trained: the loss, its population, and a readable reference of the whole chain.

::

    loss = sum_i decay^i sum_t m(t,i) CE(softmax(last[t+1+i] W_draft), logits_i[t]) / sum_t m(t,0)

    m(t,i) = 1 where token t+2+i is supervised, lies in the same document as row t, and the target's own greedy
             choice for it, argmax[t+1+i], is in the draft vocabulary

Row t of step i predicts token t+2+i, so with u = t+1+i everything but the row's existence depends on u alone: `taught`
is that set.  Accuracies are shares of one population for all steps, the supervised tokens, whether the draft
vocabulary holds them or not: a token outside it is a miss.

Differences to published definitions (``tests/train/test_published.py`` states them as equations):

* EAGLE and SpecForge: the same cross-entropy, as a mean over all rows of the batch, prompt rows included; the gradient
  therefore shrinks with the share of prompts.
* speculators: KL(teacher || draft) over supervised rows, that is the cross-entropy less the teacher's entropy (no
  gradient); rows whose target lies outside the draft vocabulary are trained on the renormalised teacher, and its
  accuracy leaves out what the draft cannot say.

`eager_loss` is the definition in plain operations, document by document, through ``DraftModel``.  It is slow and
kept as the reference for ``forward.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from k25stack.draft.model import DraftModel
from k25stack.states.document import Document


def supervised(loss_mask: Tensor) -> Tensor:
    """bool [T]: true at u where token u+1 is supervised and row u-1 exists to predict it."""
    result = torch.zeros_like(loss_mask, dtype=torch.bool)
    result[1:-1] = loss_mask[2:]
    return result


def taught(loss_mask: Tensor, argmax: Tensor, t2d: Tensor) -> Tensor:
    """bool [T]: true at u where m(u-1-i, i) = 1 for every step i whose row exists."""
    return supervised(loss_mask) & t2d[argmax.long()]


@dataclass(frozen=True)
class Outcome:
    """Sums over documents; step i of k is entry i."""

    loss: Tensor  # sum_t m(t,i) CE, [k]
    hits: Tensor  # rows of the loss whose best draft token is the target's, int64 [k]
    rows: int  # sum_t m(t,0)
    population: int  # supervised tokens, in the draft vocabulary or not

    def weighted(self, decay: float) -> Tensor:
        """The loss."""
        weights = decay ** torch.arange(len(self.loss), dtype=self.loss.dtype)
        return (weights * self.loss).sum() / self.rows

    def accuracy(self) -> Tensor:
        return self.hits / self.population


def chain(model: DraftModel, document: Document, embed: Tensor, steps: int) -> list[Tensor]:
    """Streams of all steps for every row that has a next token, each [T-1, H].

    Rows whose step-i token lies behind the end get some other embedding: nothing of them is in the loss, and no
    other row sees them.
    """
    dtype = model.fc.weight.dtype
    count = len(document) - 1
    rows = torch.arange(count)
    causal = rows <= rows[:, None]  # [T-1, T-1]: row t sees keys up to t
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys.append(k)
        values.append(v)
        own = torch.eye(count, dtype=torch.bool)
        visible = torch.cat([causal] + [own] * (len(keys) - 1), dim=1)  # [T-1, (T-1)*(i+1)]
        past = torch.cat(keys, dim=2), torch.cat(values, dim=2)
        return functional.scaled_dot_product_attention(q, *past, attn_mask=visible, enable_gqa=True)

    state = model.fuse(document.aux[:-1].to(dtype))[None]  # [1, T-1, H]
    streams = []
    for step in range(steps):
        tokens = document.token_ids[(rows + 1 + step).clamp_max(count)]
        stream = model.step(state, embed[tokens].to(dtype)[None], rows + step, attend)
        state = model.next_hidden(stream)
        streams.append(stream[0])
    return streams


def eager_loss(model: DraftModel, documents: Sequence[Document], embed: Tensor, head: Tensor, steps: int) -> Outcome:
    """The definition.  ``embed`` [V, H] and ``head`` [D, H], the target's rows of the draft vocabulary."""
    dtype = model.fc.weight.dtype
    place = torch.cumsum(model.t2d, 0) - 1  # draft id of a target id in the vocabulary
    loss = [torch.zeros((), dtype=dtype) for _ in range(steps)]
    hits, rows, population = torch.zeros(steps, dtype=torch.int64), 0, 0
    for document in documents:
        mask = taught(document.loss_mask, document.argmax, model.t2d)
        for step, stream in enumerate(chain(model, document, embed, steps)):
            t = (mask.nonzero().squeeze(1) - 1 - step).clamp_min(-1)
            t = t[t >= 0]
            u = t + 1 + step
            teacher = torch.softmax(document.last[u].to(dtype) @ head.to(dtype).T, dim=-1)  # [n, D]
            logits = model.logits(stream[t])
            loss[step] = loss[step] - (teacher * torch.log_softmax(logits, dim=-1)).sum()
            hits[step] += int((logits.argmax(-1) == place[document.argmax[u].long()]).sum())
        rows += int(mask.sum())
        population += int(supervised(document.loss_mask).sum())
    return Outcome(torch.stack(loss), hits, rows, population)
