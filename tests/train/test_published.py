"""Our loss beside the published ones, computed from the same weights: what is equal, and by how much the rest differs.

Every published definition is written out here from its formula, on its own layout: one padded batch [B, T], masks
instead of row lists.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from twin_draft import Twin, make_twin

from k25stack.states.document import Document
from k25stack.train.loss import Outcome, chain, eager_loss, supervised, taught

STEPS, DECAY = 3, 0.8


@pytest.fixture(scope="module")
def twin() -> Twin:
    return make_twin()


@pytest.fixture(scope="module")
def ours(twin: Twin, documents: list[Document]) -> Outcome:
    with torch.no_grad():
        return eager_loss(twin.model, documents, twin.frozen.embed, twin.frozen.teacher, STEPS)


@pytest.fixture(scope="module")
def padded(twin: Twin, documents: list[Document]) -> dict[str, Tensor]:
    """log q and p [k, B, T, D] with row t holding what it predicts at step i; masks [k, B, T]."""
    size, width = max(map(len, documents)), twin.model.spec.draft_vocab
    shape = (STEPS, len(documents), size)
    log_q, p = torch.zeros(*shape, width, dtype=torch.float64), torch.zeros(*shape, width, dtype=torch.float64)
    known, held = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    best = torch.full(shape, -1)
    for b, document in enumerate(documents):
        teacher = torch.softmax(document.last @ twin.frozen.teacher.T, dim=-1)
        in_loss = taught(document.loss_mask, document.argmax, twin.frozen.t2d)
        answers = supervised(document.loss_mask)
        with torch.no_grad():
            streams = chain(twin.model, document, twin.frozen.embed, STEPS)
            for i, stream in enumerate(streams):
                for t in range(len(document) - 1):
                    u = t + 1 + i  # the token after u is predicted
                    if u < len(document):
                        log_q[i, b, t] = torch.log_softmax(twin.model.logits(stream[t]), dim=-1)
                        p[i, b, t] = teacher[u]
                        known[i, b, t], held[i, b, t] = answers[u], in_loss[u]
                        best[i, b, t] = twin.frozen.draft_ids[int(document.argmax[u])]
    return {"log_q": log_q, "p": p, "supervised": known, "taught": held, "best": best}


def test_eagle_and_specforge_are_ours_with_another_divisor(padded: dict[str, Tensor], ours: Outcome) -> None:
    """EAGLE ``cnets.py``, SpecForge ``core/loss.py``: soft cross-entropy over rows whose target the draft vocabulary
    holds, as a mean over all B*T rows, step weight 0.8^i.  So theirs = ours * sum_t m(t,0) / (B*T)."""
    cross = -(padded["p"] * padded["log_q"]).sum(-1)  # [k, B, T]
    per_step = (cross * padded["taught"]).mean(dim=(1, 2))
    theirs = sum(DECAY**i * per_step[i] for i in range(STEPS))
    rows = padded["taught"][0].numel()
    torch.testing.assert_close(theirs, ours.weighted(DECAY) * ours.rows / rows)


def test_speculators_differs_by_entropy_and_by_tokens_outside_the_vocabulary(
    padded: dict[str, Tensor], ours: Outcome
) -> None:
    """speculators ``losses``: KL(p || q) over all supervised rows, step weight 1, mean over the supervised tokens of
    the step; rows whose target the draft vocabulary lacks are trained on the renormalised teacher.

    So, step by step, theirs * rows = ours * rows(ours) - entropy(taught rows) + KL(rows outside)."""
    p, log_q = padded["p"], padded["log_q"]
    entropy = -torch.special.xlogy(p, p).sum(-1)  # [k, B, T]
    divergence = -(p * log_q).sum(-1) - entropy
    outside = padded["supervised"] & ~padded["taught"]
    for i in range(STEPS):
        theirs = (divergence[i] * padded["supervised"][i]).sum() / padded["supervised"][i].sum()
        expected = ours.loss[i] - (entropy[i] * padded["taught"][i]).sum() + (divergence[i] * outside[i]).sum()
        torch.testing.assert_close(theirs * padded["supervised"][i].sum(), expected)
    assert outside.any()


def test_entropy_has_no_gradient_so_kl_and_cross_entropy_train_alike(twin: Twin) -> None:
    """On rows that both use, d KL / d logits = d CE / d logits = q - p."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 40, generator=generator, dtype=torch.float64, requires_grad=True)
    p = torch.softmax(torch.randn(5, 40, generator=generator, dtype=torch.float64), dim=-1)
    log_q = torch.log_softmax(logits, dim=-1)
    cross = -(p * log_q).sum()
    divergence = (p * (p.log() - log_q)).sum()
    for loss in (cross, divergence):
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        torch.testing.assert_close(gradient, log_q.exp() - p)


def test_accuracy_counts_what_the_vocabulary_lacks(padded: dict[str, Tensor], ours: Outcome) -> None:
    """speculators leaves tokens outside the draft vocabulary out of both counts; ours keeps them as misses.  So with
    the share kappa of supervised tokens inside it, ours = theirs * kappa (at step 0, where both count every row)."""
    right = (padded["log_q"][0].argmax(-1) == padded["best"][0]) & padded["taught"][0]
    theirs = right.sum() / padded["taught"][0].sum()
    kappa = ours.rows / ours.population
    assert 0 < kappa < 1
    torch.testing.assert_close(ours.accuracy()[0], (theirs * kappa).float())
