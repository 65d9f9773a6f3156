"""Serving profiles: each is one way to start an engine and one row of the benchmark table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from k25stack.stack.base import Name, Positive, Scalar, Section, Text, Version, problem
from k25stack.stack.host import EngineName

OptionValue: TypeAlias = Scalar | tuple[Scalar, ...] | dict[str, object]
Option: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Variable: TypeAlias = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")]
Role: TypeAlias = Literal["none", "baseline", "control", "draft"]
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")


class Speculative(Section):
    """Speculative decoding with a draft model."""

    algorithm: Literal["eagle3"] = "eagle3"
    k: Positive  # draft tokens per round (chain), or steps when topk > 1
    topk: Positive = 1  # 1: a chain
    draft_tokens: Positive | None = None  # rows verified per round; null: k + 1 (a chain allows nothing else)
    draft: Text  # own | random | owner/name on a hub | a directory (starts with / or .)
    draft_revision: Text | None = None  # of a hub's draft: the commit; anything else is not pinned and not fetched
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

    @model_validator(mode="after")
    def _revision_of_a_hub(self) -> Speculative:
        if self.draft_revision is not None and not self.hub_draft:
            message = f"the draft {self.draft!r} comes from no hub; write draft_revision: null"
            raise problem(message, "draft_revision")
        return self

    @property
    def hub_draft(self) -> str:
        """owner/name of a draft that comes from a hub; empty for any other."""
        return self.draft if HUB_NAME.fullmatch(self.draft) else ""

    @property
    def unpinned(self) -> str:
        """What is wrong with the pin of a hub's draft; empty when a commit decides its content, or no hub is asked."""
        if not self.hub_draft or COMMIT.fullmatch(self.draft_revision or ""):
            return ""
        named = "no draft_revision is given" if self.draft_revision is None else f"{self.draft_revision!r} is no commit"
        return f"the draft {self.draft} is not pinned: {named}"

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


def how_to_pin(profile: str) -> str:
    """The remedy for an unpinned draft of a profile."""
    ask = f"`k25stack stack fetch STACK --draft {profile} -n` asks the hub for its newest one"
    return f"write the 40 hex digits of a commit as speculative.draft_revision of {profile}; {ask}"


def unpinned_drafts(profiles: Mapping[str, Profile]) -> list[str]:
    """One line for people about every draft of a hub whose content may change any day."""
    return [
        f"profile {name}: {profile.speculative.unpinned} ({how_to_pin(name)})"
        for name, profile in profiles.items()
        if profile.speculative is not None and profile.speculative.unpinned
    ]
