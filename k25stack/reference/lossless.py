"""Is speculation lossless?  Outputs with and without a draft, compared up to the first divergence, which is re-scored.

In bf16 the logits of a position depend a little on how many rows were computed together, so two correct engines may
part where two tokens are nearly equal.  The noise is measured instead of assumed::

    text         prompt + the response tokens both outputs share; its last position predicts the token they part at
    row counts   one prefill of several whole texts; then the text's last ``window`` tokens again, for ``batch``
                 requests at once, in steps of 1 row and of k+1 rows per request; and its last position for the
                 request alone, with 1 row and with k+1 rows
    noise band   over all these positions but the parting ones: the greatest change, between the row counts, of the
                 gap between the two leading logits
    tie          under some row count both tokens lie within the band of the leading logit
    fault        anything else: a verifier that lets a wrong token pass, or a cache that was not rolled back

Lossless = no faults.  Ties are counted and shown.  A wrong token that always were a near-tie would not be found; the
band says what "near" means, and where it is 0 (row counts change nothing on this machine) every divergence is a fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from k25stack.errors import UsageError
from k25stack.reference.target import KVCache, Target


@dataclass(frozen=True)
class Pair:
    """One prompt and its greedy responses without (``plain``) and with a draft (``drafted``), EOS included."""

    id: str
    prompt: tuple[int, ...]
    plain: tuple[int, ...]
    drafted: tuple[int, ...]

    def divergence(self) -> int | None:
        """Index of the first differing response token; None when the responses are equal."""
        shorter = min(len(self.plain), len(self.drafted))
        for index in range(shorter):
            if self.plain[index] != self.drafted[index]:
                return index
        return None if len(self.plain) == len(self.drafted) else shorter

    def text(self) -> list[int]:
        """What both outputs share; without the last response token when they are equal (nothing follows it)."""
        at = self.divergence()
        return [*self.prompt, *self.plain[: len(self.plain) - 1 if at is None else at]]


@dataclass(frozen=True)
class Divergence:
    """Where two responses part: index in the response, the two tokens (None: ended), and the verdict.

    ``gap``: how far the lower of the two tokens lies below the leading logit, under the row count where that is
    least; None when one response simply ended early.
    """

    id: str
    position: int
    plain: int | None
    drafted: int | None
    gap: float | None
    verdict: str  # tie | fault


@dataclass(frozen=True)
class Lossless:
    """The result; ``band`` in logits, measured on ``positions`` positions."""

    compared: int  # responses
    tokens: int  # response tokens that both outputs share
    band: float
    positions: int
    divergences: tuple[Divergence, ...]

    @property
    def faults(self) -> int:
        return sum(divergence.verdict == "fault" for divergence in self.divergences)

    @property
    def ties(self) -> int:
        return sum(divergence.verdict == "tie" for divergence in self.divergences)

    def as_dict(self) -> dict[str, Any]:
        return {
            "faults": self.faults,
            "ties": self.ties,
            "compared": self.compared,
            "tokens": self.tokens,
            "noise_band_logits": self.band,
            "noise_positions": self.positions,
            "divergences": [asdict(divergence) for divergence in self.divergences],
        }


def judge(
    target: Target, pairs: Iterable[Pair], k: int, *, batch: int = 8, window: int = 16, sample: int = 32
) -> Lossless:
    """Compare all pairs.  Re-scored, in groups of ``batch``, are those that part and ``sample`` of the equal ones.

    Raises UsageError when there is nothing to compare.
    """
    compared = list(pairs)
    if not compared:
        raise UsageError("no responses to compare", where="lossless")
    equal = [pair for pair in compared if pair.divergence() is None]
    chosen = [pair for pair in compared if pair.divergence() is not None] + equal[:: max(1, len(equal) // sample)]
    # Similar lengths together: the window is as long as the shortest text of a group allows.
    chosen.sort(key=lambda pair: len(pair.text()))
    band, positions = 0.0, 0
    parted: list[tuple[Pair, int, Tensor]] = []
    for begin in range(0, len(chosen), batch):
        group = chosen[begin : begin + batch]
        for pair, scores in zip(group, score(target, [pair.text() for pair in group], k, window), strict=True):
            at = pair.divergence()
            steady = [scores.window[:, :-1]]  # [3, w-1, V]
            if at is None:
                steady.append(scores.last.unsqueeze(1))  # [5, 1, V]
            else:
                parted.append((pair, at, scores.last))
            for logits in steady:
                band = max(band, noise(logits))
                positions += logits.shape[1]
    shared = ((pair, pair.divergence()) for pair in compared)
    tokens = sum(len(pair.plain) if at is None else at for pair, at in shared)
    divergences = tuple(verdict(pair, at, logits, band) for pair, at, logits in parted)
    return Lossless(len(compared), tokens, band, positions, divergences)


def verdict(pair: Pair, at: int, logits: Tensor, band: float) -> Divergence:
    """Judge a divergence from ``logits`` [row counts, V] of the position that predicts it."""
    plain = pair.plain[at] if at < len(pair.plain) else None
    drafted = pair.drafted[at] if at < len(pair.drafted) else None
    if plain is None or drafted is None:  # equal tokens end at the same place: never a matter of noise
        return Divergence(pair.id, at, plain, drafted, None, "fault")
    below = logits.amax(-1, keepdim=True) - logits[:, [plain, drafted]]  # [row counts, 2]
    gap = float(below.amax(-1).min())
    return Divergence(pair.id, at, plain, drafted, gap, "tie" if gap <= band else "fault")


def noise(logits: Tensor) -> float:
    """Logits [row counts, w, V] -> greatest change of the gap between the two that the first row count ranks first."""
    if not logits.shape[1]:
        return 0.0
    first, second = logits[0].topk(2, dim=-1).indices.unbind(-1)  # [w] each
    rows = torch.arange(logits.shape[1])
    gaps = logits[:, rows, first] - logits[:, rows, second]  # [row counts, w]
    return float((gaps.amax(0) - gaps.amin(0)).max())


class Scores(NamedTuple):
    """float32 logits of one text by row counts: prefill, steps of 1, of k+1; for the last position also alone."""

    window: Tensor  # [3, w, V], after each of the last w tokens
    last: Tensor  # [5, V], after the last one


@torch.inference_mode()
def score(target: Target, texts: Sequence[Sequence[int]], k: int, window: int) -> list[Scores]:
    """Re-score the last ``window`` tokens, or as many as the shortest text has, of each text."""
    width = min(window, min(len(text) for text in texts))
    cache = target.new_cache(len(texts), max(len(text) for text in texts) + k)
    ends = torch.tensor([0, *itertools.accumulate(len(text) for text in texts)])
    packed = torch.tensor([token for text in texts for token in text])
    last = target.prefill_packed(packed, ends, (), cache, range(len(texts))).last  # [T, H]
    rows = ends[1:, None] + torch.arange(-width, 0)  # [B, w]
    ways = [target.logits(last[rows.flatten()]).float().view(*rows.shape, -1)]  # [B, w, V]
    # Feeding tokens again overwrites their part of the cache and sees the prefilled part before it.
    tail, starts, slots = packed[rows], ends.diff() - width, torch.arange(len(texts))
    ways += [_steps(target, cache, slots, tail, starts, count) for count in (1, k + 1)]
    windows = torch.stack(ways, dim=1)  # [B, 3, w, V]
    scores = []
    for slot in slots:
        one = slot.unsqueeze(0)
        alone = []
        for count in (1, min(k + 1, width)):
            part = tail[one, -count:]
            alone.append(_steps(target, cache, one, part, starts[one] + width - count, count)[0, -1])
        scores.append(Scores(windows[slot], torch.cat([windows[slot, :, -1], torch.stack(alone)])))
    return scores


def _steps(target: Target, cache: KVCache, slots: Tensor, tail: Tensor, starts: Tensor, rows: int) -> Tensor:
    """Logits [B, w, V] of ``tail`` [B, w], fed ``rows`` tokens at a time to all texts together from ``starts`` [B]."""
    scores = []
    for begin in range(0, tail.shape[1], rows):
        chunk = tail[:, begin : begin + rows]
        padded = torch.nn.functional.pad(chunk, (0, rows - chunk.shape[1]))  # [B, rows]
        out = target.forward(padded, cache, slots, starts + begin)
        scores.append(target.logits(out.last[:, : chunk.shape[1]]).float())
    return torch.cat(scores, dim=1)
