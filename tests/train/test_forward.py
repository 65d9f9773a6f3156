"""The fast training step against the readable definition: loss, every gradient, every chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from twin_draft import SPEC, Twin, make_document, make_twin

from k25stack.states.document import Document
from k25stack.train import head
from k25stack.train.data import Batch, chain_starts, needed_rows, pack
from k25stack.train.head import HeadSums
from k25stack.train.loss import Outcome, chain, eager_loss, taught
from k25stack.train.weights import to_portable

DECAY = 0.8


def pack_for_training(twin: Twin, documents: Sequence[Document], steps: int) -> Batch:
    masks = [taught(d.loss_mask, d.argmax, twin.frozen.t2d) for d in documents]
    used = [(d, needed_rows(m, steps)) for d, m in zip(documents, masks, strict=True) if m.any()]
    return pack([d for d, _ in used], [rows for _, rows in used], twin.frozen, steps, teach=True)


def both(twin: Twin, documents: Sequence[Document], steps: int) -> tuple[Outcome, HeadSums]:
    """Run both; the model's parameters and ``twin.grads`` then hold the gradients."""
    outcome = eager_loss(twin.model, documents, twin.frozen.embed, twin.frozen.teacher, steps)
    outcome.weighted(DECAY).backward()
    sums = twin.fast.step(pack_for_training(twin, documents, steps), DECAY, outcome.rows)
    return outcome, sums


def portable_gradients(twin: Twin) -> dict[str, Tensor]:
    """Gradients of the fast draft under the portable names (fc's input scale turned around)."""
    grads = {name: grad.double() for name, grad in twin.grads.items()}
    return to_portable(twin.model.spec, grads, 1 / twin.frozen.channel_rms.double())


@pytest.mark.parametrize("steps", [1, 3, 4])
@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(SPEC, norm_output=True),
        replace(SPEC, kv_heads=6, draft_vocab=64),
        replace(SPEC, kv_heads=1, aux=1),
    ],
    ids=["gqa", "norm_output", "mha-full-vocab", "mqa-one-aux"],
)
def test_loss_and_gradients_equal_the_definition(documents: list[Document], spec, steps: int) -> None:
    if spec.aux != SPEC.aux:
        documents = [replace(d, aux=d.aux[:, : spec.aux_width]) for d in documents]
    twin = make_twin(spec)
    outcome, sums = both(twin, documents, steps)
    torch.testing.assert_close(sums.loss, outcome.loss.detach(), rtol=1e-10, atol=1e-12)
    assert sums.hits.tolist() == outcome.hits.tolist()
    expected = {name: p.grad for name, p in twin.model.named_parameters()}
    for name, grad in portable_gradients(twin).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_packing_changes_nothing(documents: list[Document]) -> None:
    """No row sees another document: the packed gradient is the sum of the documents' own."""
    twin = make_twin()
    rows = sum(int(taught(d.loss_mask, d.argmax, twin.frozen.t2d).sum()) for d in documents)
    twin.fast.step(pack_for_training(twin, documents, 3), DECAY, rows)
    packed = {name: grad.clone() for name, grad in twin.grads.items()}
    alone = {name: torch.zeros_like(grad) for name, grad in twin.grads.items()}
    for document in documents:
        if taught(document.loss_mask, document.argmax, twin.frozen.t2d).any():
            twin.fast.step(pack_for_training(twin, [document], 3), DECAY, rows)
            for name, grad in twin.grads.items():
                alone[name] += grad
    for name, grad in packed.items():
        torch.testing.assert_close(grad, alone[name], rtol=1e-9, atol=1e-12)


def test_supervision_with_holes(documents: list[Document]) -> None:
    """Several turns in one document: query rows are then not one run."""
    document = make_document(6, 40, seed=11)
    mask = document.loss_mask.clone()
    mask[15:24] = False
    mask[30] = False
    twin = make_twin()
    outcome, sums = both(twin, [replace(document, loss_mask=mask), documents[0]], 3)
    torch.testing.assert_close(sums.loss, outcome.loss.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(portable_gradients(twin)["fc.weight"], twin.model.fc.weight.grad, rtol=1e-9, atol=1e-12)


def test_head_in_several_blocks_and_chunks(documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    twin = make_twin()
    whole = twin.fast.step(pack_for_training(twin, documents, 3), DECAY, 50)
    grads = {name: grad.clone() for name, grad in twin.grads.items()}
    monkeypatch.setattr(head, "BLOCK_BYTES", 7 * 3 * SPEC.draft_vocab * 8)
    monkeypatch.setattr(head, "CHUNK_ROWS", 6)
    parts = twin.fast.step(pack_for_training(twin, documents, 3), DECAY, 50)
    torch.testing.assert_close(parts.loss, whole.loss)
    assert parts.hits.tolist() == whole.hits.tolist()
    for name, grad in twin.grads.items():
        torch.testing.assert_close(grad, grads[name], rtol=1e-9, atol=1e-12)


def test_bf16_is_near_the_definition(documents: list[Document]) -> None:
    """bf16 with fp32 statistics: each gradient keeps its direction."""
    exact, coarse = make_twin(std=0.1), make_twin(std=0.1, dtype=torch.bfloat16)
    outcome, _ = both(exact, documents, 3)
    sums = coarse.fast.step(pack_for_training(coarse, documents, 3), DECAY, outcome.rows)
    torch.testing.assert_close(sums.loss, outcome.loss.detach(), rtol=0.01, atol=0)
    for name, grad in coarse.grads.items():
        cosine = torch.cosine_similarity(grad.double().flatten(), exact.grads[name].flatten(), dim=0)
        assert cosine > 0.995, name


def test_accepted_is_the_run_of_leading_matches(documents: list[Document]) -> None:
    """Chains of the fast draft against argmax over the readable one's logits, token by token."""
    twin, steps = make_twin(), 3
    used = [d for d in documents if len(chain_starts(d.loss_mask))]
    batch = pack(used, [chain_starts(d.loss_mask) for d in used], twin.frozen, steps, teach=False)
    # A random draft rarely matches twice: make every other document say what the draft proposes.
    expected: list[int] = []
    for document in used:
        streams = chain(twin.model, document, twin.frozen.embed, steps)
        proposals = [twin.frozen.target_ids[twin.model.logits(s).argmax(-1)] for s in streams]
        for row in chain_starts(document.loss_mask).tolist():
            run = 0
            while run < steps and row + 2 + run < len(document):
                if proposals[run][row] != document.token_ids[row + 2 + run]:
                    break
                run += 1
            expected.append(run)
    assert twin.fast.accepted(batch, steps).tolist() == expected
    assert any(expected)


def test_a_document_that_follows_the_draft_is_accepted_whole() -> None:
    """Write the draft's own greedy chain into a document: every proposal of the first chain then matches."""
    twin, steps = make_twin(), 3
    document = make_document(5, 8, seed=3)
    tokens = document.token_ids.clone()
    start = int(chain_starts(document.loss_mask)[0])
    for step in range(steps):
        streams = chain(twin.model, replace(document, token_ids=tokens), twin.frozen.embed, steps)
        tokens[start + 2 + step] = twin.frozen.target_ids[twin.model.logits(streams[step][start]).argmax()]
    document = replace(document, token_ids=tokens)
    batch = pack([document], [chain_starts(document.loss_mask)], twin.frozen, steps, teach=False)
    assert twin.fast.accepted(batch, steps)[0] == steps
