"""L10 to L18, L30, L31: speculation, its draft, and servers that give hidden states out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Verdict
from k25stack.draft.target import read_object
from k25stack.errors import UsageError

if TYPE_CHECKING:
    from k25stack.contract.launch_line import Launch

CAP = 48
HUB = re.compile(r"[\w.-]+/[\w.-]+")
HOOK = "sglang srt/arg_groups/speculative_hook.py"
# Algorithms that read steps, topk and draft tokens as a tree; DFLASH, DSPARK and UNO have arithmetic of their own.
TREES = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
NEEDS_DRAFT = {
    "sglang": ("EAGLE3", "STANDALONE", "DFLASH"),
    "vllm": ("eagle", "eagle3", "draft_model", "dflash", "medusa", "mlp_speculator", "custom_class"),
}
LATENT = ("trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "flashmla")  # they have no kernel for a Llama-like draft


def architecture(launch: Launch) -> str:
    """What a local draft's config calls itself; empty where it is not at hand."""
    config = Path(str(launch.facts.get("draft") or "")) / "config.json"
    if not launch.facts.get("draft") or not config.is_file():
        return ""
    try:
        return str(read_object(config).get("architectures")).lower()
    except UsageError:
        return ""


def is_eagle3(launch: Launch) -> bool | None:
    """Whether the draft is an EAGLE-3 one: what the caller knows, else its config, else its name; None: not told.

    A name of the hub that says EAGLE without the 3, or NextN or MTP, is believed; a local directory's is not.
    """
    if launch.eagle3 is not None:
        return launch.eagle3
    if known := architecture(launch):
        return "eagle3" in known
    named = str(launch.facts.get("draft") or "")
    plain = re.sub(r"[^a-z0-9/]", "", named.lower())
    if "eagle3" in plain:
        return True
    return False if HUB.fullmatch(named) and re.search(r"nextn|mtp|eagle", plain) else None


def is_latent(launch: Launch) -> bool | None:
    """Whether the draft has latent attention itself; None: not told."""
    if known := architecture(launch):
        return "deepseek" in known
    return True if re.search(r"(^|[^a-z])mla([^a-z]|$)", str(launch.facts.get("draft") or "").lower()) else None


def algorithm(launch: Launch) -> Iterator[Check]:
    """L10 (T1): EAGLE and NEXTN capture no auxiliary states, and the draft's fc is passed over in silence."""
    facts = launch.facts
    chosen = facts.get("algorithm")
    if launch.engine != "sglang" or chosen not in ("EAGLE", "NEXTN"):
        return
    kind = is_eagle3(launch)
    if kind is False or (kind is None and not facts.get("draft")):
        return
    message = (
        f"EAGLE with an EAGLE-3 draft (T1): {chosen} captures no auxiliary states, fc is bypassed, accept length 1"
    )
    if kind is None:
        message = f"EAGLE with an EAGLE-3 draft (T1)? {chosen} is right only for a draft that is no EAGLE-3 one"
    evidence = {facts.spell("algorithm"): chosen, facts.spell("draft"): facts.get("draft")}
    yield launch.finding("L10", Verdict.FAIL if kind else Verdict.WARN, message, evidence,
                         f"write {facts.spell('algorithm')} EAGLE3",
                         "sglang #25673; spec_aux_hidden_state.py captures for EAGLE3 alone")  # fmt: skip


def running(launch: Launch) -> Iterator[Check]:
    """L11 (T9): a speculative SGLang server without an explicit batch takes 48 requests and says so once in its log."""
    facts = launch.facts
    if not facts.speculates:
        return
    limit = facts.get("max_running")
    name = facts.spell("max_running")
    if limit is None and launch.engine == "sglang":
        message = f"speculation capped at {CAP} requests (T9): {name} is not given"
        fix = f"write {name} {launch.requests or 'N'}, the most requests that are to run at once"
        yield launch.finding("L11", Verdict.FAIL, message, {"engine sets": CAP}, fix, f"{HOOK}, one line in its log")
    elif isinstance(limit, int) and launch.requests > limit:
        message = f"{launch.requests} requests are measured, {limit} may run: those rows count as capped"
        evidence = {name: limit, "concurrency": launch.requests}
        fix = f"raise {name} to {launch.requests}, or measure fewer"
        yield launch.finding("L11", Verdict.WARN, message, evidence, fix, "definition of the step-cost ratio")


def arithmetic(launch: Launch) -> Iterator[Check]:
    """L12: steps, topk and draft tokens as SGLang reads them."""
    facts = launch.facts
    if launch.engine != "sglang" or facts.get("algorithm") not in TREES or not facts.speculates:
        return
    if facts.get("adaptive") and facts.get("topk") in (None, 1):
        return  # the engine chooses the steps from its list, and the rest follows
    given = {key: facts.get(key) for key in ("steps", "topk", "rows")}
    if any(value is not None and type(value) is not int for value in given.values()):
        return  # L3 says so
    verdict, problem, fix = judge_tree(given["steps"], given["topk"], given["rows"])
    if problem:
        evidence = {facts.spell(key): value for key, value in given.items()}
        yield launch.finding("L12", verdict, f"draft tokens do not add up: {problem}", evidence, fix, HOOK)


