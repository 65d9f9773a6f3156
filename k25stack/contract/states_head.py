"""D4: what the target's own head says of the stored states (torch inside the functions).

``last`` is recorded as before ("pre") or after ("post") the final norm.  Trained on the wrong one, the teacher is
distorted without any error (speculators PR #313: 25 % of acceptance instead of 40 %).  Two things are asked:

* After the norm every row, divided by the norm's weight, has a root mean square of 1; before it, hardly any has.
* Under the recorded reading the head's argmax of nearly every row is the stored one, and what differs is a near-tie.

A near-tie: both tokens lie within ``STEPS`` bf16 steps of the leading logit.  bf16 keeps 8 bits of mantissa, so a step
at logit x is |x| / 256; batch shape moved leading logits by up to 0.26 at about 17 on SmolLM2, which is 4 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.contract.finding import Check, Verdict
from k25stack.draft.target import read_object
from k25stack.errors import DamageError, HostError
from k25stack.states.tokens import Text

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "head"
STEPS = 4
ROWS = 4096  # response rows that are looked at, spread over the directory
BEYOND = 0.002  # share of rows that may differ by more than a near-tie
NEXT_BEYOND = 0.005  # the same for the next token of greedy rows
UNIT = 0.05  # how far from 1 the root mean square of a normed row may lie
UNIT_ROWS = 0.95  # share of such rows that makes states post-norm
AGREE = 0.95  # share of rows whose argmax must be the stored one
HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.embed_tokens.weight",
         "language_model.model.embed_tokens.weight")  # fmt: skip
NORMS = ("model.norm.weight", "language_model.model.norm.weight")


@dataclass(frozen=True)
class Seen:
    """Shares of rows under one reading of ``last``."""

    agree: float  # the head's argmax is the stored one
    beyond: float  # it is another one, and no near-tie
    next_beyond: float  # greedy rows: the next token is another one than the head's, and no near-tie
    rows: int

    def as_dict(self) -> dict[str, Any]:
        return {"agree": round(self.agree, 4), "beyond_noise": round(self.beyond, 4),
                "next_token_beyond_noise": round(self.next_beyond, 4), "rows": self.rows}  # fmt: skip


def judge(directory: Path, texts: Sequence[Text], recorded: str, target: Path) -> Iterator[Check]:
    """One result.  Raises DamageError or HostError when the target's head cannot be read."""
    try:
        import torch
    except ImportError:
        raise HostError("the head is asked with torch", remedy="pip install 'k25stack[train]'") from None
    rows, stored, following = states_rows(directory, texts)
    if not len(rows):
        yield Check("D4", GROUP, Verdict.UNKNOWN, "no response row to compare")
        return
    head, norm, eps = head_of(target)
    if rows.shape[1] != head.shape[1]:
        message = f"last has width {rows.shape[1]}, the target's head {head.shape[1]}"
        yield Check("D4", GROUP, Verdict.FAIL, message, {}, "give the target that the states come from")
        return
    if int(torch.maximum(stored, following).max()) >= len(head):
        message = f"tokens beyond the {len(head):,} rows of the target's head"
        yield Check("D4", GROUP, Verdict.FAIL, message, {}, "give the target that the states come from")
        return
    own, unit = look(rows, stored, following, head, norm, eps, recorded), unit_share(rows, norm)
    found = "post" if unit >= UNIT_ROWS else "pre"
    evidence = {"recorded": recorded, "found": found, "rows_of_unit_rms": round(unit, 4), **own.as_dict()}
    if found != recorded:
        message = f"last is recorded as {recorded}-norm and is {found}-norm"
        fix = "correct the record by extracting again; a trainer would leave the norm out or apply it twice"
        yield Check("D4", GROUP, Verdict.FAIL, message, evidence, fix, "speculators PR #313")
    elif own.agree >= AGREE and own.beyond <= BEYOND:
        if own.next_beyond > NEXT_BEYOND:
            message = f"{own.next_beyond:.1%} of the next tokens lie beyond a near-tie: not this target's greedy text"
            yield Check("D4", GROUP, Verdict.WARN, message, evidence, "see D5")
        else:
            message = f"last is {recorded}-norm: the head's argmax is the stored one, the rest near-ties"
            yield Check("D4", GROUP, Verdict.PASS, message, evidence)
    else:
        message = "the target's head gives other tokens than the stored argmax"
        fix = "extract again: another target or revision, a wrong layer, or damaged states"
        yield Check("D4", GROUP, Verdict.FAIL, message, evidence, fix)


