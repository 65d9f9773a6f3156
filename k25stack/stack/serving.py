"""Serving profiles: each is one way to start an engine and one row of the benchmark table."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from k25stack.stack.base import Name, Positive, Scalar, Section, Text, Version, problem
from k25stack.stack.host import EngineName

OptionValue: TypeAlias = Scalar | tuple[Scalar, ...] | dict[str, object]
Option: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Variable: TypeAlias = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")]
Role: TypeAlias = Literal["none", "baseline", "control", "draft"]


class Speculative(Section):
    """Speculative decoding with a draft model."""

    algorithm: Literal["eagle3"] = "eagle3"
    k: Positive  # draft tokens per round (chain), or steps when topk > 1
    topk: Positive = 1  # 1: a chain
    draft_tokens: Positive | None = None  # rows verified per round; null: k + 1 (a chain allows nothing else)
    draft: Text  # own | random | owner/name on a hub | a directory (starts with / or .)
    alternatives: tuple[Text, ...] = ()  # other drafts worth a try in its place; never taken by themselves
    attention_backend: Name | None = None  # of the draft; null: the engine's choice

    @model_validator(mode="after")
    def _chain_rows(self) -> Speculative:
        if self.topk == 1 and self.draft_tokens not in (None, self.k + 1):
            rows = f"a chain of k={self.k} verifies {self.k + 1} rows"
            raise problem(f"{rows}; the engine would rewrite {self.draft_tokens}", "draft_tokens")
        if self.topk > 1 and self.draft_tokens is None:
            raise problem("a tree (topk > 1) needs draft_tokens")
        return self

    @property
    def rows(self) -> int:
        """Rows of one sequence in a verify pass."""
        return self.draft_tokens or self.k + 1


class Profile(Section):
    """How one server is started.  ``argv`` keys are the engine's own option names without dashes."""

    engine: EngineName
    version: Version  # left out in the file: the stack's version of that engine
    image: Name | None = None  # left out in the file: the image of that engine
    role: Role = "none"  # baseline: speed-ups are measured against it; control: a random draft; draft: ours
    compare_to: Name | None = None  # the profile without a draft that speed-up and break-even mean; null: the baseline
    tensor_parallel: Positive = 1
    context: Positive | None = None  # tokens; null: the target's
    max_running: Positive | None = None  # sequences decoded at once; required with speculation
    speculative: Speculative | None = None
    argv: dict[Option, OptionValue] = Field(default_factory=dict)  # true: bare flag; false: left out
    env: dict[Variable, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _speculation_names_its_batch(self) -> Profile:
        if self.speculative is not None and self.max_running is None:
            raise problem("speculation needs max_running (SGLang caps it at 48 in silence otherwise)")
        return self


class Serving(Section):
    default: Name  # the profile that serve starts
    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 30000
    ready_s: Positive = 1800  # until the server must answer
    profiles: Annotated[dict[Name, Profile], Field(min_length=1)]

    @model_validator(mode="after")
    def _default_exists(self) -> Serving:
        if self.default not in self.profiles:
            raise problem(f"no profile {self.default!r}; there are {', '.join(self.profiles)}", "default")
        return self
