"""U6 and U7: are the server's outputs the target's own, and are they text at all (torch inside the functions).

Two ways to look for a wrong verifier:

* with a baseline (the same target without a draft): outputs are compared to the first divergence, and that one is
  re-scored with the target where a directory is given (`reference.lossless`);
* with the target alone: every token that was given out is re-scored in float32.  It must lie within the noise of the
  leading logit: ``STEPS`` bf16 steps (see `states_head`), or as much as bf16 moves the gap between rivals for the lead
  on these texts, where that is more.  Two correct engines round at different places.

Tie: both tokens within the band.  Fault: anything else.  Lossless = no faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Verdict
from k25stack.contract.probe import Answer, Ask, Probe, probe, served_k
from k25stack.contract.states_head import STEPS
from k25stack.contract.states_text import LOOPS
from k25stack.errors import HostError, K25Error, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from k25stack.bench.prompts import PromptSet
    from k25stack.reference.target import Target

GROUP = "outputs"
RESCORED = 24  # outputs that are re-scored token by token
SANE_TOKENS = 16  # shorter outputs are not judged
ONE_TOKEN = 0.5  # share of an output that one token may make up


def sanity(found: Probe) -> Iterator[Check]:
    """U7: outputs that repeat a token or go round in circles (a broken kernel or quantisation shows so)."""
    stuck, loops, judged = [], [], 0
    for answer in found.answers:
        items: list[object] = list(answer.token_ids) if answer.token_ids is not None else list(answer.text.split())
        if len(items) < SANE_TOKENS:
            continue
        judged += 1
        if max(items.count(item) for item in set(items)) > ONE_TOKEN * len(items):
            stuck.append(answer.key)
        elif len(set(pairwise(items))) < LOOPS * (len(items) - 1):
            loops.append(answer.key)
    evidence = {"judged": judged, "one_token": stuck[:5], "looping": loops[:5], "unique_bigrams_under": LOOPS}
    if judged and len(stuck) > 0.1 * judged:
        message = f"{len(stuck)} of {judged} outputs repeat one token"
        fix = "do not benchmark it: check quantisation, kernels and the chat template"
        yield Check("U7", GROUP, Verdict.FAIL, message, evidence, fix, "sglang #23264, vllm #40357")
    elif judged and len(stuck) + len(loops) > 0.3 * judged:
        message = f"{len(stuck) + len(loops)} of {judged} outputs go round in circles"
        yield Check("U7", GROUP, Verdict.WARN, message, evidence, "such text flatters the accept length")
    elif judged:
        yield Check("U7", GROUP, Verdict.PASS, f"{judged} outputs look like text", evidence)


def lossless(found: Probe, baseline: str | None, target: Path | None, ask: Ask, prompts: PromptSet) -> Iterator[Check]:
    """U6, for a server that speculates; nothing to say without a baseline or a target."""
    total = found.total()
    if total is None or (baseline is None and target is None):
        return
    loaded, problem = load(target)
    try:
        if baseline is not None:
            yield compared(found, probe(baseline, ask, prompts), loaded, problem)
        elif loaded is not None and target is not None:
            yield rescored(found, loaded, target)
        else:
            yield Check("U6", GROUP, Verdict.UNKNOWN, f"not judged: {problem}", {}, "give --baseline URL")
    except (HostError, UsageError) as error:
        yield Check("U6", GROUP, Verdict.UNKNOWN, f"not judged: {error}", {}, error.remedy)


def load(target: Path | None) -> tuple[Target | None, str]:
    """The target for re-scoring, or why there is none."""
    if target is None:
        return None, "no target to re-score with"
    try:
        from k25stack.contract.states_aux import running

        return running(target), ""
    except ImportError as error:
        return None, f"re-scoring needs torch ({error})"
    except K25Error as error:
        return None, str(error)


def compared(found: Probe, plain: Probe, target: Target | None, problem: str) -> Check:
    """Against the outputs of the same target without a draft."""
    theirs = {answer.key: answer for answer in plain.answers}
    pairs = [(theirs[answer.key], answer) for answer in found.answers if answer.key in theirs]
    pairs = [pair for pair in pairs if all(one.token_ids is not None for one in pair)]
    parted = [pair for pair in pairs if pair[0].token_ids != pair[1].token_ids]
    evidence = {"compared": len(pairs), "equal": len(pairs) - len(parted)}
    if not pairs:
        return Check("U6", GROUP, Verdict.UNKNOWN, "no output of both with token ids", evidence,
                     "the engine must return token ids")  # fmt: skip
    if not parted:
        return Check("U6", GROUP, Verdict.PASS, f"{len(pairs)} outputs are equal with and without the draft", evidence)
    if target is None or not all(one.prompt_ids for pair in pairs for one in pair):
        message = f"{len(parted)} of {len(pairs)} outputs part, and were not re-scored: {problem or 'chat prompts'}"
        return Check("U6", GROUP, Verdict.UNKNOWN, message, evidence, "give --target DIR (and --samples)")
    from k25stack.reference.lossless import Pair, judge

    total = found.total()
    given = [pair_of(*pair) for pair in [*parted, *[p for p in pairs if p not in parted][:8]]]
    verdict = judge(target, [Pair(*one) for one in given], served_k(total) if total else 3)
    evidence |= verdict.as_dict()
    message = f"{verdict.faults} faults, {verdict.ties} ties in {len(pairs)} outputs"
    if verdict.faults:
        fix = "the verifier or its cache is wrong: keep speculation off and report it"
        return Check("U6", GROUP, Verdict.FAIL, f"not lossless: {message}", evidence, fix)
    return Check("U6", GROUP, Verdict.PASS, f"lossless: {message}", evidence)


def pair_of(plain: Answer, drafted: Answer) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return plain.key, plain.prompt_ids, plain.token_ids or (), drafted.token_ids or ()


def rescored(found: Probe, target: Target, directory: Path) -> Check:
    """Every token given out against the target's choice in float32: our rounding must not add to the engine's."""
    import torch

    from k25stack.reference.target import Target

    judged = [answer for answer in found.answers if answer.prompt_ids and answer.token_ids][:RESCORED]
    if not judged:
        return Check(
            "U6", GROUP, Verdict.UNKNOWN, "no output with token ids to re-score", {}, "give --samples or --baseline"
        )
    exact, noise = Target.load(directory, torch.float32), 0.0
    scored = []
    for answer in judged:
        fine, rough = (logits_of(model, answer) for model in (exact, target))
        noise = max(noise, moved(fine, rough))
        given = torch.tensor(answer.token_ids)
        best, wanted = fine.max(-1)
        scored.append((answer, best, wanted, best - fine.gather(1, given[:, None]).squeeze(1)))
    tokens = ties = 0
    faults: list[dict[str, object]] = []
    for answer, best, wanted, gaps in scored:
        band = (STEPS * best.abs() / 256).clamp_min(noise)
        tokens += len(gaps)
        ties += int(((gaps > 0) & (gaps <= band)).sum())
        for place in (gaps > band).nonzero().flatten().tolist():
            faults.append({"key": answer.key, "position": place, "token": (answer.token_ids or ())[place],
                           "wanted": int(wanted[place]), "gap": float(gaps[place])})  # fmt: skip
    evidence = {"tokens": tokens, "ties": ties, "faults": len(faults), "first_faults": faults[:5],
                "band": f"{STEPS} bf16 steps at the leading logit", "noise_logits": noise}  # fmt: skip
    message = f"{len(faults)} faults, {ties} ties in {tokens:,} re-scored tokens"
    if faults:
        fix = "compare with --baseline URL: other weights or precision than --target, or a wrong verifier"
        return Check("U6", GROUP, Verdict.FAIL, f"not lossless: {message}", evidence, fix)
    return Check("U6", GROUP, Verdict.PASS, f"lossless: {message}", evidence)


def logits_of(model: Target, answer: Answer) -> Tensor:
    """float32 logits [R, V] before each of the R tokens that were given out."""
    import torch

    text = torch.tensor([*answer.prompt_ids, *(answer.token_ids or ())])
    out = model.prefill_packed(text[:-1], torch.tensor([0, len(text) - 1]))
    return model.logits(out.last[len(answer.prompt_ids) - 1 :]).float()


def moved(fine: Tensor, rough: Tensor) -> float:
    """How far rounding moves the gap of two rivals for the lead (the first of either side and the second), at most."""
    import torch

    leading = torch.cat([fine.topk(2, dim=-1).indices, rough.topk(2, dim=-1).indices], dim=-1)  # [R, 4]
    change = fine.gather(1, leading) - rough.gather(1, leading)
    return float((change.amax(-1) - change.amin(-1)).max())
