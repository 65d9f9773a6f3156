"""The draft vocabulary: which target ids the draft can propose, and what share of real text they cover (no torch).

Step program: ``python -m k25stack.draft.vocab SPEC.json`` with params {size}, inputs {samples, target}.
Writes ``vocab.safetensors`` {d2t int64 [D], t2d bool [V]} and ``coverage.json``.

Order of choice: the end-of-sequence ids, then response tokens of the *train* split by count, then its prompt tokens
by count, then the lowest ids; equal counts by lower id.  Ids are then sorted, so ``d2t[i] + i`` rises: d2t holds
differences, which is what both engines add to the draft id.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k25stack.draft.target import TargetFacts
from k25stack.draft.weightfile import bool_part, int64_part
from k25stack.errors import DamageError, UsageError, in_words
from k25stack.files import sha256_file, sha256_text, write_json
from k25stack.model.tensorfile import write_tensors
from k25stack.worker import Progress, Spec, log, run_worker

OUT_OF_VOCABULARY_SHOWN = 50


@dataclass
class Counts:
    """Token counts of a sample file: responses by (split, domain), prompts of the train split."""

    responses: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    train_prompts: Counter[int] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        key = (row["split"], row["domain"])
        self.responses.setdefault(key, Counter()).update(row["response_ids"])
        if row["split"] == "train":
            self.train_prompts.update(row["prompt_ids"])

    def responses_where(self, split: str | None = None, domain: str | None = None) -> Counter[int]:
        """Response counts of one split, one domain, both or all."""
        total: Counter[int] = Counter()
        for (row_split, row_domain), counts in self.responses.items():
            if split in (None, row_split) and domain in (None, row_domain):
                total.update(counts)
        return total


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of samples.jsonl.  Raises DamageError with the line number for a row that is not a sample."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                row["split"], row["domain"], row["prompt_ids"], row["response_ids"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                where = f"{path}:{number}"
                raise DamageError(
                    f"not a sample row: {in_words(error)}", where=where, remedy="generate again"
                ) from None
            yield row


def choose(counts: Counts, size: int, vocab: int, always: Iterable[int] = ()) -> list[int]:
    """The target ids of the draft vocabulary, rising.  Raises UsageError when ``size`` cannot hold them."""
    chosen = dict.fromkeys(always)
    if not len(chosen) <= size <= vocab:
        raise UsageError(
            f"size {size} for a target vocabulary of {vocab}",
            where="draft vocabulary",
            remedy=f"choose between {max(1, len(chosen))} and {vocab}",
        )
    train = counts.responses_where(split="train")
    if not train:
        raise UsageError("no response tokens in the train split", where="draft vocabulary", remedy="add prompts")
    if bad := [token for token in (*train, *counts.train_prompts, *chosen) if not 0 <= token < vocab]:
        raise DamageError(f"token id {bad[0]} lies outside the target's {vocab}", where="samples")
    for source in (by_count(train), by_count(counts.train_prompts), range(vocab)):
        for token in source:
            if len(chosen) == size:
                return sorted(chosen)
            chosen[token] = None
    return sorted(chosen)


def by_count(counts: Counter[int]) -> list[int]:
    """Ids from most to least frequent; equal counts by lower id."""
    return sorted(counts, key=lambda token: (-counts[token], token))


def maps(ids: list[int], vocab: int) -> tuple[array[int], bytes]:
    """(d2t as differences, t2d as one byte per target id) of rising target ids."""
    held = bytearray(vocab)
    for token in ids:
        held[token] = 1
    return array("q", (token - index for index, token in enumerate(ids))), bytes(held)


def vocab_hash(ids: Iterable[int]) -> str:
    """The name of a draft vocabulary: sha256 of its target ids in draft order, written in decimal."""
    return sha256_text(",".join(map(str, ids)))


def share(counts: Counter[int], held: bytes) -> float | None:
    """Part of these tokens that the draft vocabulary holds; None for no tokens at all."""
    total = counts.total()
    return sum(count for token, count in counts.items() if held[token]) / total if total else None


def coverage(counts: Counts, held: bytes) -> dict[str, Any]:
    """Share of response tokens inside the vocabulary.

    ``overall`` and ``by_domain`` are over the split named by ``of``: held_out where there is one, since the train split
    decided the choice and flatters it.
    """
    splits = sorted({split for split, _ in counts.responses})
    domains = sorted({domain for _, domain in counts.responses})
    of = "held_out" if "held_out" in splits else None
    missed = Counter({token: n for token, n in counts.responses_where(of).items() if not held[token]})
    return {
        "of": of or "all",
        "overall": share(counts.responses_where(of), held),
        "by_domain": {domain: share(counts.responses_where(of, domain), held) for domain in domains},
        "by_split": {split: share(counts.responses_where(split), held) for split in splits},
        "tokens": [
            {"split": split, "domain": domain, "tokens": part.total(), "share": share(part, held)}
            for (split, domain), part in sorted(counts.responses.items())
        ],
        "out_of_vocabulary": [
            {"id": token, "count": missed[token]} for token in by_count(missed)[:OUT_OF_VOCABULARY_SHOWN]
        ],
    }


def samples_file(given: Path) -> Path:
    """The sample file of a step's output directory, or the file itself."""
    return given / "samples.jsonl" if given.is_dir() else given


def program(spec: Spec) -> dict[str, Any]:
    target = TargetFacts.read(spec.inputs["target"])
    progress = Progress(spec.out)
    counts = Counts()
    rows = 0
    for rows, row in enumerate(read_samples(samples_file(spec.inputs["samples"])), start=1):
        counts.add(row)
        progress.update("count", rows, rows + 1, "rows")
    size = int(spec.params["size"])
    ids = choose(counts, size, target.vocab, always=target.eos_ids)
    d2t, t2d = maps(ids, target.vocab)
    tokenizer = spec.inputs["target"] / "tokenizer.json"
    names = {"tokenizer_sha256": sha256_file(tokenizer) if tokenizer.is_file() else "", "vocab_hash": vocab_hash(ids)}
    report = {
        "schema": 1,
        "size": size,
        "target_vocab": target.vocab,
        **names,
        "train_distinct": len(counts.responses_where(split="train")),
        **coverage(counts, t2d),
    }
    write_tensors(spec.out / "vocab.safetensors", [int64_part("d2t", d2t), bool_part("t2d", t2d)], names)
    write_json(spec.out / "coverage.json", report)
    progress.update("count", rows, rows, "rows")
    told = {name: report[name] for name in ("of", "overall", "by_domain", "by_split")}
    log(f"draft vocabulary of {size} ids covers of the responses: {told['by_split']}")
    return {"size": size, "rows": rows, "vocab_hash": names["vocab_hash"], "coverage": told}


if __name__ == "__main__":
    raise SystemExit(run_worker(program))
