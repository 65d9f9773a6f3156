"""M1 to M5: whether a profile's weights, caches and graphs fit its cards, and its loading the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Result, Verdict
from k25stack.engines.memory import GIB, MemoryPlan, loaders_for, plan_memory

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

POOLS = "sglang srt/model_executor/pool_configurator.py"
STARVES = 0.25  # a draft that takes more of the cache than this is worth a word


def check_memory(stack: Stack, name: str, ram_gib: float = 0.0, files: int = 64) -> tuple[MemoryPlan, Result]:
    """The memory plan of one profile and what is wrong with it.  ``ram_gib``: the host's memory, 0 when not known."""
    profile = stack.profile(name)
    plan = plan_memory(stack, profile, files=files)
    checks = (*weights_fit(plan, name), *draft_pool(plan, name), *room(plan, stack, profile, name),
              *loading(plan, name, ram_gib, files), *uncounted(plan, name))  # fmt: skip
    return plan, Result(f"{stack.name}/{name}", "memory", checks)


def gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def weights_fit(plan: MemoryPlan, group: str) -> Iterator[Check]:
    if not plan.card and plan.given is None:
        yield from without_card(plan, group)
        return
    evidence = {"weights": gib(plan.weights + plan.draft.weights), "card": gib(plan.card), "share": plan.fraction}
    if plan.budget > 0:
        message = f"{gib(plan.budget)} of each card are left for cache"
        yield Check("M1", group, Verdict.PASS, message, evidence, "", POOLS)
        return
    message = f"weights of {evidence['weights']} leave nothing of {plan.fraction:.0%} of {evidence['card']} for cache"
    yield Check("M1", group, Verdict.FAIL, message, evidence, "more cards, or a larger share of them", POOLS)


def without_card(plan: MemoryPlan, group: str) -> Iterator[Check]:
    """M1 where the stack names no card: the reference engine runs on the host, for others the card must be said."""
    evidence = {"weights": gib(plan.weights + plan.draft.weights)}
    if plan.engine == "reference":
        message = f"weights of {evidence['weights']} in the host's memory; caches grow with what runs"
        yield Check("M1", group, Verdict.PASS, message, evidence, "", "shapes of the stack file")
    else:
        yield Check("M1", group, Verdict.UNKNOWN, "the stack does not say how much memory a card has", evidence,
                    "give host.gpu_memory_gib", "shapes of the stack file")  # fmt: skip


def draft_pool(plan: MemoryPlan, group: str) -> Iterator[Check]:
    """M2: the draft's cache beside the target's."""
    if not plan.draft_token or not plan.budget:
        return
    evidence = {
        "target_bytes_per_token": plan.target_token,
        "draft_bytes_per_token": plan.draft_token,
        "draft_in_target_layers": round(plan.draft_in_target_layers, 1),
        "tokens": plan.tokens,
        "target_pool": gib(plan.target_pool),
        "draft_pool": gib(plan.draft_pool),
        "budget": gib(plan.budget),
    }
    layers = f"one draft layer costs as much cache as {plan.draft_in_target_layers:.1f} layers of the target"
    cap = plan.fitting // 64 * 64
    fix = f"max-total-tokens: {cap}, or a draft with fewer key/value heads"
    if plan.over > plan.reserve:
        message = (
            f"the draft's pool starves the target: {layers}; it asks for {gib(plan.draft_pool)}, first of all "
            f"{gib(plan.largest_request)} in one piece, where {gib(plan.budget)} are left for both pools"
        )
        yield Check("M2", group, Verdict.FAIL, message, evidence, fix, POOLS)
    elif plan.over:
        message = f"the pools take {gib(plan.over)} more than the engine counts, out of the reserve: {layers}"
        verdict = Verdict.WARN if plan.over > plan.reserve / 4 else Verdict.PASS
        yield Check("M2", group, verdict, message, evidence, fix if verdict is Verdict.WARN else "", POOLS)
    elif plan.draft_share > STARVES and not plan.capped:
        message = f"the draft takes {plan.draft_share:.0%} of the cache: {layers}"
        yield Check("M2", group, Verdict.WARN, message, evidence, "a draft with fewer key/value heads", POOLS)
    else:
        message = f"the draft takes {plan.draft_share:.0%} of the cache: {layers}"
        yield Check("M2", group, Verdict.PASS, message, evidence, "", POOLS)


