"""Step program: choose and split the prompts (``python -m k25stack.train.corpus SPEC.json``).

Params ``{"seed", "sources": [...], "context", "max_new_tokens", "decode": {...}, "overlong": "refuse"|"drop",
"cache": path or null}``; input ``target`` (tokenizer and chat template, for lengths).  A source is
``{"name", "kind", "package", "version", "sha256", "turns", "take", "held_out", "validation", "framings",
"categories", "path", "repo", "revision", "field"}``; its name is the domain of its rows.

Out: ``prompts.jsonl``, one document per line.  The split is by question: every turn and framing of one question, and
every spelling of it that differs in case, punctuation or white space only, is on one side.  The choice is a seeded
hash of the question, so that adding questions moves few others.
"""

from __future__ import annotations

import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k25stack.errors import UsageError
from k25stack.files import canonical_json, sha256_text
from k25stack.model.tokenizer import Tokenizer
from k25stack.train.samples import PROMPTS, SPLITS, DecodeMode, Prompt, Split, write_records
from k25stack.train.sources import Question, read_questions
from k25stack.worker import Spec, log, run_worker

PLAIN = "{question}"  # the framing that adds nothing


@dataclass(frozen=True)
class Limits:
    """How long a conversation may become."""

    context: int
    mode: DecodeMode

    def tokens(self, tokenizer: Tokenizer, turns: Sequence[str]) -> int:
        """Tokens of the longest sequence this document can make: all turns, each answered to the limit."""
        messages = self.mode.messages(turns, [""] * (len(turns) - 1))
        prompt = len(tokenizer.ids_of_chat(messages, **self.mode.template_arguments()))
        return prompt + len(turns) * self.mode.max_new_tokens


