"""D5 to D8: is the text in the shards the target's own, does it loop, is there enough of it (standard library only)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from k25stack.contract.finding import Check, Verdict
from k25stack.draft.inspect import inspect_draft
from k25stack.states.tokens import Text

GROUP = "text"
OWN = 0.90  # a document agrees with the target's greedy choice so often when the target wrote it (bf16: about 0.98)
OWN_DOCUMENTS = 0.95  # share of documents that must be the target's own
LOOPS = 0.4  # unique bigrams of a response; under it the text goes round in circles
LOOP_TOKENS = 32  # shorter responses are not judged
LOOP_DOCUMENTS = 0.05
TOKENS_PER_PARAMETER = 1.0  # under it the amount of data limits the draft; public Kimi-K2.5 drafts saw about 3
EPOCHS = 3  # more on the same data lowered the served accept length (deepseek-ai/DeepSpec #84)


def on_policy(texts: Sequence[Text], decode: Mapping[str, Any]) -> Iterator[Check]:
    """D5: share of documents that the target wrote itself, by split; greedy splits must be it."""
    by_split: dict[str, list[float]] = {}
    for text in texts:
        agree, count = text.agreement()
        if count:
            by_split.setdefault(text.split, []).append(agree / count)
    if not by_split:
        yield Check("D5", GROUP, Verdict.UNKNOWN, "no response token to compare")
        return
    shares = {split: sum(value >= OWN for value in values) / len(values) for split, values in sorted(by_split.items())}
    means = {split: round(sum(values) / len(values), 4) for split, values in sorted(by_split.items())}
    evidence = {"documents_own": shares, "token_agreement": means, "threshold": OWN, "decode": dict(decode)}
    greedy = not decode.get("temperature") and decode.get("kind", "greedy") == "greedy"
    reported = {split: share for split, share in shares.items() if split != "train"}
    wrong = [split for split, share in (reported if greedy else {}).items() if share < OWN_DOCUMENTS]
    if wrong:
        message = f"recorded as greedy, but {', '.join(wrong)} is not the target's own greedy text"
        yield Check(
            "D5", GROUP, Verdict.FAIL, message, evidence, "regenerate the answers with this target, then extract"
        )
    elif shares.get("train", 1.0) < OWN_DOCUMENTS:
        message = f"{1 - shares['train']:.0%} of the training documents are not the target's greedy text"
        fix = "fine for a sampled share; else regenerate: foreign text costs accept length"
        yield Check("D5", GROUP, Verdict.WARN, message, evidence, fix)
    else:
        yield Check("D5", GROUP, Verdict.PASS, "the text is the target's own", evidence)


def looping(texts: Sequence[Text]) -> Iterator[Check]:
    """D6: responses with few unique bigrams teach repetition and flatter the accept length."""
    judged, loops = 0, []
    for text in texts:
        response = text.response
        if len(response) >= LOOP_TOKENS:
            judged += 1
            if unique_bigrams(response) < LOOPS:
                loops.append(text.name)
    evidence = {"judged": judged, "looping": len(loops), "examples": loops[:5], "unique_bigrams_under": LOOPS}
    if judged and len(loops) / judged > LOOP_DOCUMENTS:
        message = f"{len(loops) / judged:.0%} of the responses go round in circles"
        yield Check("D6", GROUP, Verdict.WARN, message, evidence, "drop them, or check the served model's output")
    else:
        yield Check("D6", GROUP, Verdict.PASS, f"{len(loops)} of {judged} responses loop", evidence)


def unique_bigrams(tokens: Sequence[int]) -> float:
    """Different neighbouring pairs over all of them, in 0..1; 1 for fewer than two tokens."""
    pairs = list(pairwise(tokens))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def parameters(draft: Path | None) -> int | None:
    """Weights of the draft without the embedding; None without one."""
    return int(inspect_draft(draft)["parameters"]) if draft is not None else None


def enough(tokens: int, weights: int | None) -> Iterator[Check]:
    """D7: response tokens of the train split per parameter."""
    if not weights:
        yield Check("D7", GROUP, Verdict.PASS, f"{tokens:,} response tokens to train on", {"tokens": tokens})
        return
    ratio = tokens / weights
    evidence = {
        "tokens": tokens,
        "parameters": weights,
        "tokens_per_parameter": ratio,
        "threshold": TOKENS_PER_PARAMETER,
    }
    if ratio < TOKENS_PER_PARAMETER:
        message = f"data-limited: {ratio:.3f} response tokens per parameter"
        fix = f"add data (public drafts saw about 3 per parameter); more than {EPOCHS} epochs do not replace it"
        yield Check("D7", GROUP, Verdict.WARN, message, evidence, fix)
    else:
        yield Check("D7", GROUP, Verdict.PASS, f"{ratio:.2f} response tokens per parameter", evidence)


def epochs(record: Mapping[str, Any] | None) -> Iterator[Check]:
    """D8: how often the draft saw them."""
    training = (record or {}).get("training")
    seen = training.get("epochs") if isinstance(training, Mapping) else None
    if not isinstance(seen, int | float):
        return
    evidence = {"epochs": seen, "threshold": EPOCHS}
    if seen > EPOCHS:
        message = f"{seen:g} epochs over the same data"
        fix = "stop at the best held-out accept length; more epochs lowered it elsewhere while the loss still fell"
        yield Check("D8", GROUP, Verdict.WARN, message, evidence, fix, "deepseek-ai/DeepSpec #84")
    else:
        yield Check("D8", GROUP, Verdict.PASS, f"{seen:g} epochs", evidence)
