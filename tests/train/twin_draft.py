"""A small draft as the readable module and as the fast one, and documents to feed both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from k25stack.draft.model import DraftModel
from k25stack.draft.spec import DraftSpec
from k25stack.states.document import Document
from k25stack.train.forward import FastDraft
from k25stack.train.weights import Frozen, draft_ids, from_portable

torch.set_num_threads(1)

SPEC = DraftSpec(
    hidden=32, heads=6, kv_heads=2, head_dim=8, intermediate=48, draft_vocab=40, target_vocab=64, rope_theta=100.0
)


@dataclass
class Twin:
    """The same draft twice: as the readable module and as the fast one."""

    model: DraftModel
    fast: FastDraft
    values: dict[str, Tensor]
    grads: dict[str, Tensor]
    frozen: Frozen


def make_twin(spec: DraftSpec = SPEC, dtype: torch.dtype = torch.float64, seed: int = 0, std: float = 0.2) -> Twin:
    """Random weights large enough that every part of the layer matters."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ids = torch.randperm(spec.target_vocab, generator=generator)[: spec.draft_vocab].sort().values
    frozen = Frozen(
        embed=normal(spec.target_vocab, spec.hidden),
        teacher=normal(spec.draft_vocab, spec.hidden) * 0.5,
        target_ids=ids,
        draft_ids=draft_ids(ids, spec.target_vocab),
        channel_rms=normal(spec.aux_width).abs().add(0.1).to(torch.float32),
    )
    portable = {name: normal(*shape) * std for name, shape in spec.weights().items()}
    for name in portable:
        if name.endswith("norm.weight"):
            portable[name] = 1 + portable[name]
    model = DraftModel(spec).to(dtype)
    maps = {"d2t": ids - torch.arange(len(ids)), "t2d": frozen.t2d} if not spec.full_vocab else {}
    model.load_state_dict({**portable, **maps})
    wide = torch.promote_types(dtype, torch.float32)
    values = {
        name: value.to(wide if name.startswith("norm_") else dtype).contiguous()
        for name, value in from_portable(portable, frozen.channel_rms.double()).items()
    }
    grads = {name: torch.full_like(value, torch.nan) for name, value in values.items()}
    frozen = frozen.to(dtype)
    return Twin(model, FastDraft(spec, values, grads, frozen), values, grads, frozen)


def make_document(
    prompt: int, response: int, seed: int, spec: DraftSpec = SPEC, dtype: torch.dtype = torch.float64
) -> Document:
    generator = torch.Generator().manual_seed(seed)
    count = prompt + response
    rows = torch.arange(count)
    before_response = (rows >= prompt - 1) & (rows < count - 1)  # extraction gives no choice (-1) elsewhere
    best = torch.randint(spec.target_vocab, (count,), generator=generator)
    return Document(
        doc_id=f"{seed:016x}",
        turn=1,
        domain="even" if seed % 2 == 0 else "odd",
        token_ids=torch.randint(spec.target_vocab, (count,), generator=generator),
        loss_mask=rows >= prompt,
        aux=torch.randn(count, spec.aux_width, generator=generator, dtype=torch.float64).to(dtype),
        last=torch.randn(count, spec.hidden, generator=generator, dtype=torch.float64).to(dtype),
        argmax=torch.where(before_response, best, -1).to(torch.int32),
    )