def room(plan: MemoryPlan, stack: Stack, profile: Profile, group: str) -> Iterator[Check]:
    """M3: tokens of cache against the context and the requests that are to run."""
    if not plan.budget:
        return  # M1 has said why
    context, running = profile.context or stack.target.context, profile.max_running or 1
    if plan.engine == "sglang":  # vLLM counts them for each of its ranks
        running = -(-running // plan.schedulers)
    each = plan.tokens // running
    evidence: dict[str, object] = {"tokens": plan.tokens, "context": context, "requests": running, "tokens_each": each}
    source = "shapes of the stack file"
    if plan.tokens < context:
        message = f"{plan.tokens} tokens of cache, not one request of {context}"
        fix = f"a context of at most {plan.tokens}"
        if plan.lowered_from:
            evidence["share"] = f"{plan.fraction:.3f}, lowered from {plan.lowered_from} for the image tower"
            fix = f"mem-fraction-static: {plan.lowered_from:.2f}, or {fix}"
            source = "sglang srt/arg_groups/memory_hook.py, adjust_mem_fraction_for_vlm"
        yield Check("M3", group, Verdict.FAIL, message, evidence, fix, source)
        return
    wanted = min(context, 1024)
    whole = plan.tokens // context
    message = f"{plan.tokens} tokens of cache: {whole} requests of {context}, or {each} for each of {running}"
    tight = each < wanted
    fix = f"max_running: {plan.tokens // wanted} or fewer" if tight else ""
    yield Check("M3", group, Verdict.WARN if tight else Verdict.PASS, message, evidence, fix, source)


def loading(plan: MemoryPlan, group: str, ram_gib: float, files: int) -> Iterator[Check]:
    """M4: the host's memory while weights are loaded; without swap too much of it ends the start."""
    source = "sglang srt/model_loader/weight_utils.py: (threads + 2) files for each card"
    evidence = {"files": files, "file": gib(plan.shard), "threads_per_card": plan.loaders, "cards": plan.gpus}
    worst = f"{gib(plan.host_ram)} of the host at worst while loading ({plan.loaders} threads for each card)"
    if not ram_gib:
        yield Check("M4", group, Verdict.PASS, f"{worst}; --ram GIB judges it", evidence, "", source)
        return
    ram = round(ram_gib * GIB)
    threads = loaders_for(ram, plan.shard * files, files, plan.gpus)
    evidence["ram"] = gib(ram)
    if plan.host_ram <= ram * 0.8:
        yield Check("M4", group, Verdict.PASS, worst, evidence, "", source)
    elif threads:
        fix = f"model-loader-extra-config: {{num_threads: {threads}}}, and keep weight files memory-mapped"
        message = f"{worst}, {gib(ram)} are there and swap is forbidden"
        yield Check("M4", group, Verdict.WARN, message, evidence, fix, source)
    else:
        message = f"not even one thread for each card fits {gib(ram)}"
        fix = "model-loader-extra-config: {enable_multithread_load: false}, memory-mapped files"
        yield Check("M4", group, Verdict.WARN, message, evidence, fix, source)


def uncounted(plan: MemoryPlan, group: str) -> Iterator[Check]:
    """M5: options that change what lies on a card and that no figure above counts."""
    if plan.left_out:
        message = f"not counted in these figures: {', '.join(plan.left_out)}"
        yield Check("M5", group, Verdict.UNKNOWN, message, {"options": list(plan.left_out)},
                    "read what the engine reports of itself at its start", "")  # fmt: skip


def describe(plan: MemoryPlan) -> dict[str, object]:
    """The plan as JSON values; everything in bytes on each card unless its name says otherwise."""
    return {
        **{key: value for key, value in asdict(plan).items() if key not in ("parts", "shares")},
        "parts": plan.shares,
        "draft_loaded": plan.draft.loaded,
        "resident": plan.resident,
        "target_pool": plan.target_pool,
        "draft_pool": plan.draft_pool,
        "draft_share": round(plan.draft_share, 4),
        "draft_in_target_layers": round(plan.draft_in_target_layers, 2),
        "over": plan.over,
        "largest_request": plan.largest_request,
    }


def table(plan: MemoryPlan) -> Iterator[str]:
    """The plan for people: GiB on each card, one thing a line."""
    yield f"{'on each of ' + str(plan.gpus) + ' cards':34}{'GiB':>9}"
    for part in plan.parts:
        how = "" if part.split else "  held whole by each card"
        yield f"  {part.name:32}{plan.shares[part.name] / GIB:9.2f}{how}"
    share = f"{plan.fraction:.3f} of {gib(plan.card)}, less the above"
    rows = [
        ("weights of the target", plan.weights, ""),
        ("weights of the draft", plan.draft.weights, ""),
        ("draft's rotary table", plan.draft.table, ""),
        ("draft's own embedding", plan.draft.embedding, "until the target's replaces it"),
        ("left from building the draft", plan.draft.leftover, "until it is collected, after the cache was sized"),
        ("cache budget", plan.budget, "as the profile says" if plan.given is not None else share),
        ("cache of the target", plan.target_pool, f"{plan.target_token:,} bytes a token"),
        ("cache of the draft", plan.draft_pool, f"{plan.draft_token:,} bytes a token, {plan.draft_share:.0%} of both"),
        ("reserve", plan.reserve, ", ".join(f"{name} {gib(value)}" for name, value in plan.graphs.items() if value)),
    ]
    for name, value, note in rows:
        if value:
            yield f"{name:34}{value / GIB:9.2f}  {note}".rstrip()
    capped = " (capped by the profile)" if plan.capped else ""
    ranks = f" on each of {plan.schedulers} ranks" if plan.schedulers > 1 else ""
    tokens = f"{plan.tokens:,} tokens of cache{capped}{ranks}; " if plan.budget else ""
    yield f"{tokens}host: {gib(plan.host_ram)} at worst while loading"
