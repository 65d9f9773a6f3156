"""Where prompts come from: the regenerated held-out rows (replayed as token ids), or a few chat questions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.bench.records import Prompt
from k25stack.errors import DamageError, UsageError
from k25stack.files import canonical_json, sha256_text


@dataclass(frozen=True)
class PromptSet:
    """Prompts and what they were answered with when the prediction was made."""

    prompts: tuple[Prompt, ...]
    split: str
    decode: dict[str, Any]  # the decode mode of the recorded answers, {} when there are none
    max_tokens: int | None  # the limit of the recorded answers

    @property
    def hash(self) -> str:
        """Names exactly these prompts in this order."""
        return sha256_text(canonical_json([[p.key, p.ids, p.messages] for p in self.prompts]))

    def taken(self, count: int | None) -> PromptSet:
        """The first ``count`` prompts (all for None)."""
        return PromptSet(self.prompts[:count], self.split, self.decode, self.max_tokens)


def from_samples(path: Path, split: str, domains: Sequence[str] = (), seed: int = 0) -> PromptSet:
    """The greedy rows of ``split`` in a ``samples.jsonl`` (a file, or the directory that holds it).

    They are replayed as token ids, so the prompts are those of the recorded answers to the token.  Each domain is
    shuffled by ``seed`` and spread evenly over the order, so that any first part has the mix of the whole.  Raises
    UsageError when no row fits, DamageError for a line that is no sample.
    """
    path = path / "samples.jsonl" if path.is_dir() else path
    rows = [row for row in _rows(path) if row["split"] == split and row["decode"].get("kind", "greedy") == "greedy"]
    rows = [row for row in rows if not domains or row["domain"] in domains]
    if not rows:
        known = ", ".join(domains) or "any domain"
        raise UsageError(f"no greedy {split} row of {known}", where=str(path), remedy="check bench.prompts and data")
    modes = {canonical_json(row["decode"]) for row in rows}
    if len(modes) > 1:
        raise UsageError(f"rows of {len(modes)} decode modes in one split", where=str(path), remedy="regenerate")
    prompts = [
        Prompt(f"{row['doc_id']}/{row['turn']}", row["doc_id"], row["domain"], tuple(row["prompt_ids"])) for row in rows
    ]
    decode = dict(rows[0]["decode"])
    return PromptSet(tuple(spread(prompts, seed)), split, decode, decode.get("max_new_tokens"))


def spread(prompts: Iterable[Prompt], seed: int) -> list[Prompt]:
    """A seeded order in which every first part holds the domains in proportion, up to one prompt of each."""
    domains: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt.key):
        domains.setdefault(prompt.domain, []).append(prompt)
    placed = []
    for name, members in sorted(domains.items()):
        random.Random(f"{seed}/{name}").shuffle(members)
        placed += [((index + 0.5) / len(members), name, prompt) for index, prompt in enumerate(members)]
    return [prompt for _, _, prompt in sorted(placed, key=lambda entry: entry[:2])]


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    needed = {"doc_id": str, "turn": int, "domain": str, "split": str, "prompt_ids": list, "decode": dict}
    if not path.is_file():
        raise UsageError("no such samples file", where=str(path), remedy="run the regenerate step first")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                wrong = [name for name, kind in needed.items() if not isinstance(row.get(name), kind)]
            except (ValueError, AttributeError, RecursionError):
                raise DamageError("not a JSON line", where=f"{path}:{number}", remedy="run regenerate again") from None
            if wrong or not all(type(token) is int for token in row["prompt_ids"]):
                what = f"not a sample: no {', '.join(wrong) or 'token ids'}"
                raise DamageError(what, where=f"{path}:{number}", remedy="run regenerate again")
            yield row


def questions(seed: int = 0) -> PromptSet:
    """The shipped chat questions, for a server of which nothing is recorded.

    Real questions through the server's chat template: random tokens falsify acceptance and expert routing.
    """
    raw = json.loads((Path(__file__).parent / "questions.json").read_text(encoding="utf-8"))
    prompts = [
        Prompt(f"{domain}-{index}", f"{domain}-{index}", domain, messages=({"role": "user", "content": text},))
        for domain, texts in sorted(raw.items())
        for index, text in enumerate(texts)
    ]
    random.Random(seed).shuffle(prompts)
    return PromptSet(tuple(prompts), "questions", {}, None)
