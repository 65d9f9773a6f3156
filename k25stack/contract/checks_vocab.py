"""C3 and C4: the draft's head and its vocabulary map (T3, T4, T5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from k25stack.contract.facts import DraftFacts, Question
from k25stack.contract.finding import Check, Verdict
from k25stack.contract.rules import EngineRules

GROUP = "files"
ISSUE = "sglang #27829 (draft_vocab_size declared, no lm_head shipped: accept length 1.00)"


def head(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """C3: a head is shipped if and only if a draft vocabulary is declared."""
    declared, vocab = facts.config.get("draft_vocab_size"), facts.config.get("vocab_size")
    shipped = bool(facts.find("lm_head.weight"))
    evidence = {"draft_vocab_size": declared, "vocab_size": vocab, "lm_head_shipped": shipped}
    absent = rules.vocab_size_absent

    def result(verdict: Verdict, message: str, fix: str = "", source: str = rules.source) -> Check:
        return Check("C3", rules.label, verdict, message, evidence, fix, source)

    if facts.config.get("tie_word_embeddings") and rules.ties_head:
        yield result(Verdict.FAIL, "tie_word_embeddings is on: the head would be the target's embedding", "write false")
    elif "draft_vocab_size" not in facts.config and absent == "raises" and rules.layout(facts.architecture) != "mla":
        yield result(Verdict.FAIL, "draft_vocab_size is left out: the engine fails on the name", "write the size")
    elif declared is None and shipped and absent == "raises":
        message = "draft_vocab_size is null or left out: the shipped head is replaced by the target's"
        yield result(Verdict.FAIL, message, "write the size")
    elif declared is None:
        yield result(Verdict.PASS, "the target's vocabulary")
    elif shipped:
        yield result(Verdict.PASS, "a head is declared and shipped")
    elif rules.missing_head == "lent" and declared == vocab:
        yield result(Verdict.PASS, "the target lends its head")
    else:
        consequence = {
            "random": "the head stays random and nothing is accepted (trap T3)",
            "lent": "the target's head, of another size, cannot be lent",
            "refused": "the loader stops",
        }[rules.missing_head]
        yield result(Verdict.FAIL, f"no lm_head.weight: {consequence}", "ship lm_head.weight", ISSUE)


def map_present(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """C4: a reduced vocabulary has its map."""
    assert facts.spec is not None
    has = {name: bool(facts.find(name)) for name in ("d2t", "t2d")}
    evidence = {"draft_vocab": facts.spec.draft_vocab, "target_vocab": facts.spec.target_vocab, **has}
    if facts.spec.full_vocab:
        return
    if not has["d2t"]:
        message = "no d2t: draft ids are taken for target ids (trap T4)"
        yield Check("C4", GROUP, Verdict.FAIL, message, evidence, "ship d2t", "sglang eagle_worker_v2.py")
    elif not has["t2d"]:
        message = "no t2d: d2t cannot be compared with it"
        yield Check("C4", GROUP, Verdict.WARN, message, evidence, "ship t2d beside d2t")


def map_of_full_vocabulary(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """C4: a draft over the whole vocabulary needs no d2t; an engine that takes one adds it to every id."""
    if facts.spec is None or not facts.spec.full_vocab or facts.d2t is None:
        return
    if rules.full_vocabulary_map == "refused":
        message = f"d2t beside a full vocabulary: {rules.engine} has no place for it and stops"
    elif any(facts.d2t) or len(facts.d2t) != facts.spec.target_vocab:
        message = "d2t moves or lacks ids of a full vocabulary"
    else:
        return
    yield Check("C4", rules.label, Verdict.FAIL, message, {"d2t_first": list(facts.d2t[:4])}, "leave d2t and t2d out",
                rules.source)  # fmt: skip


def map_values(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """C4: d2t holds differences of rising target ids, the very ids that t2d marks."""
    if facts.d2t is None or facts.spec is None or facts.spec.full_vocab:
        return
    vocab, d2t = facts.spec.target_vocab, facts.d2t
    ids = [value + index for index, value in enumerate(d2t)]
    marked = None if facts.t2d is None else [token for token, held in enumerate(facts.t2d) if held]
    evidence: dict[str, object] = {"d2t_first": list(d2t[:4]), "ids_first": ids[:4], "length": len(ids)}
    fix = "write d2t[i] = target id - i, target ids rising, and t2d true at exactly these ids"
    problem = ""
    if len(ids) != facts.spec.draft_vocab:
        problem = f"d2t has {len(ids)} entries for a draft vocabulary of {facts.spec.draft_vocab}"
    elif facts.t2d is not None and len(facts.t2d) != vocab:
        problem = f"t2d has {len(facts.t2d)} entries for a target vocabulary of {vocab}"
    elif absolute(d2t, ids, marked, vocab):
        problem = "d2t holds target ids, not differences: both engines add the draft id again (trap T5)"
    elif any(later <= earlier for earlier, later in pairwise(ids)):
        problem = "d2t plus the draft id does not rise"
    elif ids and (ids[0] < 0 or ids[-1] >= vocab):
        problem = f"d2t names ids outside 0..{vocab - 1}"
    elif marked is not None and ids != marked:
        problem = "d2t and t2d name different target ids"
        evidence["differ"] = sorted(set(ids) ^ set(marked))[:8]
    if problem:
        yield Check("C4", GROUP, Verdict.FAIL, problem, evidence, fix, "sglang llama_eagle3.py, vllm llama_eagle3.py")
    else:
        yield Check("C4", GROUP, Verdict.PASS, "d2t holds differences of rising ids, equal to t2d's", evidence)


def absolute(d2t: Sequence[int], ids: list[int], marked: list[int] | None, vocab: int) -> bool:
    """True when the entries themselves are the target ids.  Without t2d only an overflow shows it."""
    values = list(d2t)
    if marked is not None:
        return values == marked and ids != marked
    rising = all(later > earlier for earlier, later in pairwise(values))
    return bool(values) and rising and values[0] >= 0 and values[-1] < vocab <= ids[-1]
