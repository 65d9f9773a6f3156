"""Why does a draft contribute nothing?  The ten traps T1 to T10, each found, excluded or not looked at.

Evidence comes from three places: what the server says of its set-up, the check of the draft's own files for that engine
and version, and the server's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from k25stack.contract.finding import Check, Result, Verdict
from k25stack.engines.info import ServerFacts

GROUP = "diagnosis"

TRAPS: Mapping[str, str] = {
    "T1": "the algorithm is EAGLE for an EAGLE-3 draft: fc is bypassed",
    "T2": "tensors are dropped or missing",
    "T3": "a draft vocabulary is declared and no head is shipped",
    "T4": "no d2t: draft ids are taken for target ids",
    "T5": "d2t holds target ids instead of differences",
    "T6": "the layer list is written where the engine does not read it",
    "T7": "the captured layers are shifted by one",
    "T8": "norm_before_residual is on and the engine does not compute it",
    "T9": "the running requests are capped at 48",
    "T10": "an option that the engine accepts and reads nowhere",
}
SLOW = ("T9", "T10")  # these cost speed, not acceptance


@dataclass(frozen=True)
class Trap:
    """One branch of the tree: ``state`` found | excluded | not looked at; ``why`` names the evidence."""

    id: str
    state: str
    why: str
    fix: str = ""


def tree(facts: ServerFacts, engine: str, draft: Result | None, log: Sequence[Check] | None) -> list[Trap]:
    """Judge every trap by what is known."""
    found = {trap.id: trap for trap in [*of_server(facts, draft), *of_log(log or (), draft)]}
    branches = []
    for name in TRAPS:
        if name in found:
            branches.append(found[name])
        elif name in ("T1", "T9", "T10"):
            branches.append(of_settings(name, facts, engine))
        else:
            branches.append(of_draft(name, draft))
    return branches


def of_server(facts: ServerFacts, draft: Result | None) -> Iterator[Trap]:
    """Traps that the server's own arguments show."""
    if facts.algorithm in ("EAGLE", "NEXTN"):
        why = f"speculative_algorithm is {facts.algorithm}"
        if draft is not None or "eagle3" in (facts.draft or "").lower().replace("-", ""):
            yield Trap("T1", "found", why, "--speculative-algorithm EAGLE3")
        else:  # right for a draft of the first EAGLE, or the target's own next-token layer
            yield Trap("T1", "not looked at", f"{why}: give --draft DIR to tell the draft's kind")
    if facts.algorithm is not None and facts.max_running == 48:
        yield Trap("T9", "found", "max_running_requests is 48, the value it is reset to", "set --max-running-requests")
    if (facts.continuous_decode_steps or 1) > 1:
        why = f"num_continuous_decode_steps is {facts.continuous_decode_steps}"
        yield Trap("T10", "found", why, "leave --num-continuous-decode-steps out")


def of_log(log: Iterable[Check], draft: Result | None) -> Iterator[Trap]:
    """Traps that a marker in the log names; default layers are no trap where the draft was trained on them."""
    layers = [check.verdict for check in draft.checks if check.id == "C5"] if draft is not None else []
    for check in log:
        name = check.message.partition(":")[0]
        if name == "T6" and layers and all(verdict is Verdict.PASS for verdict in layers):
            continue
        if check.id == "U8" and name in TRAPS:
            yield Trap(name, "found", f"log: {check.evidence.get('line', '')}", check.fix)


def of_settings(name: str, facts: ServerFacts, engine: str) -> Trap:
    """T1, T9, T10 where nothing was found."""
    if engine != "sglang":
        return Trap(name, "excluded", f"{engine} has no such setting")
    if not facts.raw:
        return Trap(name, "not looked at", "the server did not show its arguments")
    return Trap(name, "excluded", "the server's arguments")


def of_draft(name: str, draft: Result | None) -> Trap:
    """T2 to T8 by the check of the draft's files for this engine."""
    if draft is None:
        return Trap(name, "not looked at", "give --draft DIR")
    for check in draft.checks:
        if check.verdict is Verdict.FAIL and name in traps_of(check):
            return Trap(name, "found", f"{check.id} {check.group}: {check.message}", check.fix)
    unknown = [check for check in draft.checks if check.verdict is Verdict.UNKNOWN and name in related(check)]
    if unknown:
        return Trap(name, "not looked at", f"{unknown[0].id} could not be judged: {unknown[0].message}")
    return Trap(name, "excluded", "the draft's files")


def related(check: Check) -> tuple[str, ...]:
    """The traps that a check of this id looks for."""
    return {
        "C2": ("T2",),
        "C3": ("T3",),
        "C4": ("T4", "T5"),
        "C5": ("T6", "T7"),
        "C7": ("T8",),
    }.get(check.id, ())


def traps_of(check: Check) -> tuple[str, ...]:
    """The trap that a failed check is, where its message tells several apart."""
    if check.id == "C4":
        return ("T4",) if "no d2t" in check.message else ("T5",)
    if check.id == "C5":
        return ("T6",) if check.evidence.get("read_from") == "nowhere" else ("T7",)
    if check.id == "C7":
        return ("T8",) if "norm_before_residual" in check.message else ()
    return related(check)


def beside(draft: Result | None) -> Iterator[Check]:
    """U5: what the draft's own check says besides the traps, as that it is a random control."""
    for check in draft.checks if draft is not None else ():
        if check.verdict in (Verdict.FAIL, Verdict.WARN) and not traps_of(check):
            message = f"the draft's files: {check.id} {check.group}: {check.message}"
            yield Check("U5", GROUP, check.verdict, message, check.evidence, check.fix, check.source)


def judge(branches: Sequence[Trap], wrong: bool) -> Iterator[Check]:
    """U5: the traps found, and the whole tree as evidence.  ``wrong``: the acceptance calls for an explanation."""
    shown = {trap.id: f"{trap.state}: {trap.why}" for trap in branches}
    for trap in branches:
        if trap.state == "found":
            verdict = Verdict.FAIL if wrong and trap.id not in SLOW else Verdict.WARN
            yield Check("U5", GROUP, verdict, f"{trap.id}: {TRAPS[trap.id]}", {"why": trap.why}, trap.fix)
    found = [trap.id for trap in branches if trap.state == "found" and trap.id not in SLOW]
    open_ = [trap.id for trap in branches if trap.state == "not looked at"]
    if not wrong:
        yield Check("U5", GROUP, Verdict.PASS, "the acceptance needs no explanation", shown)
    elif found:
        yield Check("U5", GROUP, Verdict.FAIL, f"explained by {', '.join(found)}", shown)
    elif open_:
        message = f"no trap found; not looked at: {', '.join(open_)}"
        yield Check("U5", GROUP, Verdict.UNKNOWN, message, shown, "give --draft DIR, --log FILE and --target DIR")
    else:
        message = "none of the ten traps: look at the target's revision, the decode mode, the prompts, the draft itself"
        yield Check("U5", GROUP, Verdict.FAIL, message, shown, "k25stack draft score DRAFT_DIR --states STATES_DIR")