def states_rows(directory: Path, texts: Sequence[Text]) -> tuple[Tensor, Tensor, Tensor]:
    """(last [N, H], stored argmax [N], next token [N], -1 where it is not compared) of rows spread over ``texts``."""
    import torch

    from k25stack.states.reader import open_states

    states = open_states(directory)
    refs = {(ref.shard, ref.begin): ref for ref in states.refs()}
    total = sum(map(sum, (text.supervised for text in texts)))
    every = max(1, -(-total // ROWS))
    others = any(text.split != "train" for text in texts)
    last, argmax, following, seen = [], [], [], 0
    for text in texts:
        document = states.load(refs[text.shard, text.begin])
        places = document.loss_mask[1:].nonzero().squeeze(1)  # rows whose next token is of the response
        places = places[(torch.arange(len(places)) + seen) % every == 0]
        seen += int(document.loss_mask[1:].sum())
        if len(places):
            last.append(document.last[places].clone())
            argmax.append(document.argmax[places].long())
            # Training documents may be sampled; the others are greedy, so their next token is the head's choice.
            greedy = text.split != "train" or not others
            following.append(document.token_ids[places + 1] if greedy else torch.full_like(places, -1))
    if not last:
        return torch.empty(0, 0), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    return torch.cat(last), torch.cat(argmax), torch.cat(following)


def head_of(target: Path) -> tuple[Tensor, Tensor, float]:
    """(head [V, H], final norm [H], its eps); nothing else of the target is read.

    Raises DamageError when they are not there.
    """
    from k25stack.draft.weights import read_tensors, weight_files

    directory = target if target.is_dir() else target.parent
    config = read_object(directory / "config.json")
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    files = weight_files(directory)
    names = {name for file in files for name in file.tensors}
    wanted = {
        "head": next((name for name in HEADS if name in names), ""),
        "norm": next((name for name in NORMS if name in names), ""),
    }
    found = read_tensors(files, wanted)
    eps = inner.get("rms_norm_eps") if isinstance(inner, dict) else None
    if set(found) != {"head", "norm"} or not isinstance(eps, float):
        raise DamageError("no head, final norm or rms_norm_eps in it", where=str(directory), remedy="give the target")
    return found["head"], found["norm"], eps


def unit_share(rows: Tensor, norm: Tensor) -> float:
    """Share of rows [N, H] whose root mean square is 1 once the norm's weight is divided out."""
    weight = norm.float()
    used = weight.abs() > 1e-3 * weight.abs().max()
    squares = (rows[:, used].float() / weight[used]).square().mean(-1)
    return float(((squares.sqrt() - 1).abs() <= UNIT).float().mean())


def look(rows: Tensor, stored: Tensor, following: Tensor, head: Tensor, norm: Tensor, eps: float, reading: str) -> Seen:
    """Compare under one reading; logits are formed in the head's type."""
    import torch
    import torch.nn.functional as F

    agree = beyond = next_beyond = 0
    for part, wanted, token in zip(*(torch.split(one, 512) for one in (rows, stored, following)), strict=True):
        states = part.to(head.dtype)
        if reading == "pre":
            states = F.rms_norm(states, norm.shape, norm.to(head.dtype), eps)
        logits = (states @ head.t()).float()  # [n, V]
        best, index = logits.max(-1)
        band = STEPS * best.abs() / 256
        for ids, kind in ((wanted, "stored"), (token, "next")):
            gap = best - logits.gather(1, ids.clamp_min(0)[:, None]).squeeze(1)
            far = int(((gap > band) & (ids >= 0)).sum())
            if kind == "stored":
                beyond += far
                agree += int((index == ids).sum())
            else:
                next_beyond += far
    count, compared = len(rows), max(1, int((following >= 0).sum()))
    return Seen(agree / count, beyond / count, next_beyond / compared, count)
