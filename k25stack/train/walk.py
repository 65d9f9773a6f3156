"""The greedy walk over held-out responses: the accept length that serving will measure (see ``speculation.walk``).

Documents are scored in packed batches, each batch by one rank; what every chain start accepts is written to a shared
row of small numbers, from which all ranks count the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from k25stack.errors import UsageError
from k25stack.speculation import RoundCounts, bootstrap_by_prompt, greedy_walk, survival_uniform
from k25stack.states.reader import DocumentRef, States
from k25stack.train.data import chain_starts, pack
from k25stack.train.forward import FastDraft
from k25stack.train.parallel import Group

BATCH_TOKENS = 4096
INTERVAL_SEED = 20260101  # of the bootstrap: one run prints one interval


@dataclass(frozen=True)
class WalkDocument:
    """A response with at least one chain start, and where its numbers lie in the shared row."""

    ref: DocumentRef
    starts: slice


def walk_documents(states: States, split: str) -> list[WalkDocument]:
    """The documents of a split that can be walked, in manifest order.

    Raises UsageError when there is none, or when a response is not the end of its document.
    """
    found, begin = [], 0
    for ref in states.refs(split):
        mask = states.load(ref).loss_mask
        count = max(0, int(mask.sum()) - 1)
        if not bool(mask[len(mask) - int(mask.sum()) :].all()):
            raise UsageError("the response is not the end of the document", where=f"{ref.doc_id}/{ref.turn}")
        if count and len(mask) > count + 1:
            found.append(WalkDocument(ref, slice(begin, begin + count)))
            begin += count
    if not found:
        remedy = "extract states of this split, with responses of two tokens or more"
        raise UsageError(f"no {split} response to walk", where=str(states.directory), remedy=remedy)
    return found


def score(
    draft: FastDraft, states: States, documents: Sequence[WalkDocument], k: int, group: Group, accepted: Tensor
) -> None:
    """Fill ``accepted`` int8 [starts] with the leading matches at every chain start; returns when all ranks have."""
    for number, batch in enumerate(batches(documents)):
        if number % group.world != group.rank:
            continue
        loaded = [states.load(document.ref) for document in batch]
        queries = [chain_starts(document.loss_mask) for document in loaded]
        packed = pack(loaded, queries, draft.frozen, k, teach=False)
        accepted[batch[0].starts.start : batch[-1].starts.stop] = draft.accepted(packed, k)
    group.barrier()


def batches(documents: Iterable[WalkDocument]) -> list[list[WalkDocument]]:
    """Neighbours, up to ``BATCH_TOKENS`` tokens (one document at least)."""
    result: list[list[WalkDocument]] = []
    filled = BATCH_TOKENS
    for document in documents:
        if filled + len(document.ref) > BATCH_TOKENS:
            result.append([])
            filled = 0
        result[-1].append(document)
        filled += len(document.ref)
    return result


@dataclass(frozen=True)
class Walk:
    """Rounds per document, and the accepted numbers of all positions in the same order."""

    split: str
    k: int
    documents: list[tuple[DocumentRef, RoundCounts]]
    accepted: list[int]

    @classmethod
    def count(cls, split: str, k: int, documents: Sequence[WalkDocument], accepted: Tensor) -> Walk:
        values: list[int] = accepted.tolist()
        rounds = [(document.ref, greedy_walk(values[document.starts], k)) for document in documents]
        return cls(split, k, rounds, values)

    def total(self) -> RoundCounts:
        return sum((rounds for _, rounds in self.documents), RoundCounts.zero(self.k))

    def records(self) -> list[dict[str, Any]]:
        """One JSON record per document: its rounds, uncut ones; cut ones apart."""
        return [
            {
                "doc_id": ref.doc_id,
                "turn": ref.turn,
                "domain": ref.domain,
                "rounds": rounds.verify_calls,
                "accepted": rounds.accepted,
                "cut": rounds.cut,
                "histogram": list(rounds.histogram),
            }
            for ref, rounds in self.documents
        ]

    def summary(self) -> dict[str, Any]:
        """Accept length with its interval clustered by prompt, survival, per-domain figures."""
        domains = sorted({ref.domain for ref, _ in self.documents})
        return {
            "split": self.split,
            "k": self.k,
            "verify_rule": "greedy",
            **self._figures(domains),
            "survival_uniform": survival_uniform(self.accepted),
            "by_domain": {domain: self._figures([domain]) for domain in domains},
        }

    def _figures(self, domains: Sequence[str]) -> dict[str, Any]:
        per_prompt: dict[str, RoundCounts] = {}  # all turns of a prompt together
        for ref, rounds in self.documents:
            if ref.domain in domains:
                per_prompt[ref.doc_id] = per_prompt.get(ref.doc_id, RoundCounts.zero(self.k)) + rounds
        prompts = list(per_prompt.values())
        total = sum(prompts, RoundCounts.zero(self.k))
        figures: dict[str, Any] = {"accept_length": None, "interval": None, "survival": None}
        if total.verify_calls:
            interval = bootstrap_by_prompt(prompts, RoundCounts.accept_length, INTERVAL_SEED)
            figures = {
                "accept_length": total.accept_length(),
                "interval": list(interval),
                "survival": total.survival(),
            }
        return {
            **figures,
            "prompts": len(prompts),
            "rounds": total.verify_calls,
            "accepted": total.accepted,
            "cut": total.cut,
            "histogram": list(total.histogram),
        }
