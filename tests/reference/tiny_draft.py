"""A small draft that has learnt a little of the tiny target, so that rounds accept none, some and all proposals."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
import torch.nn.functional as F

from k25stack.draft.model import DraftModel, causal_attend
from k25stack.draft.spec import DraftSpec
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.request import Request
from k25stack.reference.target import Target

LAYERS = (1, 3, 5)  # canonical ids
K = 3
SPEC = DraftSpec(64, 4, 2, 16, 128, draft_vocab=256, target_vocab=512, max_position=1024)


def prompts(count: int, seed: int, longest: int = 40) -> list[tuple[int, ...]]:
    """Random byte tokens, 3 to ``longest`` of them."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(4, 260) for _ in range(rng.randrange(3, longest + 1))) for _ in range(count)]


def responses(target: Target, asked: list[tuple[int, ...]], tokens: int) -> list[tuple[int, ...]]:
    engine = Engine(target, config=EngineConfig(slots=32, max_len=256))
    results = engine.generate(Request(str(i), prompt, tokens) for i, prompt in enumerate(asked))
    return [results[str(i)].tokens for i in range(len(asked))]


def train(target: Target, steps: int = 40) -> DraftModel:
    """Cross-entropy on the target's own greedy text, first draft step only; float32, same result every time."""
    asked = prompts(48, seed=1, longest=8)
    texts = [prompt + text for prompt, text in zip(asked, responses(target, asked, 56), strict=True)]
    ids = torch.tensor([text[-56:] for text in texts])  # [B, T]
    count = torch.bincount(ids.flatten(), minlength=512)
    held = count.argsort(descending=True, stable=True)[: SPEC.draft_vocab].sort().values  # target ids, ascending
    draft = DraftModel(SPEC).init_random(0)
    draft.d2t = held - torch.arange(SPEC.draft_vocab)
    draft.t2d = torch.zeros(512, dtype=torch.bool).index_fill_(0, held, True)
    local = torch.full((512,), -100).index_copy_(0, held, torch.arange(SPEC.draft_vocab))
    offsets = torch.arange(0, ids.numel() + 1, ids.shape[1])
    aux = target.prefill_packed(ids.flatten(), offsets, LAYERS).aux.view(*ids.shape, -1).clone()
    embeds = target.embed[ids]
    optimizer = torch.optim.AdamW(draft.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(steps):
        hidden, positions = draft.fuse(aux[:, :-2]), torch.arange(ids.shape[1] - 2)
        stream = draft.step(hidden, embeds[:, 1:-1], positions, causal_attend)
        loss = F.cross_entropy(draft.logits(stream).flatten(0, 1), local[ids[:, 2:]].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return draft.requires_grad_(False)


def write(draft: DraftModel, directory: Path) -> Path:
    """A draft directory as the package step lays it out, as far as the engine reads it."""
    from k25stack.draft.config import config_json
    from k25stack.draft.target import TargetFacts
    from k25stack.draft.weights import save_portable

    directory.mkdir(parents=True)
    facts = TargetFacts("llama", "llama", 64, 6, 512, 1024, (2,), 1)
    (directory / "config.json").write_text(json.dumps(config_json(SPEC, facts, LAYERS)))
    save_portable(directory / "model.safetensors", SPEC, draft.state_dict(), {})
    return directory
