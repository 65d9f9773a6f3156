"""Prompts, samples and the decode mode: the typed records between prompts, regeneration and extraction.

A *prompt* is one document to be answered: its user turns and the side of the split it is on.  A *sample* is one turn
of it with the target's own answer, as token ids, together with everything that decided the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from k25stack.errors import DamageError, UsageError
from k25stack.files import canonical_json, replacing

Split = Literal["train", "validation", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "validation", "held_out")
PROMPTS = "prompts.jsonl"
SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class DecodeMode:
    """Everything that decides what the target says to a prompt.  Rows of unequal modes are not comparable."""

    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = -1  # -1: off
    thinking: bool = False
    system_prompt: str | None = None  # None: what the template does by itself; "": an empty system turn
    tools: tuple[dict[str, Any], ...] = ()  # function schemas for the chat template
    template_args: dict[str, Any] = field(default_factory=dict)  # extra arguments of the chat template
    max_new_tokens: int = 1024

    def __post_init__(self) -> None:
        bounds = {
            "temperature": self.temperature >= 0,
            "top_p": 0 < self.top_p <= 1,
            "top_k": self.top_k >= -1,
            "max_new_tokens": self.max_new_tokens >= 1,
        }
        if wrong := [name for name, good in bounds.items() if not good]:
            what = f"{wrong[0]} is {getattr(self, wrong[0])}"
            raise UsageError(what, where="decode", remedy="temperature >= 0, 0 < top_p <= 1, top_k >= -1, tokens >= 1")
        object.__setattr__(self, "tools", tuple(self.tools))

    @property
    def kind(self) -> Literal["greedy", "sampled"]:
        return "greedy" if self.temperature == 0 else "sampled"

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> DecodeMode:
        """Raises UsageError for an unknown field, or a ``kind`` that contradicts the temperature."""
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(raw) - known - {"kind"}):
            raise UsageError(f"unknown field {unknown[0]}", where="decode", remedy=f"one of {', '.join(sorted(known))}")
        mode = cls(**{key: value for key, value in raw.items() if key in known})
        if raw.get("kind", mode.kind) != mode.kind:
            what = f"kind {raw['kind']} with temperature {mode.temperature}"
            raise UsageError(what, where="decode", remedy="greedy means temperature 0")
        return mode

    def as_dict(self) -> dict[str, Any]:
        """As JSON keeps it, ``kind`` first."""
        return {"kind": self.kind, **asdict(self), "tools": list(self.tools)}

    def differences(self, other: DecodeMode) -> list[str]:
        """Names of the fields in which two modes differ; empty means comparable."""
        mine, theirs = self.as_dict(), other.as_dict()
        return [name for name in mine if canonical_json(mine[name]) != canonical_json(theirs[name])]

    def messages(self, turns: Sequence[str], answers: Sequence[str] = ()) -> list[dict[str, str]]:
        """The conversation up to and with user turn ``len(answers)``, answers in between."""
        system = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
        talk: list[dict[str, str]] = []
        for turn, answer in zip(turns, answers, strict=False):
            talk += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        return [*system, *talk, {"role": "user", "content": turns[len(answers)]}]

    def template_arguments(self) -> dict[str, Any]:
        """Keyword arguments of the chat template; both spellings of the thinking switch that templates use."""
        switch = {"thinking": self.thinking, "enable_thinking": self.thinking}
        return {"tools": list(self.tools) or None, **switch, **self.template_args}


@dataclass(frozen=True)
class Prompt:
    """One document to be answered.  All documents of one ``question_id`` are on the same side of the split."""

    doc_id: str
    question_id: str
    domain: str
    split: Split
    turns: tuple[str, ...]  # what the user says, framing included
    framing: str  # the framing's text, with {question} where the question went

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", tuple(self.turns))


@dataclass(frozen=True)
class Sample:
    """One turn of a document with the target's answer."""

    doc_id: str
    turn: int
    question_id: str
    domain: str
    split: Split
    prompt_ids: tuple[int, ...]  # chat template of the whole history, generation prompt included
    response_ids: tuple[int, ...]  # end-of-sequence token included when it was generated
    finish: Literal["stop", "length"]
    decode: dict[str, Any]  # DecodeMode.as_dict()
    template_hash: str
    target_revision: str
    engine: str
    engine_version: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", tuple(self.prompt_ids))
        object.__setattr__(self, "response_ids", tuple(self.response_ids))

    @property
    def name(self) -> str:
        """The document's name in a shard."""
        return f"{self.doc_id}/{self.turn}"

    @property
    def tokens(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def mode(self) -> DecodeMode:
        return DecodeMode.from_dict(self.decode)


Record = TypeVar("Record", Prompt, Sample)


def write_records(path: Path, records: Iterable[Prompt | Sample]) -> None:
    """Write records as JSON lines, whole or not at all; equal records give equal bytes."""
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        # vars() keeps the field order and does not copy the token ids as asdict() would
        file.writelines(json.dumps(vars(r), ensure_ascii=False, separators=(",", ":")) + "\n" for r in records)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, or of ``prompts.jsonl`` in a directory."""
    return _read(path, PROMPTS, Prompt)


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file, or of ``samples.jsonl`` in a directory."""
    return _read(path, SAMPLES, Sample)


def _read(path: Path, name: str, kind: type[Record]) -> list[Record]:
    """Raises UsageError when there is no file or no record, DamageError naming the line that is no record."""
    file = path / name if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no {name}", where=str(path), remedy="run the step that makes it first")
    records: list[Record] = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = kind(**json.loads(line))
            except (TypeError, ValueError, RecursionError) as error:
                what = f"not a {kind.__name__.lower()}: {error}"
                raise DamageError(what, where=f"{file}:{number}", remedy="run the step again") from None
            if record.split not in SPLITS:
                raise DamageError(
                    f"unknown split {record.split!r}", where=f"{file}:{number}", remedy="run the step again"
                )
            records.append(record)
    if not records:
        raise UsageError("no record in it", where=str(file), remedy="run the step that makes it again")
    return records
