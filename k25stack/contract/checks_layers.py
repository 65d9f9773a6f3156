"""C5: the tensors that an engine will capture are the ones that the draft was trained on (T1, T6, T7).

What counts is what is captured, not what is written: the same list means other layers in another engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from k25stack.contract.facts import DraftFacts, Question
from k25stack.contract.finding import Check, Verdict
from k25stack.contract.rules import EngineRules
from k25stack.draft.layerids import FAMILIES, default_layers

TITLE = "captured layers"


def captured(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """One result per code path of the engine that reads layer ids."""
    family = target_family(facts, question)
    if question.target is not None and question.target.model_type in rules.targets_without_capture:
        message = f"{rules.engine} {rules.judged_as} cannot capture states of a {question.target.model_type} target"
        yield Check("C5", rules.label, Verdict.FAIL, message, {}, "use a newer version", rules.source)
        return
    if switch_off(facts.config):
        yield Check(
            "C5",
            rules.label,
            Verdict.FAIL,
            "eagle_config.use_aux_hidden_state is false: fc is bypassed or unused (trap T1)",
            {"eagle_config": facts.config.get("eagle_config")},
            "write true",
            rules.source,
        )
    for path, keys in rules.id_keys.items():
        yield judge_path(path, keys, facts, rules, question, family)


def judge_path(
    path: str, keys: Sequence[str], facts: DraftFacts, rules: EngineRules, question: Question, family: str
) -> Check:
    key, written = first_list(facts.config, keys, rules.empty_ids)
    shown: dict[str, Any] = {"read_from": key or "nowhere", "written": written, "family": family or "unknown"}
    if path:
        shown["path"] = path

    def result(verdict: Verdict, message: str, fix: str = "") -> Check:
        return Check("C5", rules.label, verdict, f"{TITLE}: {message}", shown, fix, rules.source)

    if key and not ids(written):
        return result(Verdict.FAIL, f"{key} is {written!r}, not a list of layer numbers", "write whole numbers")
    if not family and len(set(rules.shift.values())) > 1:
        return result(Verdict.UNKNOWN, "the target family is not known", "give the target's config")
    seen, deepest = will_capture(written if key else None, rules, question, family)
    if not seen:
        return result(Verdict.UNKNOWN, "no list is read, the default depends on the target", "give the target's config")
    shown["captured"] = seen
    wanted = canonical(facts, question)
    shown["canonical"] = wanted
    fix = to_write(key or keys[0], wanted, rules, family) if wanted else ""
    assert facts.spec is not None
    if seen != sorted(set(seen)) or len(seen) != facts.spec.aux:
        message = f"{seen} is not {facts.spec.aux} rising layers"
        return result(Verdict.FAIL, message, fix or "write one rising id per state")
    if seen[0] < 1 or (deepest is not None and seen[-1] > deepest):
        message = f"{seen} cannot be captured from {question.target.layers if question.target else 'these'} layers"
        return result(Verdict.FAIL, message, fix or "choose inner layers")
    if wanted is None:
        fix = "give the canonical ids with --layers, or write k25stack.json"
        return result(Verdict.UNKNOWN, f"{seen}, but nobody says what it was trained on", fix)
    if seen != wanted:
        guessed = "" if key else " by default, since no list is read"
        return result(Verdict.FAIL, f"{seen}{guessed}, trained on {wanted} (traps T6, T7)", fix)
    return result(Verdict.PASS, f"{seen} as trained")


def will_capture(
    written: Sequence[int] | None, rules: EngineRules, question: Question, family: str
) -> tuple[list[int], int | None]:
    """(captured canonical ids, the deepest that can be); none where a default is taken and the target is not known."""
    shift, target = rules.shift_of(family or FAMILIES[0]), question.target
    if target is None:
        return (shift(written) if written else []), None
    deepest = target.layers if rules.captures_last_output else target.layers - 1
    if written is None:
        default = default_layers(target.layers)
        return (shift(default) if target.model_type in rules.targets_shifting_default else default), deepest
    if target.model_type in rules.targets_keeping_final_id and max(written) == target.layers:
        return list(written), target.layers
    return shift(written), deepest


def to_write(key: str, wanted: Sequence[int], rules: EngineRules, family: str) -> str:
    """The list that makes this engine capture ``wanted``, as it stands in config.json."""
    shift = rules.shift_of(family or FAMILIES[0])
    fitting = [ids for ids in (list(wanted), [layer - 1 for layer in wanted]) if shift(ids) == list(wanted)]
    if not fitting:
        return f"no list captures {list(wanted)} here: serve it with vLLM, or train on layers from 2 on"
    outer, dot, inner = key.rpartition(".")
    text = f'"{inner}": {fitting[0]}'
    return f'write "{outer}": {{{text}}}' if dot else f"write {text}"


def first_list(config: Mapping[str, Any], keys: Sequence[str], empty: str) -> tuple[str, Any]:
    """The first of the dotted ``keys`` that has a value, and that value; ("", None) when there is none.

    ``empty`` says whether an empty list is a value (SGLang then captures nothing) or passed over.
    """
    for key in keys:
        value: Any = config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value or (value is not None and empty == "captures nothing"):
            return key, value
    return "", None


def ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def switch_off(config: Mapping[str, Any]) -> bool:
    eagle = config.get("eagle_config")
    return isinstance(eagle, Mapping) and not eagle.get("use_aux_hidden_state", True)


def target_family(facts: DraftFacts, question: Question) -> str:
    """From the target given, else from the draft's record; empty when neither says."""
    if question.target is not None:
        return question.target.family
    target = (facts.record or {}).get("target")
    family = target.get("family") if isinstance(target, Mapping) else None
    return family if family in FAMILIES else ""


def canonical(facts: DraftFacts, question: Question) -> list[int] | None:
    """The layers it was trained on: as asked, else as recorded; None when neither says."""
    if question.layers is not None:
        return list(question.layers)
    recorded = (facts.record or {}).get("canonical_layers")
    return recorded if ids(recorded) else None
