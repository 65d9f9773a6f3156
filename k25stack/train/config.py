"""What decides a training run, parsed from a step's params; unknown names and impossible values are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError

T = TypeVar("T")
KINDS = ("muon", "adamw")
SCHEDULES = ("cosine", "constant")
VOCAB_MAPS = ("remap", "keep")


@dataclass(frozen=True)
class OptimizerConfig:
    """Muon for the matrices and AdamW for the rest, or AdamW for all."""

    lr: float  # Muon: times sqrt(max(1, rows/columns)); AdamW: as is
    kind: str = "adamw"
    momentum: float = 0.9  # Muon, Nesterov
    newton_schulz_steps: int = 5  # Muon
    adamw_lr: float | None = None  # of head and norms beside Muon; None: lr
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip_norm: float = 1.0  # of the gradient over all tensors
    warmup_steps: int = 0
    schedule: str = "cosine"
    final_lr_share: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        one_of("optimizer.kind", self.kind, KINDS)
        one_of("optimizer.schedule", self.schedule, SCHEDULES)
        for name in ("lr", "clip_norm", "newton_schulz_steps"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}, not above zero", where="train.optimizer")


@dataclass(frozen=True)
class EvalConfig:
    """The greedy walk that chooses the best epoch; the held-out split never chooses anything."""

    split: str = "validation"
    every_epochs: int = 1
    patience: int | None = None  # evaluations without a better accept length before training stops; None: never
    min_gain: float = 0.0  # accept length that counts as better
    k: int | None = None  # draft tokens per round; None: as many as training steps


@dataclass(frozen=True)
class TrainConfig:
    """Everything in a step's params.  `from_params` is the way in."""

    spec: DraftSpec
    optimizer: OptimizerConfig
    batch_tokens: int  # tokens of one optimizer step over all processes, prompts included
    epochs: int
    steps: int = 3  # training-time test steps
    loss_decay: float = 0.8  # weight of step i is loss_decay ** i
    seed: int = 0
    init: str = "scratch"  # scratch | target | directory of a draft
    vocab_map: str = "remap"  # of a foreign draft: carry its head over to our vocabulary, or keep its own
    eval: EvalConfig = field(default_factory=EvalConfig)
    budget_s: float | None = None  # no epoch starts that would end later; only runs without it repeat exactly
    processes: int = 1
    checkpoint_s: float = 60.0  # the most work that a kill loses
    keep_checkpoints: int = 2
    dtype: str = "bfloat16"  # of weights and activations in the forward pass
    device: str = "cpu"
    inexact: bool = False  # resume where the same bits cannot be promised; the result says so

    def __post_init__(self) -> None:
        one_of("vocab_map", self.vocab_map, VOCAB_MAPS)
        one_of("dtype", self.dtype, ("bfloat16", "float32"))
        for name in ("batch_tokens", "epochs", "steps", "loss_decay", "processes", "keep_checkpoints"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}, not above zero", where="train")
        if self.device != "cpu" and self.processes > 1:
            raise UsageError(f"{self.processes} processes on {self.device}", where="train", remedy="processes: 1")

    @property
    def k(self) -> int:
        """Draft tokens per round that the walk predicts for."""
        return self.eval.k or self.steps

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> TrainConfig:
        """Raises UsageError naming a missing, unknown or impossible value."""
        raw = dict(params)
        if raw.get("epochs") is None:
            raise UsageError(
                "epochs is not given",
                where="train",
                remedy="give epochs: the learning rate follows the planned steps, not the clock",
            )
        nested = {
            "spec": DraftSpec.from_dict(raw.get("spec") or {}, "train.spec"),
            "optimizer": _build(OptimizerConfig, raw.get("optimizer") or {}, "train.optimizer"),
            "eval": _build(EvalConfig, raw.get("eval") or {}, "train.eval"),
        }
        return _build(cls, {**raw, **nested}, "train")


def _build(cls: type[T], raw: Mapping[str, Any], where: str) -> T:
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    if unknown := sorted(set(raw) - set(known)):
        raise UsageError(f"unknown field {unknown[0]}", where=where, remedy=f"one of: {', '.join(known)}")
    try:
        return cls(**raw)
    except TypeError as error:
        raise UsageError(str(error).partition("() ")[2] or str(error), where=where) from None


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} is {value!r}", where="train", remedy=f"one of: {', '.join(allowed)}")
