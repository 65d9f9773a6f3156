"""The checks of a directory of hidden-state shards, D1 to D10: one small function each, in one table.

Headers, manifest and tokens are read with the standard library; what the states hold (D2, D4, D10) needs torch.
To add one: write the function, add its row to ``TABLE``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.contract import states_aux, states_beside, states_head, states_text, states_values
from k25stack.contract.facts import attempt
from k25stack.contract.finding import Check, Result, Verdict
from k25stack.draft.provenance import PROVENANCE
from k25stack.draft.target import TargetFacts, read_object
from k25stack.errors import DamageError, HostError
from k25stack.states.manifest import Manifest
from k25stack.states.tokens import Text, texts
from k25stack.states.verify import REMEDY, verify

GROUP = "shards"
NOTE = "target.json"  # what a fetched target says of itself
TEXTS = 2000  # documents whose text is judged, spread over the directory; all with --deep


@dataclass(frozen=True)
class StatesQuestion:
    """What the states are held against; None where the caller does not know."""

    target: Path | None = None  # model directory: its head and final norm are read
    draft: Path | None = None  # trained, or to be trained, on these states
    layers: tuple[int, ...] | None = None  # canonical
    deep: bool = False  # read every byte, judge every document
    beside: Path | None = None  # another extraction of the same text


@dataclass(frozen=True)
class StatesFacts:
    """An intact directory, and what stands beside it."""

    directory: Path
    manifest: Manifest
    texts: list[Text]
    question: StatesQuestion
    record: dict[str, Any] | None = None  # the draft's k25stack.json


Judge = Callable[[StatesFacts], Iterator[Check]]


def check_states(directory: Path, question: StatesQuestion | None = None) -> Result:
    """Judge shards by manifest, headers and tokens; with a target, also by its head.

    Raises UsageError when there is no manifest.
    """
    asked = question or StatesQuestion()
    try:
        damage = verify(directory, hashes=asked.deep)
        manifest = Manifest.read(directory)
    except DamageError as error:
        found = Check(rule_of(error.what), GROUP, Verdict.FAIL, str(error), {}, "extract the states again")
        return Result(str(directory), "states", (found,))
    if damage:
        checks = [
            Check(rule_of(one.what), GROUP, Verdict.FAIL, f"{one.file}: {one.what}", {"file": one.file}, REMEDY)
            for one in damage
        ]
        return Result(str(directory), "states", tuple(checks))
    read, problem = attempt(lambda: list(texts(directory, manifest, None if asked.deep else TEXTS)), [])
    if problem:
        return Result(str(directory), "states", (Check("D1", GROUP, Verdict.FAIL, problem, {}, REMEDY),))
    record = None
    if asked.draft is not None and (asked.draft / PROVENANCE).is_file():
        record = read_object(asked.draft / PROVENANCE)
    facts = StatesFacts(directory, manifest, read, asked, record)
    return Result(str(directory), "states", tuple(check for judge in TABLE for check in judge(facts)))


def rule_of(what: str) -> str:
    """The check that a damage belongs to: a shard of another width (D2), of another origin (D3), or torn (D1)."""
    if what.startswith("aux is ") or " aux layers " in what:
        return "D2"
    return "D3" if what.startswith("metadata ") else "D1"


def whole(facts: StatesFacts) -> Iterator[Check]:
    """D1: the bytes are those of the manifest."""
    meta = facts.manifest.meta
    told = {"layers": list(meta.layers), "hidden": meta.hidden, "engine": f"{meta.engine} {meta.engine_version}"}
    if not facts.manifest.shards:
        yield Check("D1", GROUP, Verdict.FAIL, "no shard in the manifest", told, "extract the states")
        return
    depth = (
        "every byte is as it was written"
        if facts.question.deep
        else "sizes and headers are whole (contents not hashed)"
    )
    yield Check("D1", GROUP, Verdict.PASS, depth, told)


def values(facts: StatesFacts) -> Iterator[Check]:
    """D1: states are numbers, ids are tokens of the target."""
    found, problem = attempt(
        lambda: list(states_values.numbers(facts.directory, facts.manifest, facts.question.deep)), []
    )
    yield from found or [Check("D1", GROUP, Verdict.FAIL, problem, {}, REMEDY)]
    target = TargetFacts.read(facts.question.target) if facts.question.target else None
    yield from states_values.tokens(facts.texts, target.vocab if target else None)


def layers(facts: StatesFacts) -> Iterator[Check]:
    """D2: width 3H and the canonical layers, those of the draft and the target."""
    meta = facts.manifest.meta
    target = TargetFacts.read(facts.question.target) if facts.question.target else None
    wanted = facts.question.layers or (facts.record or {}).get("canonical_layers")
    evidence = {"layers": list(meta.layers), "hidden": meta.hidden, "width": 3 * meta.hidden, "tp": meta.tp}
    problem = ""
    if list(meta.layers) != sorted(set(meta.layers)):
        problem = "the layers do not rise: engines concatenate states in rising order"
    elif target is not None and meta.hidden != target.hidden:
        problem = f"states of width {meta.hidden}, the target has {target.hidden}"
    elif target is not None and meta.layers[-1] > target.layers:
        problem = f"layer {meta.layers[-1]} of a target of {target.layers} layers"
    elif wanted is not None and list(wanted) != list(meta.layers):
        problem = f"the states hold the layers {list(meta.layers)}, the draft reads {list(wanted)} (traps T6, T7)"
    if problem:
        yield Check("D2", GROUP, Verdict.FAIL, problem, evidence, "extract the layers that the draft will be given")
    else:
        beside = " of the draft" if wanted is not None else ""
        yield Check("D2", GROUP, Verdict.PASS, f"three states of width {meta.hidden}, layers{beside}", evidence)
    if target is None or (meta.hidden == target.hidden and meta.layers[-1] <= target.layers):
        depth = target.layers if target else None
        yield from states_aux.contents(facts.directory, facts.texts, meta, facts.question.target, depth)


def one_origin(facts: StatesFacts) -> Iterator[Check]:
    """D3: engine, version, target revision, template and decode mode are known, and one for all shards."""
    meta = facts.manifest.meta
    told = {
        "engine": meta.engine,
        "engine_version": meta.engine_version,
        "target_revision": meta.target_revision,
        "template_hash": meta.template_hash,
        "decode": dict(meta.decode),
    }
    unknown = [name for name, value in told.items() if not value]
    if unknown:
        message = f"not recorded: {', '.join(unknown)}"
        yield Check("D3", GROUP, Verdict.WARN, message, told, "extract with a version that records them")
        return
    others = dict(revisions(facts))
    if wrong := {name: other for name, other in others.items() if other != meta.target_revision}:
        message = f"the {' and the '.join(wrong)} is of another target revision"
        evidence = {"states": meta.target_revision, **wrong}
        yield Check("D3", GROUP, Verdict.FAIL, message, evidence, "extract the states of the draft's target again")
        return
    record = facts.record or {}
    pairs = {name: (told[name], record[name]) for name in ("template_hash", "decode") if record.get(name)}
    if unequal := {name: list(pair) for name, pair in pairs.items() if pair[0] != pair[1]}:
        message = f"not comparable with the draft: another {' and another '.join(unequal)}"
        fix = "compare a draft on text of its own decode mode"
        yield Check("D3", GROUP, Verdict.WARN, message, {"states_and_draft": unequal}, fix)
        return
    yield Check("D3", GROUP, Verdict.PASS, "one engine, version, revision and decode mode", told)


def revisions(facts: StatesFacts) -> Iterator[tuple[str, str]]:
    """(who, target revision) of those that say one: the draft's record and the target's own note."""
    target = (facts.record or {}).get("target")
    notes = [("draft", target)]
    if facts.question.target is not None and (facts.question.target / NOTE).is_file():
        notes.append(("target", read_object(facts.question.target / NOTE)))
    for who, note in notes:
        revision = note.get("revision") if isinstance(note, Mapping) else None
        if isinstance(revision, str) and revision:
            yield who, revision


def last_norm(facts: StatesFacts) -> Iterator[Check]:
    """D4: ``last`` is before or after the final norm as recorded, and its argmax is the stored one."""
    meta = facts.manifest.meta
    if facts.question.target is None:
        message = f"last is recorded as {meta.last_norm}-norm; not compared with the target's head"
        yield Check("D4", GROUP, Verdict.WARN, message, {"last_norm": meta.last_norm}, "give --target MODEL_DIR")
        return
    try:
        yield from states_head.judge(facts.directory, facts.texts, meta.last_norm, facts.question.target, meta.decode)
    except (DamageError, HostError) as error:
        yield Check("D4", GROUP, Verdict.UNKNOWN, f"not judged: {error}", {}, error.remedy)


def text_quality(facts: StatesFacts) -> Iterator[Check]:
    """D5, D6 and D9: the text is the target's own, does not loop, and stands there once."""
    yield from states_text.on_policy(facts.texts, facts.manifest.meta.decode)
    yield from states_text.looping(facts.texts)
    yield from states_text.once(facts.texts)


def amount(facts: StatesFacts) -> Iterator[Check]:
    """D7 and D8: tokens per parameter of the draft, and how often they were seen."""
    train = sum(shard.response_tokens for shard in facts.manifest.shards if shard.split == "train")
    yield from states_text.enough(train, states_text.parameters(facts.question.draft))
    yield from states_text.epochs(facts.record)


def again(facts: StatesFacts) -> Iterator[Check]:
    """D10: another extraction of the same text gives the same states."""
    if facts.question.beside is not None:
        yield from states_beside.compare(facts.directory, facts.question.beside)


TABLE: tuple[Judge, ...] = (whole, values, layers, one_origin, last_norm, text_quality, amount, again)
