"""The round that the end of a response cuts short, taken out of an engine's counters."""

from __future__ import annotations

from k25stack.speculation.rounds import RoundCounts


def missing_tokens(rounds: RoundCounts, completion_tokens: int) -> int:
    """Tokens that the counters speak of and the response does not hold: prefill gives one, a round 1 + accepted."""
    return 1 + rounds.verify_calls + rounds.accepted - completion_tokens


def split_cut(whole: RoundCounts, k: int, missing: int) -> RoundCounts | None:
    """Take the last round out when ``missing`` of its tokens lie beyond the end of the response.

    That round accepted at least ``missing`` draft tokens.  Which of the histogram's bins it stands in is not told:
    where several remain, the fullest is taken (an error of at most k - missing accepted tokens per response).
    None when the counters cannot be made to agree.
    """
    if missing <= 0:  # below zero: a retracted request was prefilled again, which gave a token without a round
        return whole
    if not whole.histogram:
        bins = [missing] if missing <= min(k, whole.accepted) else []
    else:
        bins = [j for j in range(missing, k + 1) if whole.histogram[j]]
    if not bins:
        return None
    last = max(bins, key=lambda j: (whole.histogram[j] if whole.histogram else 0, -j))
    histogram = tuple(count - (j == last) for j, count in enumerate(whole.histogram))
    return RoundCounts(whole.verify_calls - 1, whole.accepted - last, whole.proposed - k, histogram, 1)
