"""The greedy walk: the accept length that serving will measure, predicted from teacher-forced matches.

A held-out greedy response of R tokens r_0 .. r_(R-1); r_0 comes from the prefill.  A round that starts after r_t
is known proposes candidates for r_(t+1) .. r_(t+k).  ``accepted_at[t]``, for t = 0 .. R-2, is the number of leading
candidates that equal the response.  Under greedy verification the engine commits exactly these and one token more::

    t:            0   1   2   3   4   5   6        R = 8, len(accepted_at) = 7, k = 3
    accepted_at:  1   0   3   2   0   1   1
    rounds:       0 ----> 2 ------------> 6 -> cut: 1 accepted + 1 own token would end at t = 8 > R-1

so t moves on by ``accepted_at[t] + 1`` and stretches where the draft is right get fewer rounds.  The mean over all
positions (`survival_uniform`) gives them more weight and is therefore higher than what is served.

A round is cut when ``t + accepted_at[t] + 1 > R - 1``: everything left of the response was accepted, and the round's
own token falls behind the end (the rule of `rounds`, seen from the finished response).
"""

from __future__ import annotations

from collections.abc import Sequence

from k25stack.errors import UsageError
from k25stack.speculation.rounds import RoundCounts


def greedy_walk(accepted_at: Sequence[int], k: int) -> RoundCounts:
    """Rounds that greedy chain speculation of length ``k`` makes on one response.

    ``accepted_at[t]``: leading matches at chain start t = 0 .. R-2 (tokens; 0..k), joint: a match counts only when
    all before it in the chain match.  A response of one token has no start and gives no round.
    Raises UsageError when a value lies outside 0..k.
    """
    last = len(accepted_at)  # R - 1
    histogram = [0] * (k + 1)
    cut = 0
    t = 0
    while t < last:
        accepted = int(accepted_at[t])
        if not 0 <= accepted <= k:
            raise UsageError(f"{accepted} accepted tokens at position {t}, expected 0..{k}", where="greedy walk")
        t += accepted + 1
        if t > last:
            cut += 1
        else:
            histogram[accepted] += 1
    return RoundCounts.from_histogram(tuple(histogram), cut)


def survival_uniform(accepted_at: Sequence[int]) -> float:
    """1 + mean of ``accepted_at`` over all positions (tokens per round): what other trainers print.

    Equals 1 + sum of the survival curve averaged uniformly over positions.  Report it, compare only the walk.
    For several responses give all their positions in one sequence.  Raises UsageError for an empty one.
    """
    if not len(accepted_at):
        raise UsageError("no position to average over", where="survival_uniform")
    return 1.0 + sum(int(a) for a in accepted_at) / len(accepted_at)
