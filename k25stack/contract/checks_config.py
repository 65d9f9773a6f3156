"""C1, C6, C7, C8: the architecture, the target's width, the mathematics, the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k25stack.contract.facts import DraftFacts, Question, attempt
from k25stack.contract.finding import Check, Verdict
from k25stack.contract.keys import switch
from k25stack.contract.rules import EngineRules
from k25stack.draft.mathematics import window
from k25stack.draft.sizes import THETA, rope_table, rope_type
from k25stack.draft.spellings import ARCHITECTURE

# Config types under which transformers builds the config of each layout, as both engines expect it.
MODEL_TYPES = {"llama": {"llama"}, "mla": {"deepseek_v3", "deepseek_v2"}}
# vLLM takes a deepseek_v3 draft for a multi-token-prediction module and stops (seen: 0.32.0).
VLLM_MLA = {"deepseek_v2"}
T8 = "norm_before_residual"  # the trap
LARGEST_FACTOR = 1e6  # of scaled rope: what is larger was never one


def architecture(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """C1: the engine has a class of this name."""
    evidence = {"architectures": facts.config.get("architectures"), "known": sorted(rules.architectures)}
    layout = rules.layout(facts.architecture)
    if rules.class_name(facts.architecture) in rules.other_architectures:
        message = f"not judged: {facts.architecture} is another draft class of {rules.engine}"
        yield Check("C1", rules.label, Verdict.UNKNOWN, message, evidence, f"read {rules.engine}'s class", rules.source)
        return
    if layout is None:
        converted = " (a speculators file: convert it)" if "speculators_config" in facts.config else ""
        yield Check(
            "C1",
            rules.label,
            Verdict.FAIL,
            f"{rules.engine} has no draft class for {facts.config.get('architectures')!r}{converted}",
            evidence,
            f'write "architectures": ["{ARCHITECTURE}"] once names and mathematics agree with it',
            rules.source,
        )
        return
    model_type = facts.config.get("model_type")
    wanted = VLLM_MLA if layout == "mla" and rules.engine == "vllm" else MODEL_TYPES[layout]
    if not isinstance(model_type, str) or model_type not in wanted:
        yield Check(
            "C1",
            rules.label,
            Verdict.FAIL if layout == "llama" or rules.engine == "vllm" else Verdict.WARN,
            f"model_type is {model_type!r}",
            {"model_type": model_type, "expected": sorted(wanted)},
            f"write {min(wanted)}",
            "vllm #45760 (kimi_k2 gets the wrong cache), vllm config/speculative.py (deepseek_v3)"
            if layout == "mla"
            else rules.source,
        )
        return
    if facts.unfilled:
        message = f"transformer_layer_config lacks {', '.join(facts.unfilled)}: vLLM fills nothing in and stops"
        yield Check("C1", rules.label, Verdict.FAIL, message, {"lacking": list(facts.unfilled)}, "write them out",
                    "vllm transformers_utils/configs/speculators/base.py")  # fmt: skip
        return
    yield Check("C1", rules.label, Verdict.PASS, f"{facts.architecture} is known", evidence)


def target_width(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """C6: target_hidden_size is left out or the target's width, never null."""
    assert facts.spec is not None
    evidence = {"target_hidden_size": facts.config.get("target_hidden_size", "left out"), "hidden": facts.spec.hidden}
    harm = rules.null_target_width[rules.layout(facts.architecture) or "llama"]
    if "target_hidden_size" in facts.config and facts.config["target_hidden_size"] is None and harm:
        message = f"target_hidden_size is null: {harm}"
    elif facts.config.get("target_hidden_size", facts.spec.hidden) not in (None, facts.spec.hidden):
        message = f"target_hidden_size {facts.config['target_hidden_size']} differs: the embedding cannot be shared"
    else:
        yield Check("C6", rules.label, Verdict.PASS, "the target's width", evidence)
        return
    fix = f"write {facts.spec.hidden} or leave the key out"
    yield Check("C6", rules.label, Verdict.FAIL, message, evidence, fix, rules.source)


