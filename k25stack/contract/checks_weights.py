"""C2: the names, shapes and types of the tensors against what each engine version builds (T2)."""

from __future__ import annotations

from collections.abc import Iterator

from k25stack.contract.facts import DraftFacts, Question, attempt
from k25stack.contract.finding import Check, Verdict
from k25stack.contract.keys import Treatment, expected_tensors, treat, with_fused
from k25stack.contract.rules import EngineRules
from k25stack.draft.spec import MAPS

FLOATS = {"BF16", "F16", "F32"}
TORCH_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def names_and_shapes(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """Every tensor is consumed or passed over by design, none is missing, and each has the shape that is built."""
    assert facts.spec is not None
    layout = rules.layout(facts.architecture)
    if layout is None:
        yield Check("C2", rules.label, Verdict.UNKNOWN, "not judged: the architecture is not known to this engine")
        return
    spec, config = facts.spec, facts.config
    if quantised(facts):
        yield Check("C2", rules.label, Verdict.UNKNOWN, "not judged: quantised weights have names of their own",
                    {"quantization_config": config["quantization_config"]}, "compare with the unquantised draft",
                    rules.source)  # fmt: skip
        return
    built, problem = attempt(lambda: expected_tensors(spec, config, rules, layout), {})
    if problem:
        yield Check("C2", rules.label, Verdict.FAIL, problem, {}, "complete the config", rules.source)
        return
    expected = with_fused(built, facts.tensors, rules, layout)
    found = treat(facts.tensors, expected, rules, layout)
    lands = [(name, expected[portable]) for portable, name in found.consumed.items() if portable in expected]
    lands += [(name, (spec.target_vocab, spec.hidden)) for name in (*found.overwritten, *found.kept)]
    wrong = {
        name: {"found": list(facts.tensors[name].shape), "built": list(shape)}
        for name, shape in lands
        if facts.tensors[name].shape != shape
    }
    problems = list(complaints(found, rules))
    if found.overwritten and config.get("embed_requires_grad"):
        problems.append("its trained embedding is replaced by the target's")
    if wrong:
        problems.append(f"other shapes: {', '.join(sorted(wrong))}")
    evidence = {**found.counts(), "shapes": wrong}
    evidence |= {kind: names for kind in ("dropped", "clashing", "missing") if (names := getattr(found, kind))}
    evidence |= {"refused_names": found.refused} if found.refused else {}
    if problems:
        fix = "convert to the portable spelling: midlayer.*, fc, norm, lm_head, d2t, t2d"
        yield Check("C2", rules.label, Verdict.FAIL, "; ".join(problems), evidence, fix, rules.source)
    else:
        counted = ", ".join(f"{kind} {count}" for kind, count in found.counts().items())
        yield Check("C2", rules.label, Verdict.PASS, counted, evidence)


def complaints(found: Treatment, rules: EngineRules) -> Iterator[str]:
    """What is wrong with the set of names.  The head and d2t have checks of their own (C3, C4)."""
    missing = [name for name in found.missing if name not in ("lm_head.weight", *MAPS)]
    if found.dropped:
        yield f"dropped in silence (trap T2): {', '.join(found.dropped)}"
    if found.refused:
        yield f"refused by the loader: {', '.join(found.refused)}"
    if found.clashing:
        yield f"a second spelling of the same tensor: {', '.join(found.clashing)}"
    if missing:
        yield f"missing, {rules.missing_tensors}: {', '.join(missing)}"


def quantised(facts: DraftFacts) -> bool:
    """True when the config declares quantised weights and the file holds some."""
    return bool(facts.config.get("quantization_config")) and any(
        dtype not in FLOATS for dtype in weight_types(facts).values()
    )


def weight_types(facts: DraftFacts) -> dict[str, str]:
    """Spelled name -> type of everything but the maps, which have types of their own (C4)."""
    maps = {facts.find(name) for name in MAPS}
    return {name: info.dtype for name, info in facts.tensors.items() if name not in maps}


def types(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """Weights are floats of the declared type, and the config does not promise quantised ones."""
    stored = weight_types(facts)
    if promised := facts.config.get("quantization_config"):
        evidence = {"quantization_config": promised, "types": sorted(set(stored.values()))}
        if quantised(facts):
            yield Check("C2", "files", Verdict.UNKNOWN, "not judged: quantised weights", evidence)
        else:
            message = "quantization_config beside plain weights: the engines build quantised tensors and find none (T2)"
            yield Check("C2", "files", Verdict.FAIL, message, evidence, "take quantization_config out",
                        "sglang model_loader/loader.py, vllm models/utils.py get_draft_quant_config")  # fmt: skip
        return
    declared = facts.config.get("torch_dtype", facts.config.get("dtype"))
    wanted = TORCH_NAMES.get(declared, "") if isinstance(declared, str) else ""
    no_floats = {name: dtype for name, dtype in stored.items() if dtype not in FLOATS}
    others = {name: dtype for name, dtype in stored.items() if dtype != wanted}
    if no_floats:
        message = f"no floating-point weights: {', '.join(sorted(no_floats))}"
        yield Check("C2", "files", Verdict.FAIL, message, {"types": no_floats}, "store bfloat16")
    elif len(set(stored.values())) > 1:
        message = f"weights of several types: {', '.join(sorted(set(stored.values())))}"
        yield Check("C2", "files", Verdict.WARN, message, {"types": stored}, "store all as bfloat16")
    elif others:
        message = f"weights are {next(iter(others.values()))}, the config says {declared!r}: cast when loaded"
        yield Check("C2", "files", Verdict.WARN, message, {"torch_dtype": declared}, "make torch_dtype and file agree")
    else:
        yield Check("C2", "files", Verdict.PASS, f"weights are {wanted}")
