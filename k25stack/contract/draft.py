"""The checks of a draft directory, C0 to C9: one small function each, in one table.

A check looks at one thing, for one engine version or for all, and yields results; it runs only when what it needs
could be read, else the result says "not judged".  To add one: write the function, add its row to ``TABLE``.
T1 to T10 are the field's known traps, each silent in the engine that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from k25stack.contract import (
    checks_config,
    checks_files,
    checks_layers,
    checks_types,
    checks_vocab,
    checks_weights,
)
from k25stack.contract.facts import DraftFacts, Question, attempt, gather
from k25stack.contract.finding import Check, Result, Verdict
from k25stack.contract.rules import EngineRules, engine_rules
from k25stack.draft.formats import flattened
from k25stack.draft.provenance import CONFIG
from k25stack.draft.sizes import listed_states, sizes_from_config
from k25stack.errors import K25Error, UsageError

EngineJudge = Callable[[DraftFacts, EngineRules, Question], Iterator[Check]]
FileJudge = Callable[[DraftFacts, Question], Iterator[Check]]


@dataclass(frozen=True)
class Row:
    """One check: its id, what it needs of the directory, and its judge."""

    id: str
    needs: tuple[str, ...]  # of "config", "spec", "weights", "maps": not judged when one of them is unreadable
    per_engine: EngineJudge | None = None
    once: FileJudge | None = None


# What vLLM's class reads of a config without a default: its speculators config has no others either.
NO_DEFAULT = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "hidden_act",
    "rms_norm_eps",
)

TABLE = (
    Row("C0", (), once=checks_files.readable),
    Row("C0", (), per_engine=checks_files.known_version),
    Row("C1", ("config",), per_engine=checks_config.architecture),
    Row("C1", ("config",), per_engine=checks_types.types),
    Row("C2", ("spec", "weights"), per_engine=checks_weights.names_and_shapes),
    Row("C2", ("config", "weights"), once=checks_weights.types),
    Row("C3", ("config", "weights"), per_engine=checks_vocab.head),
    Row("C4", ("spec", "weights"), once=checks_vocab.map_present),
    Row("C4", ("spec", "weights", "maps"), per_engine=checks_vocab.map_of_full_vocabulary),
    Row("C4", ("spec", "weights", "maps"), once=checks_vocab.map_values),
    Row("C5", ("config", "spec"), per_engine=checks_layers.captured),
    Row("C6", ("config", "spec"), per_engine=checks_config.target_width),
    Row("C6", ("spec",), once=checks_config.fits_target),
    Row("C7", ("config",), per_engine=checks_config.mathematics),
    Row("C7", ("config",), once=checks_config.written_out),
    Row("C7", ("config",), once=checks_config.ambiguous),
    Row("C8", ("spec",), per_engine=checks_config.context),
    Row("C8", (), once=checks_config.trained_context),
    Row("C9", (), once=checks_files.provenance),
    Row("C9", (), once=checks_files.unaltered),
    Row("C9", (), once=checks_files.states),
)


def check_draft(directory: Path, engines: Sequence[str], question: Question | None = None) -> Result:
    """Judge a draft directory for engines given as ``name@version``.

    Raises UsageError when there is no such directory or an engine has no rules; a bad draft is a result.
    """
    if not directory.is_dir():
        raise UsageError("no such directory", where=str(directory), remedy="give a draft directory")
    asked = question or Question()
    rules = [engine_rules(engine) for engine in engines]
    facts = gather(directory)
    shared = facts
    if rules and all(engine.engine == "vllm" for engine in rules):  # the sizes that a speculators config has for vLLM
        seen = as_seen(facts, rules[0])
        shared = replace(facts, spec=seen.spec, spec_problem=seen.spec_problem)
    checks: list[Check] = []
    for row in TABLE:
        if row.once is not None:
            checks.extend(judged(row, "files", shared, partial(row.once, shared, asked)))
        if row.per_engine is not None:
            for engine in rules:
                seen = as_seen(facts, engine)
                checks.extend(judged(row, engine.label, seen, partial(row.per_engine, seen, engine, asked)))
    return Result(str(directory), "draft", tuple(checks))


def as_seen(facts: DraftFacts, rules: EngineRules) -> DraftFacts:
    """The directory as this engine reads it.

    vLLM takes a speculators config and makes a flat one of it; SGLang's MLA class counts the states by the lists of
    ids, the top-level one too, though only the nested one decides what is captured.
    """
    if rules.engine == "vllm" and "speculators_config" in facts.config:
        flat, problem = attempt(lambda: flattened(facts.config, CONFIG), {})
        if problem:
            return facts
        spec, problem = attempt(lambda: sizes_from_config(flat, CONFIG), None)
        inner = facts.config["transformer_layer_config"]
        lacking = tuple(name for name in NO_DEFAULT if inner.get(name) is None)
        return replace(facts, config=flat, unfilled=lacking, spec=spec, spec_problem=problem)
    if facts.spec is not None and rules.mla_states_from_lists and rules.layout(facts.architecture) == "mla":
        counted = replace(facts.spec, aux=listed_states(facts.config))
        return replace(facts, spec=counted)
    return facts


def judged(row: Row, group: str, facts: DraftFacts, judge: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The results of a check, or one that says why it could not be judged."""
    problems = {
        "config": facts.config_problem,
        "spec": facts.spec_problem,
        "weights": facts.weights_problem,
        "maps": facts.map_problem,
    }
    if unread := [need for need in row.needs if problems[need]]:
        what = {"spec": "the sizes in config.json", "config": "config.json"}.get(unread[0], f"the {unread[0]}")
        yield Check(row.id, group, Verdict.UNKNOWN, f"not judged: {what} cannot be read (C0 says why)")
        return
    try:
        yield from judge()
    except (K25Error, OSError) as error:  # it was there when the facts were gathered
        yield Check(row.id, group, Verdict.FAIL, f"it changed while it was read: {error}", {}, "check it again")
