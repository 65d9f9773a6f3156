"""The whole stack file, and what must agree between its sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from pydantic import Field, model_validator

from k25stack.errors import UsageError
from k25stack.stack.base import Name, Section, problem
from k25stack.stack.bench import Bench, Gates, ReferenceResult
from k25stack.stack.data import Data
from k25stack.stack.host import EngineName, EngineVersion, Host, Image
from k25stack.stack.serving import Profile, Serving
from k25stack.stack.target import Target
from k25stack.stack.training import Draft, Extraction, Training

Path: TypeAlias = tuple[str | int, ...]


class Stack(Section):
    """One source of truth for a run.  Read it with ``load_stack``; it never changes afterwards."""

    format: Literal[1]  # of this file
    name: Name  # runs are called <name>-<n>
    description: str = ""
    target: Target
    host: Host
    images: dict[Name, Image] = Field(default_factory=dict)
    engines: dict[EngineName, EngineVersion]
    data: Data
    extraction: Extraction
    draft: Draft
    training: Training
    serving: Serving
    bench: Bench = Field(default_factory=Bench)
    gates: Gates = Field(default_factory=Gates)
    reference_results: tuple[ReferenceResult, ...] = ()

    @model_validator(mode="after")
    def _sections_agree(self) -> Stack:
        for path, message in _disagreements(self):
            raise problem(message, *path)
        return self

    def profile(self, name: str | None = None) -> Profile:
        """The named serving profile, or the default.  Raises UsageError with the names there are."""
        wanted = name or self.serving.default
        if wanted not in self.serving.profiles:
            raise UsageError(f"no profile {wanted!r}", where=self.name, remedy="there are "
                             + ", ".join(self.serving.profiles))  # fmt: skip
        return self.serving.profiles[wanted]

    def draft_spec(self) -> dict[str, Any]:
        """The fields of the draft's shape under the names that ``k25stack.draft.spec.DraftSpec`` has."""
        draft, shape = self.draft, self.target.shape
        return {
            "hidden": shape.hidden,
            "heads": draft.heads,
            "kv_heads": draft.kv_heads,
            "head_dim": draft.head_dim,
            "intermediate": draft.intermediate,
            "draft_vocab": draft.vocab,
            "target_vocab": shape.vocab,
            "aux": len(self.extraction.layers),
            "rms_eps": draft.rms_eps,
            "rope_theta": draft.rope_theta,
            "max_position": draft.max_position,
            "target_hidden": shape.hidden,
            "norm_output": draft.norm_output,
        }

    def bench_profiles(self) -> tuple[str, ...]:
        """Names of the profiles that are benchmarked, in table order."""
        return self.bench.profiles or tuple(self.serving.profiles)


def _disagreements(stack: Stack) -> Iterator[tuple[Path, str]]:
    """What contradicts between sections: the path of the value to change, and why."""
    yield from _shape_disagreements(stack)
    yield from _engine_disagreements(stack)
    for name, profile in stack.serving.profiles.items():
        for key, message in _profile_disagreements(stack, profile):
            yield ("serving", "profiles", name, key), message
    for index, name in enumerate(stack.bench.profiles):
        if name not in stack.serving.profiles:
            yield ("bench", "profiles", index), f"no profile {name!r} under serving.profiles"
    for name in stack.bench.overrides:
        if name not in stack.bench_profiles():
            yield ("bench", "overrides", name), f"profile {name!r} is not benchmarked"
    for index, result in enumerate(stack.reference_results):
        if result.profile is not None and result.profile not in stack.serving.profiles:
            yield ("reference_results", index, "profile"), f"no profile {result.profile!r} under serving.profiles"
    domains = {source.name for source in stack.data.sources}
    for index, domain in enumerate(stack.bench.prompts.domains):
        if domain not in domains:
            yield ("bench", "prompts", "domains", index), f"no source {domain!r} under data.sources"


def _shape_disagreements(stack: Stack) -> Iterator[tuple[Path, str]]:
    shape, draft, context = stack.target.shape, stack.draft, stack.target.context
    highest = stack.extraction.layers[-1]
    if highest > shape.layers:
        yield ("extraction", "layers"), f"{highest} is above the {shape.layers} layers of the target"
    if draft.vocab > shape.vocab:
        yield ("draft", "vocab"), f"{draft.vocab} is above the target's vocabulary of {shape.vocab}"
    if draft.max_position < context:
        yield ("draft", "max_position"), f"{draft.max_position} is below target.context {context}"
    if stack.data.decode.max_new_tokens >= context:
        yield ("data", "decode", "max_new_tokens"), f"leaves no room for a prompt in target.context {context}"


def _engine_disagreements(stack: Stack) -> Iterator[tuple[Path, str]]:
    for kind, image in stack.host.step_images.items():
        if image not in stack.images:
            yield ("host", "step_images", kind), f"no image {image!r} under images"
    for name, engine in stack.engines.items():
        if engine.image is not None and engine.image not in stack.images:
            yield ("engines", name, "image"), f"no image {engine.image!r} under images"
    for section, used in (("data", stack.data.engine), ("extraction", stack.extraction.engine)):
        if used not in stack.engines:
            yield (section, "engine"), f"no engine {used!r} under engines"


def _profile_disagreements(stack: Stack, profile: Profile) -> Iterator[tuple[str, str]]:
    if profile.engine not in stack.engines:
        yield "engine", f"no engine {profile.engine!r} under engines"
    if profile.image is not None and profile.image not in stack.images:
        yield "image", f"no image {profile.image!r} under images"
    if profile.context is not None and profile.context > stack.target.context:
        yield "context", f"{profile.context} is above target.context {stack.target.context}"
    if stack.host.gpus and profile.tensor_parallel > stack.host.gpus:
        yield "tensor_parallel", f"{profile.tensor_parallel} is above the {stack.host.gpus} cards of the host"
    if profile.compare_to is not None:
        other = stack.serving.profiles.get(profile.compare_to)
        if other is None:
            yield "compare_to", f"no profile {profile.compare_to!r} under serving.profiles"
        elif other.speculative is not None:
            yield "compare_to", f"{profile.compare_to!r} itself uses a draft"
