"""How a regeneration is divided into chunks, and which of them an earlier try has finished (no torch)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from k25stack.errors import UsageError
from k25stack.files import canonical_json, read_json, sha256_text
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference.config import TargetConfig
from k25stack.reference.parts import ChunkRecord
from k25stack.train.samples import DecodeMode, Prompt


@dataclass(frozen=True)
class Settings:
    """The step's params, checked, and what else decides the answers."""

    decode: DecodeMode
    sampled: dict[str, float] | None  # share, temperature, top_p
    seed: int
    slots: int
    chunk_docs: int
    context: int  # tokens of prompt and answer
    record: tuple[int, ...] | None  # canonical ids of the states to keep
    template_hash: str
    target_revision: str

    @classmethod
    def read(cls, params: dict[str, Any], target: Path, tokenizer: Tokenizer) -> Settings:
        """Raises UsageError for a missing or impossible value."""
        try:
            record = params.get("record")
            settings = cls(
                decode=DecodeMode.from_dict(params["decode"]),
                sampled=params.get("sampled"),
                seed=int(params["seed"]),
                slots=int(params["slots"]),
                chunk_docs=int(params["chunk_docs"]),
                context=min(int(params.get("context") or sys.maxsize), TargetConfig.read(target).context),
                record=None if record is None else tuple(record["layers"]),
                template_hash=tokenizer.template_hash,
                target_revision=target_revision(target),
            )
        except KeyError as error:
            raise UsageError(f"no param {error}", where="regenerate") from None
        if min(settings.slots, settings.chunk_docs) < 1:
            raise UsageError("slots and chunk_docs must be at least 1", where="regenerate")
        return settings

    def mode(self, prompt: Prompt) -> DecodeMode:
        """How a document is answered: held-out and validation always greedily, a share of the others sampled."""
        if prompt.split != "train":
            return replace(self.decode, temperature=0.0, top_p=1.0, top_k=-1)
        if self.sampled is None or self._unit("sampled", prompt.doc_id) >= self.sampled["share"]:
            return self.decode
        return replace(self.decode, temperature=self.sampled["temperature"], top_p=self.sampled.get("top_p", 1.0))

    def draw_seed(self, prompt: Prompt, turn: int) -> int:
        """Seed of one answer's draws."""
        return int(sha256_text(f"{self.seed}/answer/{prompt.doc_id}/{turn}")[:16], 16)

    def _unit(self, purpose: str, doc_id: str) -> float:
        """A number in [0, 1) that this document always gets."""
        return int(sha256_text(f"{self.seed}/{purpose}/{doc_id}")[:13], 16) / 16**13

    def prompt_ids(self, tokenizer: Tokenizer, prompt: Prompt, answers: Sequence[str] = ()) -> tuple[int, ...]:
        """Token ids of the conversation up to the answer that comes next.

        Raises UsageError when the context has no room for a token after it.
        """
        mode = self.mode(prompt)
        ids = tokenizer.ids_of_chat(mode.messages(prompt.turns, answers), **mode.template_arguments())
        if len(ids) >= self.context:
            what = f"a prompt of {len(ids)} tokens leaves no room in a context of {self.context}"
            where = f"document {prompt.doc_id} ({prompt.domain} {prompt.question_id}), turn {len(answers)}"
            raise UsageError(what, where=where, remedy="raise the context or leave the document out")
        return tuple(ids)


@dataclass(frozen=True)
class Setup:
    """What all chunks share, in a form that travels to a child process."""

    target: str  # model directory
    out: str
    settings: Settings


@dataclass(frozen=True)
class Chunk:
    """Some documents with all their turns: the unit of work."""

    number: int
    prompts: tuple[Prompt, ...]
    key: str  # hash of everything that decides its samples

    @property
    def answers(self) -> int:
        return sum(len(prompt.turns) for prompt in self.prompts)

    @property
    def part(self) -> str:
        """Stem of its files."""
        return f"part-{self.number:04d}"


class Plan:
    """Which chunks there are, which are finished, and which can run now."""

    def __init__(self, prompts: Sequence[Prompt], settings: Settings, tokenizer: Tokenizer, parts: Path) -> None:
        """Raises UsageError when a prompt leaves no room for an answer."""
        self.settings = settings
        self.finished: list[Chunk] = []
        self.ready: list[Chunk] = []
        for number, members in enumerate(divide(prompts, settings, tokenizer)):
            decides = [asdict(settings), [asdict(prompt) for prompt in members]]
            chunk = Chunk(number, members, sha256_text(canonical_json(decides)))
            record = ChunkRecord.read(parts / f"{chunk.part}.json")
            whole = record is not None and record.key == chunk.key and record.intact(parts)
            (self.finished if whole else self.ready).append(chunk)
        self.earlier = frozenset(chunk.part for chunk in self.finished)


def divide(prompts: Sequence[Prompt], settings: Settings, tokenizer: Tokenizer) -> list[tuple[Prompt, ...]]:
    """Documents in chunks: those of most turns first, then by length of the first prompt, longest first.

    Chunks have at most ``chunk_docs`` documents, those of several turns accordingly fewer.
    """
    for prompt in prompts:
        if not prompt.turns:
            raise UsageError("no question in it", where=f"document {prompt.doc_id}", remedy="leave it out")
    lengths = {prompt.doc_id: len(settings.prompt_ids(tokenizer, prompt)) for prompt in prompts}
    ordered = sorted(prompts, key=lambda p: (-len(p.turns), -lengths[p.doc_id], p.doc_id))
    chunks = []
    while ordered:
        turns = len(ordered[0].turns)
        alike = sum(len(prompt.turns) == turns for prompt in ordered)
        size = min(-(-settings.chunk_docs // turns), alike)
        chunks.append(tuple(ordered[:size]))
        del ordered[:size]
    return chunks


def target_revision(directory: Path) -> str:
    """What pins the target's weights.  Raises UsageError when its target.json does not say."""
    path = directory / "target.json"
    try:
        return str(read_json(path)["revision"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        raise UsageError("no revision of the target", where=str(path), remedy="make it with the target step") from None
