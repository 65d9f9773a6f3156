"""What the steps of a loop are thought to take before they have run here once.

Rates are those of two CPU cores (they are replaced by what a step really took after its first run); sizes follow from
the stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k25stack.pipeline.step import Estimate

if TYPE_CHECKING:
    from k25stack.stack.data import PromptSource
    from k25stack.stack.model import Stack

UNKNOWN_QUESTIONS = 100  # of a source that takes all there are
PROMPT_TOKENS = 90  # per turn, chat template included
ANSWER_SHARE = 0.75  # of max_new_tokens that an answer uses
GENERATE_TOK_S, EXTRACT_TOK_S, TRAIN_TOK_S = 600.0, 2500.0, 1500.0
BENCH_S = 60.0
FRAMEWORK_GB = 0.6  # of one process with torch loaded


def of(stack: Stack) -> dict[str, Estimate]:
    """Estimates by step name."""
    shape, extraction = stack.target.shape, stack.extraction
    turns = sum(_turns(source) for source in stack.data.sources)
    answers = turns * ANSWER_SHARE * stack.data.decode.max_new_tokens
    tokens = answers + turns * PROMPT_TOKENS
    state_bytes = (len(extraction.layers) + 1) * shape.hidden * (1 if extraction.dtype.startswith("float8") else 2)
    weights_gb = _weights_gb(stack)
    draft_gb = 4 * _draft_parameters(stack) / 1e9  # fp32
    return {
        "target": Estimate(75.0, weights_gb, FRAMEWORK_GB + 4 * weights_gb),
        "prompts": Estimate(5.0, 0.002, 0.3),
        "regenerate": Estimate(answers / GENERATE_TOK_S, 30 * tokens / 1e9, 2 * (FRAMEWORK_GB + 2 * weights_gb)),
        "extract": Estimate(tokens / EXTRACT_TOK_S, tokens * (state_bytes + 20) / 1e9, FRAMEWORK_GB + 2 * weights_gb),
        "vocab": Estimate(5.0, 0.001, 0.3),
        "train": Estimate(
            answers * stack.training.epochs / TRAIN_TOK_S,
            draft_gb * (1 + 3 * stack.training.keep_checkpoints),
            stack.training.processes * (FRAMEWORK_GB + 8 * draft_gb) + weights_gb,
        ),
        "package": Estimate(5.0, draft_gb / 2, FRAMEWORK_GB + 2 * draft_gb),
        "control": Estimate(5.0, draft_gb / 2, FRAMEWORK_GB + 2 * draft_gb),
        "check": Estimate(3.0, 0.001, 0.2),
        "bench": Estimate(BENCH_S, 0.02, 2 * (FRAMEWORK_GB + 2 * weights_gb)),
    }


def _turns(source: PromptSource) -> float:
    """Answers that a source asks for: its documents times their turns."""
    train = UNKNOWN_QUESTIONS if source.take is None else source.take
    return (train * len(source.framings) + source.held_out + source.validation) * source.turns


def _weights_gb(stack: Stack) -> float:
    """16-bit weights of the target from its shape (a dense model; with experts those of all of them)."""
    shape = stack.target.shape
    heads = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    dense = 3 * shape.hidden * shape.intermediate
    if shape.moe is None:
        layers = shape.layers * (heads + dense)
    else:
        expert = 3 * shape.hidden * shape.moe.intermediate * (shape.moe.experts + shape.moe.shared_experts)
        layers = (
            shape.layers * heads + shape.moe.dense_layers * dense + (shape.layers - shape.moe.dense_layers) * expert
        )
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return 2 * (layers + embeddings) / 1e9


def _draft_parameters(stack: Stack) -> int:
    from k25stack.draft.spec import DraftSpec

    return DraftSpec.from_dict(stack.draft_spec(), stack.name).parameters(with_embedding=False)
