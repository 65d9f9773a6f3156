"""D4: what the target's own head says of the stored states (torch inside the functions).

``last`` is recorded as before ("pre") or after ("post") the final norm.  Trained on the wrong one, the teacher is
distorted without any error (speculators PR #313: 25 % of acceptance instead of 40 %).  Two things are asked:

* After the norm every row, divided by the norm's weight, has a root mean square of 1; before it, hardly any has.
* Under the recorded reading the head's argmax of nearly every row is the stored one, and what differs is a near-tie.

A near-tie: both tokens lie within ``STEPS`` bf16 steps of the leading logit.  bf16 keeps 8 bits of mantissa, so a step
at logit x is |x| / 256; batch shape moved leading logits by up to 0.26 at about 17 on SmolLM2, which is 4 steps.
States in fp8 have lost more: for them the band also holds four standard deviations of what their rounding does to the
gap of the two.  Rows whose runner-up is that near cannot tell a wrong state; ``near_ties`` of the evidence says how
many they are.

Sampled text is held against what the head expects of its own sampling: how often it takes the leading token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.contract.finding import Check, Verdict
from k25stack.contract.states_text import OWN, is_greedy
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
OF_TIES = 0.25  # or of the near-ties, those that may differ: in fp8 a tenth of them does, and flat logits have many
SHORT = 0.05  # by which sampled text may take the leading token more seldom than expected
SIGMAS = 4  # and what chance may add to that
ROUNDING = {"float8_e4m3fn": 0.025}  # see `Rows`: three mantissa bits
NUCLEUS = 1024  # tokens among which top_p is looked for
HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.embed_tokens.weight",
         "language_model.model.embed_tokens.weight")  # fmt: skip
NORMS = ("model.norm.weight", "language_model.model.norm.weight")
ELSEWHERE = "another target or revision, another layer, or damaged states"


@dataclass(frozen=True)
class Rows:
    """States of rows before response tokens, and what is stored beside them; -1: not compared."""

    last: Tensor  # [N, H]
    argmax: Tensor  # [N], and of the row before and the row after it
    before: Tensor
    after: Tensor
    greedy: Tensor  # [N] the next token, where the text is recorded as the head's choice
    following: Tensor  # [N] the next token
    rounding: float  # relative error of a stored value, root mean square; 0 where the head takes them as they are


@dataclass(frozen=True)
class Head:
    """The target's head [V, H], its final norm [H] and the norm's epsilon."""

    weight: Tensor
    norm: Tensor
    eps: float

    def states(self, rows: Tensor, reading: str) -> Tensor:
        """States as the head takes them, when ``rows`` are "post" | "pre" | "twice" (normed twice)."""
        import torch.nn.functional as F

        if reading == "pre":
            return F.rms_norm(rows.to(self.weight.dtype), self.norm.shape, self.norm.to(self.weight.dtype), self.eps)
        if reading == "twice":
            rows = F.rms_norm(rows.float() / self.norm.float(), self.norm.shape, None, self.eps)
        return rows.to(self.weight.dtype)


@dataclass(frozen=True)
class Seen:
    """Shares of rows under one reading of ``last``."""

    agree: float  # the head's argmax is the stored one
    beyond_noise: float  # it is another one, and no near-tie
    next_token_beyond_noise: float  # greedy rows: the next token is another one than the head's, and no near-tie
    near_ties: float  # the runner-up is a near-tie: such a row tells nothing
    row_before: float  # the head's argmax is the one that is stored a row earlier, or later
    row_after: float
    rows: int
    compared: int  # rows whose next token was compared

    def fits(self) -> bool:
        """The argmax column is this head's: a few rows may differ whatever their number."""
        misses, far = (1 - self.agree) * self.rows, self.beyond_noise * self.rows
        most = max(3.0, (1 - AGREE) * self.rows, OF_TIES * self.near_ties * self.rows)
        return misses <= most and far <= max(1.0, BEYOND * self.rows) + 1e-6

    def as_dict(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def judge(
    directory: Path, texts: Sequence[Text], recorded: str, target: Path, decode: Mapping[str, Any]
) -> Iterator[Check]:
    """D4, and D5 of sampled text.  Raises DamageError or HostError when the target's head cannot be read."""
    try:
        import torch
    except ImportError:
        raise HostError("the head is asked with torch", remedy="pip install 'k25stack[train]'") from None
    rows = states_rows(directory, texts, is_greedy(decode))
    if rows is None:
        yield Check("D4", GROUP, Verdict.UNKNOWN, "no response row to compare")
        return
    head = head_of(target)
    if rows.last.shape[1] != head.weight.shape[1]:
        message = f"last has width {rows.last.shape[1]}, the target's head {head.weight.shape[1]}"
        yield Check("D4", GROUP, Verdict.FAIL, message, {}, "give the target that the states come from")
        return
    if int(torch.maximum(rows.argmax, rows.following).max()) >= len(head.weight):
        message = f"tokens beyond the {len(head.weight):,} rows of the target's head"
        yield Check("D4", GROUP, Verdict.FAIL, message, {}, "give the target that the states come from")
        return
    found = judge_last(rows, head, recorded)
    yield found
    if decode and not is_greedy(decode) and found.verdict is Verdict.PASS:
        yield judge_sampled(rows, head, recorded, decode)


def judge_last(rows: Rows, head: Head, recorded: str) -> Check:
    """Which side of the norm ``last`` is on, and whether the head's argmax is the stored one."""
    own, unit = look(rows, head, recorded), unit_share(rows.last, head.norm)
    found = "post" if unit >= UNIT_ROWS else "pre"
    evidence = {"recorded": recorded, "found": found, "rows_of_unit_rms": round(unit, 4), **own.as_dict()}
    if found != recorded and look(rows, head, found).fits():
        message = f"last is recorded as {recorded}-norm and is {found}-norm"
        fix = "correct the record by extracting again; a trainer would leave the norm out or apply it twice"
        return Check("D4", GROUP, Verdict.FAIL, message, evidence, fix, "speculators PR #313")
    if found != recorded or not own.fits():
        message = f"the target's head gives other tokens than the stored argmax: {cause(rows, head, own, unit)}"
        return Check("D4", GROUP, Verdict.FAIL, message, evidence, "extract the states again", "speculators PR #313")
    if own.next_token_beyond_noise * own.compared > max(1.0, NEXT_BEYOND * own.compared) + 1e-6:
        share = own.next_token_beyond_noise
        message = f"{share:.1%} of the next tokens lie beyond a near-tie: not this target's greedy text"
        return Check("D4", GROUP, Verdict.WARN, message, evidence, "see D5")
    message = f"last is {recorded}-norm: the head's argmax is the stored one, the rest near-ties"
    return Check("D4", GROUP, Verdict.PASS, message, evidence)


def cause(rows: Rows, head: Head, own: Seen, unit: float) -> str:
    """What the rows look like whose argmax is not the head's."""
    if max(own.row_before, own.row_after) >= AGREE - 0.1:
        text = rows.greedy[rows.greedy >= 0] == rows.argmax[rows.greedy >= 0]
        which = "last" if len(text) and float(text.float().mean()) >= OWN else "argmax"
        return f"{which} is shifted by one row"
    if unit >= UNIT_ROWS and look(rows, head, "twice").fits():
        return "the final norm was applied twice"
    if unit < UNIT_ROWS:
        return f"last is on neither side of the final norm: {ELSEWHERE}"
    return ELSEWHERE


def judge_sampled(rows: Rows, head: Head, reading: str, decode: Mapping[str, Any]) -> Check:
    """D5 of sampled text: does it take the leading token as often as this target's own sampling would?"""
    expected, spread, taken = sampling(rows, head, reading, decode)
    evidence = {"leading_token_taken": round(taken, 4), "expected": round(expected, 4), "rows": len(rows.last)}
    if taken < expected - SHORT - SIGMAS * spread:
        message = f"the text takes the target's leading token in {taken:.0%} of the rows, its own sampling would in "
        fix = "regenerate the answers with this target: foreign text costs accept length"
        return Check("D5", GROUP, Verdict.WARN, f"{message}{expected:.0%}: not its own text", evidence, fix)
    return Check("D5", GROUP, Verdict.PASS, "the text is as likely as the target's own sampling", evidence)


def states_rows(directory: Path, texts: Sequence[Text], greedy: bool) -> Rows | None:
    """Up to about ``ROWS`` rows spread over ``texts``; None when no text has a response.

    ``greedy``: the texts are recorded so.  Among training documents a share may still be sampled; those that the
    target would not have written so are left to D5.
    """
    import torch

    from k25stack.states.reader import open_states

    states = open_states(directory)
    rounding = ROUNDING.get(states.meta.dtype, 0.0)
    refs = {(ref.shard, ref.begin): ref for ref in states.refs()}
    total = sum(map(sum, (text.supervised for text in texts)))
    every = max(1, -(-total // ROWS))
    parts: list[tuple[Tensor, ...]] = []
    seen = 0
    for text in texts:
        document = states.load(refs[text.shard, text.begin])
        places = document.loss_mask[1:].nonzero().squeeze(1)  # rows whose next token is of the response
        places = places[(torch.arange(len(places)) + seen) % every == 0]
        seen += int(document.loss_mask[1:].sum())
        if not len(places):
            continue
        agree, count = text.agreement()
        following = document.token_ids[places + 1]
        own = greedy and (text.split != "train" or agree >= OWN * count)
        stored = torch.nn.functional.pad(document.argmax.long(), (1, 1), value=-1)
        columns = (stored[places + 1], stored[places], stored[places + 2])
        asked = following if own else torch.full_like(places, -1)
        parts.append((document.last[places].clone(), *columns, asked, following))
    if not parts:
        return None
    last, argmax, before, after, asked, following = (torch.cat(column) for column in zip(*parts, strict=True))
    return Rows(last, argmax, before, after, asked, following, rounding)


def head_of(target: Path) -> Head:
    """Head and final norm; nothing else of the target is read.  Raises DamageError when they are not there."""
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
    return Head(found["head"], found["norm"], eps)


def unit_share(rows: Tensor, norm: Tensor) -> float:
    """Share of rows [N, H] whose root mean square is 1 once the norm's weight is divided out."""
    weight = norm.float()
    used = weight.abs() > 1e-3 * weight.abs().max()
    squares = (rows[:, used].float() / weight[used]).square().mean(-1)
    return float(((squares.sqrt() - 1).abs() <= UNIT).float().mean())


def over_logits(rows: Rows, head: Head, reading: str, take: Callable[[Tensor, Tensor, slice], Tensor]) -> Tensor:
    """``take`` of states [n, H] and logits [n, V] of some rows at a time, one below the other."""
    import torch

    found = []
    for begin in range(0, len(rows.last), 512):
        part = slice(begin, begin + 512)
        states = head.states(rows.last[part], reading)
        found.append(take(states, (states @ head.weight.t()).float(), part))  # logits in the head's type
    return torch.cat(found)


def look(rows: Rows, head: Head, reading: str) -> Seen:
    """Compare the head's choices with what is stored, under one reading of ``last``."""
    import torch

    def take(states: Tensor, logits: Tensor, part: slice) -> Tensor:
        (best, _), (index, second) = (one.t() for one in logits.topk(2))

        def apart(ids: Tensor) -> Tensor:
            """Whether these tokens' logits lie beyond a near-tie."""
            other = ids.clamp_min(0)
            band = STEPS * best.abs() / 256
            if rows.rounding:
                change = states.float() * (head.weight[index] - head.weight[other]).float()
                band = band + SIGMAS * rows.rounding * change.norm(dim=-1)
            far: Tensor = best - logits.gather(1, other[:, None]).squeeze(1) > band
            return far & (ids >= 0)

        first = logits.argmax(-1)  # the lowest of equal ones
        stored, before, after = rows.argmax[part], rows.before[part], rows.after[part]
        columns = [first == stored, apart(stored), apart(rows.greedy[part]), ~apart(second)]
        return torch.stack([*columns, first == before, first == after], 1)

    agree, beyond, next_beyond, ties, before, after = over_logits(rows, head, reading, take).sum(0).tolist()
    count, compared = len(rows.last), int((rows.greedy >= 0).sum())
    shares = (agree / count, beyond / count, next_beyond / max(1, compared))
    return Seen(*shares, ties / count, before / count, after / count, count, compared)


def sampling(rows: Rows, head: Head, reading: str, decode: Mapping[str, Any]) -> tuple[float, float, float]:
    """(expected share of leading tokens, its standard deviation, the share in the text) at the recorded sampling."""
    import torch

    heat, top_p = float(decode.get("temperature") or 1.0), float(decode.get("top_p") or 1.0)

    def take(states: Tensor, logits: Tensor, part: slice) -> Tensor:
        chances = (logits / heat).softmax(-1).topk(min(NUCLEUS, logits.shape[-1])).values
        kept = chances * (chances.cumsum(-1) - chances < top_p)  # the nucleus, at least one token
        lead = chances[:, 0] / kept.sum(-1).clamp_min(top_p)
        return torch.stack([lead, lead * (1 - lead), (logits.argmax(-1) == rows.following[part]).float()], 1)

    columns = over_logits(rows, head, reading, take)
    lead, spread, taken = columns.sum(0).tolist()
    count = len(columns)
    return lead / count, float(spread**0.5 / count), taken / count
