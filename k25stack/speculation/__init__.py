"""Pure maths of speculative decoding: the one definition of every metric (standard library only)."""

from k25stack.speculation.interval import bootstrap_by_prompt, bootstrap_pairs
from k25stack.speculation.rounds import RoundCounts
from k25stack.speculation.verdicts import (
    GapRatio,
    StepCost,
    StepTime,
    break_even,
    convert_old_accept_rate,
    gap_ratio,
    speedup,
    step_cost_ratio,
)
from k25stack.speculation.walk import greedy_walk, survival_uniform

__all__ = [
    "GapRatio",
    "RoundCounts",
    "StepCost",
    "StepTime",
    "bootstrap_by_prompt",
    "bootstrap_pairs",
    "break_even",
    "convert_old_accept_rate",
    "gap_ratio",
    "greedy_walk",
    "speedup",
    "step_cost_ratio",
    "survival_uniform",
]
