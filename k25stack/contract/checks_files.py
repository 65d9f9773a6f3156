"""C0 and C9: can the directory be read, are the engine's rules known, and is it what its record says."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k25stack.contract.facts import DraftFacts, Question, attempt
from k25stack.contract.finding import Check, Verdict
from k25stack.contract.rules import EngineRules
from k25stack.draft.provenance import CONFIG, PROVENANCE, WEIGHTS, states_meta
from k25stack.draft.vocab import vocab_hash
from k25stack.draft.weightfile import INDEX
from k25stack.files import sha256_file

GROUP = "files"
LOADERS = "sglang srt/model_loader/weight_utils.py, vllm model_executor/model_loader/weight_utils.py"


def readable(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """config.json, weights and maps can be read; no pickle lies beside them."""
    problems = {
        "config": facts.config_problem or facts.spec_problem,
        "weights": facts.weights_problem,
        "maps": facts.map_problem,
        "record": facts.record_problem,
    }
    for part, problem in problems.items():
        if problem:
            denied = problem.endswith(os.strerror(errno.EACCES))
            fix = "check the permissions, for the engine too" if denied else "copy or convert the draft anew"
            yield Check("C0", GROUP, Verdict.FAIL, problem, {"part": part}, fix)
    if facts.pickles:
        yield Check(
            "C0",
            GROUP,
            Verdict.FAIL if not facts.tensors else Verdict.WARN,
            f"pickled weights: {facts.pickles[0]}",
            {"files": facts.pickles},
            "remove them or convert to safetensors: a pickle can run code when it is loaded",
        )
    if facts.unlisted:
        message = f"weight files that the index leaves out, so no engine reads them (trap T2): {facts.unlisted[0]}"
        evidence = {"unlisted": facts.unlisted, "index": INDEX}
        yield Check("C0", GROUP, Verdict.FAIL, message, evidence, f"remove the file, or the stale {INDEX}", LOADERS)
    if not any(problems.values()) and not facts.pickles and not facts.unlisted:
        names = {"config": CONFIG, "weights": [file.path.name for file in facts.files]}
        yield Check("C0", GROUP, Verdict.PASS, "config and weights can be read", names)


def known_version(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """The engine's rules are of the version asked for."""
    evidence = {"asked": rules.version, "judged_as": rules.judged_as}
    if rules.exact:
        yield Check("C0", rules.label, Verdict.PASS, "rules of this version", evidence)
        return
    yield Check(
        "C0",
        rules.label,
        Verdict.WARN,
        f"no rules for {rules.engine} {rules.version}: judged as {rules.judged_as}",
        evidence,
        "use a listed version, or read its loader and add it to the rules",
        rules.source,
    )


def provenance(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """The draft says where it comes from, and its config is the one that was trained."""
    if facts.record is None:
        if not facts.record_problem:
            fix = "write the canonical layers and the training data's engine and version down"
            yield Check("C9", GROUP, Verdict.WARN, f"no {PROVENANCE}: origin unknown", {}, fix)
        return
    problems: dict[str, Any] = {}
    spec = facts.record.get("spec")
    if facts.spec is not None and isinstance(spec, dict):
        built = {**facts.spec.as_dict(), "max_position": spec.get("max_position")}
        problems |= {name: [spec.get(name), value] for name, value in built.items() if spec.get(name) != value}
    if problems:
        yield Check(
            "C9",
            GROUP,
            Verdict.FAIL,
            f"{CONFIG} describes another draft than {PROVENANCE}: {', '.join(sorted(problems))}",
            {"recorded_and_found": problems},
            "package the draft anew",
        )
        return
    told = {name: facts.record.get(name) for name in ("engine", "target", "canonical_layers", "random")}
    if facts.record.get("random"):
        yield Check(
            "C9", GROUP, Verdict.WARN, "a random control: nothing will be accepted", told, "serve a trained draft"
        )
        return
    yield Check("C9", GROUP, Verdict.PASS, "origin recorded", told)


def unaltered(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """Sizes, heads, the vocabulary and (deep) contents are those recorded when the draft was written."""
    files = (facts.record or {}).get("files")
    if not isinstance(files, dict) or not isinstance(files.get(WEIGHTS), dict) or len(facts.files) != 1:
        return
    recorded, file = files[WEIGHTS], facts.files[0]
    found = {"bytes": file.header.bytes, "head_sha256": file.head_sha256()}
    if question.deep:
        found["sha256"] = sha256_file(file.path)
    changed = [f"{WEIGHTS} {name}" for name, value in found.items() if recorded.get(name) != value]
    config = files.get(CONFIG)
    if isinstance(config, dict) and not facts.config_problem:
        digest = sha256_file(facts.directory / CONFIG)
        changed += [CONFIG] if config.get("sha256") != digest else []
    if facts.d2t is not None and (facts.record or {}).get("vocab_hash"):
        ids = (value + index for index, value in enumerate(facts.d2t))
        changed += ["d2t"] if vocab_hash(ids) != (facts.record or {})["vocab_hash"] else []
    if changed:
        # An edited config is judged by the other checks; altered weights would go unseen.
        verdict = Verdict.WARN if changed == [CONFIG] else Verdict.FAIL
        message = f"altered since it was written: {', '.join(changed)}"
        yield Check("C9", GROUP, verdict, message, {"changed": changed}, "copy the draft again or package it anew")
    else:
        depth = "names, sizes, maps and contents" if question.deep else "names, sizes and maps (contents not hashed)"
        yield Check("C9", GROUP, Verdict.PASS, f"as it was written: {depth}")


def states(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """The states that it was trained on have its width and layers, and come from its target."""
    if question.states is None or facts.record is None:
        return
    where: Path = question.states
    meta, problem = attempt(lambda: states_meta(where), {})
    if problem:
        yield Check("C9", GROUP, Verdict.FAIL, problem, {}, "extract the states again")
        return
    target = facts.record.get("target")
    revision = target.get("revision") if isinstance(target, dict) else None
    pairs = {
        "layers": (facts.record.get("canonical_layers"), meta.get("layers")),
        "hidden": (facts.spec.hidden if facts.spec else None, meta.get("hidden")),
        "target_revision": (revision, meta.get("target_revision")),
    }
    wrong = {name: list(pair) for name, pair in pairs.items() if pair[0] != pair[1]}
    if wrong:
        message = f"trained on other states: {', '.join(sorted(wrong))}"
        yield Check("C9", GROUP, Verdict.FAIL, message, {"draft_and_states": wrong}, "extract, train and package anew")
    else:
        told = {name: meta.get(name) for name in ("engine", "engine_version", "layers", "last_norm", "tp")}
        yield Check("C9", GROUP, Verdict.PASS, "its states have its width, layers and target", told)
