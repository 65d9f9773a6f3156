"""D5 to D9: is the text the target's own, does it loop, is there enough of it, and once (standard library only)?"""

from __future__ import annotations

import hashlib
from collections import Counter
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
OWN_TOKENS = 0.96  # and of a split's tokens, where some documents are not: a few near-ties fail a short one
SAMPLED = 0.35  # the same of sampled text, where the head cannot be asked
SHORT = 20  # response tokens under which documents are judged together: one near-tie would decide
LOOPS = 0.4  # unique bigrams of a window; under it the text goes round in circles
LOOP_TOKENS = 32  # shorter responses are not judged
WINDOW = 512  # tokens; over a whole long text they fall under LOOPS by themselves (0.37 of 32,000 tokens of code)
LOOP_WINDOWS = 0.1  # share of a response's windows
LOOP_DOCUMENTS = 0.05
TWICE = 0.01  # share of documents whose text another one has as well; a few greetings are alike in any set
TOKENS_PER_PARAMETER = 1.0  # under it the amount of data limits the draft; public Kimi-K2.5 drafts saw about 3
EPOCHS = 3  # more on the same data lowered the served accept length (deepseek-ai/DeepSpec #84)


def is_greedy(decode: Mapping[str, Any]) -> bool:
    """Whether the texts are recorded as greedy."""
    return bool(decode) and not decode.get("temperature") and decode.get("kind", "greedy") == "greedy"


def on_policy(texts: Sequence[Text], decode: Mapping[str, Any]) -> Iterator[Check]:
    """D5: share of documents that the target wrote itself, by split; greedy splits must be it.

    How much of sampled text is the target's own, only its head can say (`states_head`).
    """
    documents: dict[str, list[float]] = {}
    tokens: dict[str, list[int]] = {}
    short: dict[str, list[int]] = {}
    for text in texts:
        agree, count = text.agreement()
        if not count:
            continue
        for sums in (tokens, short) if count < SHORT else (tokens,):
            before = sums.get(text.split, [0, 0])
            sums[text.split] = [before[0] + agree, before[1] + count]
        if count >= SHORT:
            documents.setdefault(text.split, []).append(agree / count)
    for split, (agree, count) in short.items():
        documents.setdefault(split, []).append(agree / count)
    if not documents:
        yield Check("D5", GROUP, Verdict.UNKNOWN, "no response token to compare")
        return
    shares = {split: sum(value >= OWN for value in values) / len(values) for split, values in sorted(documents.items())}
    means = {split: round(agree / count, 4) for split, (agree, count) in sorted(tokens.items())}
    evidence = {"documents_own": shares, "token_agreement": means, "threshold": OWN, "decode": dict(decode)}
    if not is_greedy(decode):
        share = sum(agree for agree, _ in tokens.values()) / sum(count for _, count in tokens.values())
        kind = "sampled text" if decode else "text of which nothing says how it was made"
        message = f"{kind}: {share:.0%} of its tokens are the target's leading ones"
        if share < SAMPLED:
            yield Check("D5", GROUP, Verdict.WARN, f"{message}: not its own text", evidence, "regenerate the answers")
        else:
            yield Check("D5", GROUP, Verdict.PASS, f"{message} (--target: its head says more)", evidence)
        return
    foreign = [split for split, share in shares.items() if share < OWN_DOCUMENTS and means[split] < OWN_TOKENS]
    wrong = [split for split in foreign if split != "train"]
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
            if goes_round(response):
                loops.append(text.name)
    evidence = {"judged": judged, "looping": len(loops), "examples": loops[:5], "unique_bigrams_under": LOOPS}
    if len(loops) > max(1, LOOP_DOCUMENTS * judged):  # one of a few is no habit
        message = f"{len(loops) / judged:.0%} of the responses go round in circles"
        yield Check("D6", GROUP, Verdict.WARN, message, evidence, "drop them, or check the served model's output")
    else:
        yield Check("D6", GROUP, Verdict.PASS, f"{len(loops)} of {judged} responses loop", evidence)


def goes_round(tokens: Sequence[int]) -> bool:
    """Whether a part of the text repeats itself, window by window; a short rest belongs to the last window."""
    begins = range(0, max(1, len(tokens) - WINDOW // 2), WINDOW)
    windows = [tokens[begin : len(tokens) if begin == begins[-1] else begin + WINDOW] for begin in begins]
    low = sum(unique_bigrams(window) < LOOPS for window in windows)
    return low > 0 and low >= LOOP_WINDOWS * len(windows)


def once(texts: Sequence[Text]) -> Iterator[Check]:
    """D9: no document twice, and none of another split in the training data."""
    names = [name for name, count in Counter(text.name for text in texts).items() if count > 1]
    found: dict[bytes, list[Text]] = {}
    for text in texts:
        found.setdefault(hashlib.sha256(text.token_ids).digest(), []).append(text)
    groups = [group for group in found.values() if len(group) > 1]
    leaked = [group for group in groups if "train" in (splits := {text.split for text in group}) and len(splits) > 1]
    more = sum(len(group) - 1 for group in groups)
    held = sum(text.split != "train" for text in texts)
    again = sum(text.split != "train" for group in leaked for text in group)
    shown = [[f"{text.split} {text.name}" for text in group[:3]] for group in (leaked or groups)[:3]]
    evidence = {"judged": len(texts), "texts_again": more, "names_twice": names[:5], "examples": shown}
    if names:
        message = f"{len(names)} documents lie there twice, as {names[0]}"
        yield Check("D9", GROUP, Verdict.FAIL, message, evidence, "extract each sample once")
    elif leaked:
        message = f"{again} of {held} texts of other splits are training data as well: their figures flatter the draft"
        verdict = Verdict.FAIL if again > TWICE * held else Verdict.WARN
        yield Check("D9", GROUP, verdict, message, evidence, "take them out of one split, then extract again")
    elif more > max(1, TWICE * len(texts)):
        message = f"{more} of {len(texts)} documents repeat another one's text: they count as epochs, not as data"
        yield Check("D9", GROUP, Verdict.WARN, message, evidence, "take them out of the samples")
    else:
        yield Check("D9", GROUP, Verdict.PASS, f"{len(texts)} documents, {more} of them a text again", evidence)


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
    told = training.get("train") if isinstance(training, Mapping) else None
    seen = told.get("epochs") if isinstance(told, Mapping) else None
    if not isinstance(seen, int | float):
        return
    evidence = {"epochs": seen, "threshold": EPOCHS}
    if seen > EPOCHS:
        message = f"{seen:g} epochs over the same data"
        fix = "stop at the best held-out accept length; more epochs lowered it elsewhere while the loss still fell"
        yield Check("D8", GROUP, Verdict.WARN, message, evidence, fix, "deepseek-ai/DeepSpec #84")
    else:
        yield Check("D8", GROUP, Verdict.PASS, f"{seen:g} epochs", evidence)