def normal_form(text: str) -> str:
    """What two spellings of one question share: its letters, digits and symbols in lower case, nothing between them."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = "".join(c for c in folded if unicodedata.category(c)[0] not in "PZC")
    return bare or folded.strip()


def prepare(spec: Spec) -> dict[str, Any]:
    """Write ``prompts.jsonl``; returns counts per domain and split."""
    params = spec.params
    mode = DecodeMode.from_dict({**params.get("decode", {}), "max_new_tokens": params["max_new_tokens"]})
    policy = params.get("overlong", "refuse")
    if policy not in ("refuse", "drop"):
        raise UsageError(f"overlong is {policy!r}", where="data", remedy="refuse or drop")
    tokenizer, limits = Tokenizer.load(spec.inputs["target"]), Limits(int(params["context"]), mode)
    cache = Path(params["cache"]) / "wheels" if params.get("cache") else None
    taken: set[str] = set()
    prompts: list[Prompt] = []
    figures: dict[str, Any] = {"duplicates": {}, "overlong_dropped": {}}
    for source in params["sources"]:
        name = source["name"]
        if any(prompt.domain == name for prompt in prompts):
            raise UsageError(f"two sources are called {name}", where="data.sources", remedy="rename one")
        questions, duplicates = distinct(read_questions(source, cache, spec.inputs.get(name)), taken, source)
        if policy == "drop":
            kept = [q for q in questions if all(_fits(limits, tokenizer, p) for p in documents(q, source, "train"))]
            figures["overlong_dropped"][name] = len(questions) - len(kept)
            questions = kept
        chosen = list(split(questions, source, int(params["seed"])))
        for prompt in chosen:
            require_fit(limits, tokenizer, prompt)
        taken.update(normal_form(question.turns[0]) for question in questions)
        figures["duplicates"][name] = duplicates
        prompts += chosen
    prompts.sort(key=lambda prompt: (SPLITS.index(prompt.split), _draw(params["seed"], prompt.doc_id)))
    write_records(spec.out / PROMPTS, prompts)
    return {**figures, **_counted(prompts)}


def distinct(questions: Sequence[Question], taken: set[str], source: dict[str, Any]) -> tuple[list[Question], int]:
    """The questions cut to the source's number of turns, each once, without those of earlier sources.

    Returns them with the number left out as duplicates.  Raises UsageError when an id stands for two questions.
    """
    seen: set[tuple[str, ...]] = set()
    openings: dict[str, str] = {}
    kept = []
    for question in questions:
        cut = replace(question, turns=question.turns[: source.get("turns") or 1])
        forms = tuple(map(normal_form, cut.turns))
        if openings.setdefault(question.question_id, forms[0]) != forms[0]:
            where = f"source {source['name']}, question {question.question_id}"
            raise UsageError("two questions have this id", where=where, remedy="give each question its own id")
        if forms not in seen and forms[0] not in taken:
            seen.add(forms)
            kept.append(cut)
    return kept, len(questions) - len(kept)


def split(questions: Sequence[Question], source: dict[str, Any], seed: int) -> Iterator[Prompt]:
    """Documents of one source: first the held-out questions, then validation, then ``take`` for training.

    Conversations with the same opening count as one question.  Each side has the categories in proportion.  A held-out
    or validation question has its first framing only.  Raises UsageError when there are too few questions.
    """
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(normal_form(question.turns[0]), []).append(question)
    order = _stratified(groups, seed)
    held_out, validation, take = source.get("held_out") or 0, source.get("validation") or 0, source.get("take")
    need = held_out + validation + (take or 0)
    if len(order) < need:
        what = f"{len(order)} different questions, {need} asked for"
        raise UsageError(what, where=f"source {source['name']}", remedy="lower take, held_out or validation")
    last = len(order) if take is None else need
    for place, key in enumerate(order[:last]):
        side: Split = "held_out" if place < held_out else "validation" if place < held_out + validation else "train"
        for question in groups[key]:
            yield from documents(question, source, side)


def _stratified(groups: dict[str, list[Question]], seed: int) -> list[str]:
    """Keys in seeded order, such that every beginning of the list has the categories in proportion."""
    by_category: dict[str, list[str]] = {}
    for key, members in groups.items():
        by_category.setdefault(members[0].category, []).append(key)
    placed = []
    for keys in by_category.values():
        keys.sort(key=lambda key: _draw(seed, key))
        placed += [((rank + 0.5) / len(keys), _draw(seed, key), key) for rank, key in enumerate(keys)]
    return [key for _, _, key in sorted(placed)]


def _draw(seed: int, text: str) -> str:
    return sha256_text(f"{seed}:{text}")


def documents(question: Question, source: dict[str, Any], side: Split) -> Iterator[Prompt]:
    """One document per framing in training, one in all on the other sides."""
    framings = list(source.get("framings") or (PLAIN,))
    for framing in framings if side == "train" else framings[:1]:
        opening, *rest = question.turns
        framed = framing.replace(PLAIN, opening) if PLAIN in framing else framing + opening
        identity = canonical_json([source["name"], question.turns, framing])
        yield Prompt(
            doc_id=sha256_text(identity)[:16],
            question_id=question.question_id,
            domain=source["name"],
            split=side,
            turns=(framed, *rest),
            framing=framing,
        )


def _fits(limits: Limits, tokenizer: Tokenizer, prompt: Prompt) -> bool:
    return limits.tokens(tokenizer, prompt.turns) <= limits.context


def require_fit(limits: Limits, tokenizer: Tokenizer, prompt: Prompt) -> None:
    """Raises UsageError naming a document that cannot be answered within the context."""
    tokens = limits.tokens(tokenizer, prompt.turns)
    if tokens > limits.context:
        turns, limit = len(prompt.turns), limits.mode.max_new_tokens
        what = f"{tokens - turns * limit} prompt tokens and {turns} x {limit} to generate exceed {limits.context}"
        where = f"document {prompt.doc_id} ({prompt.domain} {prompt.question_id})"
        raise UsageError(what, where=where, remedy="raise context, lower max_new_tokens, or set overlong: drop")


def _counted(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Documents, questions and turns per domain and split; the table goes to the log."""
    domains = list(dict.fromkeys(prompt.domain for prompt in prompts))
    documents_of: Counter[tuple[str, str]] = Counter()
    turns_of: Counter[tuple[str, str]] = Counter()
    for prompt in prompts:
        documents_of[prompt.domain, prompt.split] += 1
        turns_of[prompt.domain, prompt.split] += len(prompt.turns)
    for domain in sorted(domains):
        log(f"{domain}: " + ", ".join(f"{documents_of[domain, side]} {side}" for side in SPLITS))

    def table(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
        return {domain: {side: counts[domain, side] for side in SPLITS} for domain in sorted(domains)}

    questions = len({(prompt.domain, prompt.question_id) for prompt in prompts})
    return {"questions": questions, "documents": table(documents_of), "turns": table(turns_of)}


if __name__ == "__main__":
    sys.exit(run_worker(prepare))