def judge_tree(steps: int | None, topk: int | None, rows: int | None) -> tuple[Verdict, str, str]:
    """(verdict, what is wrong, remedy); an empty text when nothing is.

    A chain (topk 1) of k steps verifies k + 1 rows.  A tree has topk nodes after the first step and topk * topk more
    after each further one; the best ``rows - 1`` of them are verified.
    """
    all_three = "give all three: steps 3, topk 1, draft tokens 4 for a chain of three"
    if steps is None and topk is None and rows is None:
        return Verdict.PASS, "", ""
    if steps is None or topk is None:
        return Verdict.FAIL, "some of the three are given, and the engine's start ends on the missing one", all_three
    if min(steps, topk, 1 if rows is None else rows) < 1:
        return Verdict.FAIL, "none of them can be below 1", all_three
    if topk == 1 and rows not in (None, steps + 1):
        return Verdict.WARN, f"a chain of {steps} verifies {steps + 1} rows; {rows} is rewritten", f"write {steps + 1}"
    if topk > 1 and rows is None:
        return Verdict.FAIL, "a tree needs the number of draft tokens", all_three
    nodes = topk + (steps - 1) * topk * topk + 1
    if topk > 1 and rows is not None and rows > nodes:
        return Verdict.FAIL, f"{rows} rows of a tree that has {nodes} nodes", f"at most {nodes}"
    return Verdict.PASS, "", ""


def draft_given(launch: Launch) -> Iterator[Check]:
    """L13 and L14: an algorithm without a draft, or a draft without an algorithm."""
    facts = launch.facts
    chosen, draft = facts.get("algorithm"), facts.get("draft")
    name = facts.spell("draft")
    method = chosen or ("draft_model" if isinstance(facts.get("speculative"), dict) else None)  # vLLM's own guess
    if facts.speculates and not draft and method in NEEDS_DRAFT.get(launch.engine, ()):
        message = f"draft missing: {method} without {name} ends the start"
        source = "sglang #36528" if launch.engine == "sglang" else "vllm config/speculative.py"
        yield launch.finding("L13", Verdict.FAIL, message, {"algorithm": method}, f"give {name}", source)
    if launch.engine == "sglang" and draft and not chosen:
        message = f"draft options without an algorithm: {name} alone is read by nothing"
        fix = f"add {facts.spell('algorithm')} EAGLE3"
        yield launch.finding("L14", Verdict.FAIL, message, {name: draft}, fix, HOOK)
    if launch.engine == "vllm" and draft and not chosen:
        message = "the method is guessed from the letters of the draft's path"
        fix = 'write "method":"eagle3" into --speculative-config'
        yield launch.finding("L14", Verdict.WARN, message, {"model": draft}, fix, "vllm config/speculative.py")
    if launch.engine == "vllm" and not isinstance(facts.get("speculative", {}), dict | str | None):  # L3 told of a text
        message = f"bad value: --speculative-config {facts.get('speculative')!r} is no JSON object"
        fix = 'give {"method":"eagle3","model":"DIR","num_speculative_tokens":3}'
        evidence = {"speculative-config": facts.get("speculative")}
        yield launch.finding("L3", Verdict.FAIL, message, evidence, fix, "vllm config/speculative.py")
    steps = facts.get("steps")
    if launch.engine == "vllm" and steps is not None and (type(steps) is not int or steps < 1):
        message = f'bad value: "num_speculative_tokens" is {steps!r}'
        evidence = {"num_speculative_tokens": steps}
        yield launch.finding("L3", Verdict.FAIL, message, evidence, "give a whole number, 3",
                             "vllm config/speculative.py")  # fmt: skip
    if launch.engine == "vllm" and draft and steps is None:
        message = "draft tokens do not add up: the number per round is not given"
        fix = 'write "num_speculative_tokens":3 into --speculative-config'
        yield launch.finding("L12", Verdict.FAIL, message, {"model": draft}, fix, "vllm config/speculative.py")