def fits_target(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """C6: width and vocabulary are the target's."""
    spec, target = facts.spec, question.target
    if spec is None or target is None:
        return
    evidence = {"draft": [spec.hidden, spec.target_vocab], "target": [target.hidden, target.vocab]}
    if evidence["draft"] == evidence["target"]:
        yield Check("C6", "files", Verdict.PASS, "width and vocabulary are the target's", evidence)
    else:
        message = "hidden_size and vocab_size are not the target's"
        yield Check("C6", "files", Verdict.FAIL, message, evidence, "use a draft of this target")


def mathematics(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """C7: the engine has the mathematics that each switch asks for (T8: SGLang has no norm_before_residual)."""
    layout = rules.layout(facts.architecture) or "llama"
    wrong = False
    for name, values in rules.computed(layout).items():
        asked = requested(facts, name)
        if asked is None or any(asked == value and type(asked) is type(value) for value in values):
            continue
        wrong = True
        yield Check(
            "C7",
            rules.label,
            Verdict.FAIL,
            f"{name} is {asked!r}; {rules.engine} {rules.judged_as} computes {' or '.join(map(repr, values))}"
            + (" (trap T8)" if name == T8 else ""),
            {name: asked, "computed": values},
            f"train with {name} {values[0]!r}; it cannot be folded into the weights"
            + (" (vLLM computes it)" if name == T8 else ""),
            rules.source,
        )
    for check in (*older_word(facts, rules, layout), *rope(facts, rules), *sliding(facts, rules, layout)):
        wrong = True
        yield check
    if not wrong:
        yield Check("C7", rules.label, Verdict.PASS, "all switches are computed as written")


def older_word(facts: DraftFacts, rules: EngineRules, layout: str) -> Iterator[Check]:
    """``use_aux_norm`` is SGLang's older word for fc_norm; what does not read it leaves the norms out in silence."""
    reads = rules.engine == "sglang" and True in rules.computed(layout)["fc_norm"]
    if facts.config.get("use_aux_norm") and not facts.config.get("fc_norm") and not reads:
        message = f"use_aux_norm is on; {rules.engine} {rules.judged_as} does not read it: fc gets the raw states"
        fix = 'write "fc_norm": true, and the norms as fc_norm.0, fc_norm.1, fc_norm.2'
        yield Check("C7", rules.label, Verdict.FAIL, message, {"use_aux_norm": True}, fix, rules.source)


def rope(facts: DraftFacts, rules: EngineRules) -> Iterator[Check]:
    """Positions are turned as the config says: a kind that the engine has, under a key that it reads."""
    config, table = facts.config, rope_table(facts.config)
    unread = (
        rules.transformers == 4 and not config.get("rope_scaling") and isinstance(config.get("rope_parameters"), dict)
    )
    kind, theta = rope_type(table), table.get("rope_theta")
    outer = config.get("partial_rotary_factor")
    share = table.get("partial_rotary_factor") if outer is None else outer
    if kind not in rules.rope_types and "mrope_section" not in table:
        message = f"rope_type is {kind!r}; {rules.engine} {rules.judged_as} computes {', '.join(rules.rope_types)}"
        fix = "train with plain rope"
    elif unread and (kind != "default" or theta not in (None, config.get("rope_theta", THETA))):
        message = (
            f"rope_parameters is not read: its transformers 4 turns plainly, theta {config.get('rope_theta', THETA)}"
        )
        fix = 'write "rope_theta" and "rope_scaling" at the top level'
    elif share not in (None, 1) and (rules.engine == "reference" or (rules.engine == "sglang" and outer is None)):
        message = f"partial_rotary_factor is {share!r}; {rules.engine} turns all channels"
        fix = "write it at the top level" if rules.engine == "sglang" else "train with all channels turned"
    elif share is not None and not (type(share) in (int, float) and 0 < share <= 1):
        message, fix = f"partial_rotary_factor is {share!r}", "write a share of the channels"
    else:
        return
    yield Check("C7", rules.label, Verdict.FAIL, message, {"rope": dict(table)}, fix, rules.source)


def sliding(facts: DraftFacts, rules: EngineRules, layout: str) -> Iterator[Check]:
    """A window that the draft was trained with and this engine does not take from its config.

    Neither engine's MLA class has one.
    """
    takes = "none" if layout == "mla" else rules.draft_window
    size, problem = attempt(lambda: window(facts.config), None)
    if problem:
        yield Check("C7", rules.label, Verdict.FAIL, problem, {}, "write the number of tokens, or leave the keys out")
        return
    listed = isinstance(facts.config.get("layer_types"), list)
    if size is None or (takes == "config" and listed):
        return
    if takes == "config":
        fix = 'write "layer_types": ["sliding_attention"]: it reads nothing else'
    else:
        flag = "give --speculative-draft-window-size when serving, or " if takes == "flag" else ""
        fix = f"{flag}train with full attention"
    yield Check(
        "C7",
        rules.label,
        Verdict.WARN if takes == "flag" else Verdict.FAIL,
        f"sliding_window is {size!r}; {rules.engine} attends to everything",
        {"sliding_window": size},
        fix,
        rules.source,
    )


def requested(facts: DraftFacts, name: str) -> Any:
    """What the config asks for under this switch, where the engines look for it; None when it asks for nothing."""
    if name == "norm_before_fc":
        return switch(facts.config, name)
    if name == "num_aux_hidden_states" and facts.spec is not None:
        return facts.spec.aux
    return facts.config.get(name)


def written_out(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """C7: norm_before_residual is said, not left to a default that differs between formats."""
    if "norm_before_residual" in facts.config:
        return
    yield Check(
        "C7",
        "files",
        Verdict.WARN,
        "norm_before_residual is left out: false in a plain config, true in a speculators one",
        {},
        "write it out as it was trained",
        "vllm transformers_utils/configs/speculators/algos.py",
    )


def ambiguous(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """C7: norm_output of SpecForge and of the engines are two things."""
    if facts.record is not None or facts.config.get("norm_output") is not True:
        return
    yield Check(
        "C7",
        "files",
        Verdict.WARN,
        "norm_output is on: the engines feed the normed state on; a SpecForge draft was not trained so",
        {"norm_output": True},
        "if SpecForge wrote it: k25stack draft convert DIR --from specforge",
        "SpecForge modeling/draft/llama3_eagle.py, sglang and vllm llama_eagle3.py",
    )


def trained_context(facts: DraftFacts, question: Question) -> Iterator[Check]:
    """C8: positions beyond those that the draft was trained for."""
    served = question.context or (question.target.context if question.target else None)
    spec = (facts.record or {}).get("spec")
    trained = spec.get("max_position") if isinstance(spec, dict) else None
    if served is None or type(trained) is not int or trained >= served:
        return
    message = f"trained for {trained} positions, {served} are served: expect lower acceptance beyond them"
    fix = "train on documents of the served length, or serve a shorter context"
    yield Check("C8", "files", Verdict.WARN, message, {"trained": trained, "served": served}, fix)


def context(facts: DraftFacts, rules: EngineRules, question: Question) -> Iterator[Check]:
    """C8: the draft's position limit covers the served context."""
    assert facts.spec is not None
    served = question.context or (question.target.context if question.target else None)
    if served is None:
        return
    key, limit = position_limit(facts, rules)
    evidence = {key: limit, "served": served}
    if limit >= served:
        yield Check("C8", rules.label, Verdict.PASS, "positions cover the context", evidence)
        return
    refuses = rules.short_draft_context == "fail"
    yield Check(
        "C8",
        rules.label,
        Verdict.FAIL if refuses else Verdict.WARN,
        f"{key} {limit} under the context {served}: "
        + ("the engine refuses to start" if refuses else "no drafting beyond it"),
        evidence,
        f"write at least {served}, or serve a shorter context",
        "sglang srt/configs/model_config.py, vllm config/speculative.py",
    )


def position_limit(facts: DraftFacts, rules: EngineRules) -> tuple[str, int]:
    """(config key, tokens) from which this engine derives how far the draft reaches, scaled rope included."""
    assert facts.spec is not None
    config, table = facts.config, rope_table(facts.config)
    key = next((name for name in rules.context_keys if type(config.get(name)) is int), rules.context_keys[-1])
    limit = int(config.get(key, facts.spec.max_position))
    kind, factor, original = (rope_type(table), *map(table.get, ("factor", "original_max_position_embeddings")))
    if not isinstance(factor, int | float) or not 1 <= factor <= LARGEST_FACTOR:
        return key, limit
    if kind in ("linear", "dynamic") and original is None:
        return key, int(limit * factor)
    if kind == "yarn" and rules.engine == "vllm":
        return key, int((original if type(original) is int else limit) * factor)
    return key, limit
