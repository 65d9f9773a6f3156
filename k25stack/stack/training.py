"""Hidden states, the draft's shape and its training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from k25stack.stack.base import Count, Name, NonNegativeFloat, Positive, PositiveFloat, Section, Share, Text, problem
from k25stack.stack.host import EngineName


class Extraction(Section):
    """Auxiliary and last hidden states of every token, written to shards."""

    engine: EngineName = "reference"
    mode: Literal["prefill", "generate"] = "prefill"  # prefill: one forward over the whole text
    layers: Annotated[tuple[Count, ...], Field(min_length=1)]  # canonical ids: id i is the *input* of layer i
    dtype: Literal["bfloat16", "float8_e4m3fn"] = "bfloat16"
    shard_bytes: Positive = 1 << 30
    packed_tokens: Positive = 8192  # tokens of one packed forward

    @model_validator(mode="after")
    def _layers_ascend(self) -> Extraction:
        if list(self.layers) != sorted(set(self.layers)):
            raise problem("must ascend without repeats: engines concatenate them in that order", "layers")
        return self


class Draft(Section):
    """The draft's shape.  Hidden width, vocabulary and number of states follow from target and extraction."""

    name: Name
    preset: Name | None = None  # the preset whose figures stand here; a check compares
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    intermediate: Positive
    vocab: Positive  # draft vocabulary; at most the target's
    rms_eps: PositiveFloat
    rope_theta: PositiveFloat
    max_position: Positive  # at least the served context, or SGLang refuses the draft
    norm_output: bool = False  # true: the state handed to the next step is normed
    k: Positive = 3  # draft tokens per round that figures and predictions mean
    engines: tuple[Text, ...] = ("reference",)  # name@version that must load the package unmodified

    @model_validator(mode="after")
    def _heads_divide(self) -> Draft:
        if self.heads % self.kv_heads:
            raise problem(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}", "heads")
        return self


class Optimizer(Section):
    """Muon for the matrices and AdamW for the rest, or AdamW for all."""

    kind: Literal["muon", "adamw"] = "adamw"
    lr: PositiveFloat  # Muon: times sqrt(max(1, rows/columns)); AdamW: as is
    momentum: Share = 0.9  # Muon, Nesterov
    newton_schulz_steps: Positive = 5  # Muon
    adamw_lr: PositiveFloat | None = None  # for head and norms beside Muon; null: lr
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: PositiveFloat = 1.0
    warmup_steps: Count = 0
    schedule: Literal["cosine", "constant"] = "cosine"
    final_lr_share: Share = 0.05  # of lr, at the end of a cosine schedule


class Eval(Section):
    """Greedy walk over the validation split; it alone decides early stop and which checkpoint is best."""

    split: Literal["validation"] = "validation"
    every_epochs: Positive = 1
    patience: Count | None = None  # evaluations without a better accept length before training stops; null: never
    min_gain: NonNegativeFloat = 0.0  # accept length that counts as better


class Training(Section):
    """Ends after ``epochs`` or by early stop.  The learning rate follows planned steps, never the clock."""

    steps: Positive = 3  # training-time test steps
    loss_decay: Share = 0.8  # weight of step i is loss_decay ** i
    optimizer: Optimizer
    batch_tokens: Positive  # of one optimizer step over all processes, prompts included
    epochs: Positive
    budget_s: PositiveFloat | None = None  # no epoch starts that would end later; such a run does not repeat exactly
    seed: Count = 0
    init: Text = "scratch"  # scratch | target | directory of a draft
    vocab_map: Literal["remap", "keep"] = "remap"  # of a foreign draft: its head carried over to ours, or kept
    eval: Eval = Field(default_factory=Eval)
    device: Text = "cpu"  # or cuda
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of the forward pass; masters are float32
    processes: Positive = 1
    checkpoint_s: PositiveFloat = 60  # the most work that a kill loses
    keep_checkpoints: Positive = 2