def inherited(launch: Launch) -> Iterator[Check]:
    """L15 to L17: what an SGLang draft takes over from its target."""
    facts = launch.facts
    if launch.engine != "sglang" or not facts.speculates or not facts.get("draft"):
        return
    quantization = facts.get("quantization")
    kind = is_eagle3(launch)
    if kind is not False and quantization not in (None, "unquant") and facts.get("draft_quantization") is None:
        name = facts.spell("quantization")
        message = f"draft inherits the quantization: {name} {quantization} is meant for the target"
        fix = f"leave {name} out (the checkpoint says it), or add {facts.spell('draft_quantization')} unquant"
        yield launch.finding("L15", Verdict.FAIL if kind else Verdict.WARN, message, {name: quantization}, fix,
                             "sglang srt/arg_groups/serving_hook.py")  # fmt: skip
    backends = [facts.get(key) for key in ("attention", "attention_prefill", "attention_decode")]
    taken = next((backend for backend in backends if backend in LATENT), "")
    if taken and kind is not False and not facts.get("draft_attention") and not is_latent(launch):
        message = f"draft inherits the attention backend: {taken} has no kernel for a Llama-like draft"
        fix = f"add {facts.spell('draft_attention')} triton"
        yield launch.finding("L16", Verdict.FAIL if kind else Verdict.WARN, message, {"backend": taken}, fix,
                             "sglang #23490")  # fmt: skip
    if facts.get("load_format") == "dummy" and facts.get("draft_load_format") is None:
        message = "draft inherits random weights: --load-format dummy is meant for the target"
        fix = f"add {facts.spell('draft_load_format')} auto"
        yield launch.finding("L17", Verdict.WARN, message, {"draft": facts.get("draft")}, fix,
                             "seen on SGLang 0.5.16")  # fmt: skip


def without_effect(launch: Launch) -> Iterator[Check]:
    """L18: options that an EAGLE-3 draft with a reduced vocabulary does not have."""
    facts = launch.facts
    if launch.engine != "sglang" or facts.get("algorithm") != "EAGLE3":
        return
    if facts.get("token_map"):
        name = facts.spell("token_map")
        message = f"no effect on an EAGLE-3 draft: {name}; the draft's own d2t decides"
        yield launch.finding("L18", Verdict.WARN, message, {name: facts.get("token_map")}, "leave it out",
                             "sglang srt/speculative/eagle_worker_v2.py")  # fmt: skip
    if facts.get("rejection"):
        name = facts.spell("rejection")
        message = f"not with a reduced draft vocabulary: {name} ends the start unless both vocabularies are equal"
        yield launch.finding("L18", Verdict.WARN, message, {name: True}, "leave it out",
                             "sglang srt/speculative/eagle_worker_v2.py")  # fmt: skip


def extraction(launch: Launch) -> Iterator[Check]:
    """L30 and L31: a server that gives hidden states out."""
    facts = launch.facts
    states = facts.get("states") or facts.get("aux_states")
    if launch.engine == "sglang" and states and not facts.get("prefix_cache_off"):
        name = facts.spell("prefix_cache_off")
        message = f"prefix cache on while states are taken: cached tokens come back without a row ({name} is missing)"
        yield launch.finding("L30", Verdict.FAIL, message, {name: False}, f"add {name}",
                             "sglang managers/schedule_batch.py; compare rows with prompt tokens")  # fmt: skip
    if launch.engine == "sglang" and facts.get("states") and not facts.get("aux_states") and not facts.speculates:
        aux = facts.spell("aux_states")
        message = "states of the last layer only: H wide, where an EAGLE-3 draft needs three layers side by side"
        can = aux in launch.line.known.options
        fix = (
            f"use {aux} and {facts.spell('algorithm')} EAGLE3, without a draft"
            if can
            else "use SGLang 0.5.23, or a forward hook on this version"
        )
        yield launch.finding("L31", Verdict.WARN, message, {facts.spell("states"): True}, fix,
                             "sglang srt/arg_groups/fields/exec_.py")  # fmt: skip
    if launch.engine == "vllm" and facts.extracts:
        yield from _vllm_extraction(launch)


def _vllm_extraction(launch: Launch) -> Iterator[Check]:
    facts = launch.facts
    config = facts.get("speculative", {})
    model = config.get("draft_model_config") if isinstance(config, dict) else None
    inner = model.get("hf_config") if isinstance(model, dict) else None
    ids = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, dict) else None
    if not ids:
        message = "no layer ids: extract_hidden_states stops without them"
        fix = 'write "draft_model_config":{"hf_config":{"eagle_aux_hidden_state_layer_ids":[2,30,58]}}'
        yield launch.finding("L31", Verdict.FAIL, message, {"speculative-config": config}, fix,
                             "vllm v1/spec_decode/extract_hidden_states.py")  # fmt: skip
    if str(facts.get("kv_dtype", "auto")) not in ("auto", "bfloat16", "float16"):
        name = facts.spell("kv_dtype")
        message = f"states pass through the cache: {name} {facts.get('kv_dtype')} would round them"
        yield launch.finding("L30", Verdict.FAIL, message, {name: facts.get("kv_dtype")}, f"leave {name} out",
                             "vllm v1/kv_connector, ExampleHiddenStatesConnector")  # fmt: skip


RULES = (algorithm, running, arithmetic, draft_given, inherited, without_effect, extraction)
