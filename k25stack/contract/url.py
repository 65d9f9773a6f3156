"""The checks of a running server, U1 to U10 (SGLang, vLLM, reference).

Real prompts are sent and counted request by request; nothing on the server is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.contract import diagnosis, logs, outputs
from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question, attempt
from k25stack.contract.finding import Check, Result, Verdict
from k25stack.contract.probe import UNCOUNTED, Ask, Probe, probe, prompts_for, require_url, scrubbed, served_k
from k25stack.draft.provenance import CONFIG, PROVENANCE
from k25stack.draft.target import TargetFacts, read_object
from k25stack.engines.info import clean_text
from k25stack.errors import HostError, UsageError
from k25stack.speculation import RoundCounts, bootstrap_by_prompt
from k25stack.speculation.verdicts import ENOUGH_ROUNDS, NOTHING, gap_ratio

GROUP = "server"
FAILING = 0.1  # share of failed requests that makes a server fail
CUT = 0.1  # share of rounds that the ends of responses may cut: those left out accepted more than the others
SEED = 20260101  # of the interval: one probe prints one interval


@dataclass(frozen=True)
class UrlQuestion:
    """What the server is held against; None where the caller does not know."""

    draft: Path | None = None  # the draft that it serves
    target: Path | None = None  # model directory, for re-scoring its outputs
    samples: Path | None = None  # held-out rows of the prediction
    baseline: str | None = None  # the same target without a draft
    log: Path | None = None
    layers: tuple[int, ...] | None = None
    rounds: int = ENOUGH_ROUNDS
    seconds: float = 300.0
    max_tokens: int | None = None  # of a request; 256, or that of the samples
    kinds: bool = False  # also one request of every kind


def check_url(url: str, question: UrlQuestion | None = None) -> Result:
    """Judge a running server.

    Raises HostError when nobody answers there, UsageError for an address, samples, draft, log or target that are none.
    """
    asked = question or UrlQuestion()
    require_paths(asked)
    ask = Ask(asked.samples, asked.target, asked.max_tokens, asked.rounds, asked.seconds)
    base = require_url(url)
    prompts, shown = prompts_for(ask), clean_text(base)
    try:
        found = probe(base, ask, prompts)
    except UsageError as error:
        return Result(shown, "url", (Check("U1", GROUP, Verdict.FAIL, str(error), {}, error.remedy),))
    checks = list(answers(found))
    if found.answers:
        record = record_of(asked.draft)
        acceptance = list(accepted(found, record, asked))
        checks += acceptance
        log = list(logs.check_log(asked.log, rows(found))) if asked.log else None
        checks += explained(found, acceptance, asked, log)
        checks += outputs.sanity(found)
        checks += outputs.lossless(found, asked.baseline, asked.target, ask, prompts)
        checks += log or []
    if asked.kinds:
        checks += requests(base)
    return Result(shown, "url", tuple(checks))


def require_paths(asked: UrlQuestion) -> None:
    """Raise UsageError for a path that is not there, before minutes are spent on a server."""
    given = {"--draft": asked.draft, "--target": asked.target, "--log": asked.log}
    for option, path in given.items():
        if path is not None and not path.exists():
            raise UsageError("no such file or directory", where=f"{option} {path}", remedy="give one that is here")


def requests(url: str) -> Iterator[Check]:
    """U10: one request of every kind, and the server is the same after each (`bench.kinds`)."""
    from k25stack.bench.kinds import run_kinds

    verdicts = {"passed": Verdict.PASS, "refused": Verdict.WARN, "failed": Verdict.FAIL}
    fixes = {"refused": "keep such requests away from it, or serve with the option that it names"}
    fixes["failed"] = "see the server's log; try the same request without the draft"
    try:
        for one in run_kinds(url):
            evidence = {"kind": one.kind, "outcome": one.outcome, "seconds": one.seconds}
            message = scrubbed(f"{one.kind}: {one.outcome}: {one.detail}")
            yield Check("U10", "requests", verdicts[one.outcome], message, evidence, fixes.get(one.outcome, ""))
    except HostError as error:
        message = scrubbed(f"no more answer during the request kinds: {error}")
        yield Check("U10", "requests", Verdict.FAIL, message, {}, "see the server's log")


def record_of(draft: Path | None) -> Mapping[str, Any]:
    """k25stack.json of the draft; empty without one."""
    if draft is None or not (draft / PROVENANCE).is_file():
        return {}
    return read_object(draft / PROVENANCE)


def rows(found: Probe) -> int | None:
    """Tokens that one verify call looks at, k + 1; None when it is not known."""
    if found.facts.draft_tokens is not None:
        return found.facts.draft_tokens
    total = found.total()
    return served_k(total) + 1 if total is not None and total.verify_calls else None


def answers(found: Probe) -> Iterator[Check]:
    """U1: an engine that is known, and requests that end."""
    told = {"engine": found.engine, "version": found.facts.version, "model": found.model, "info": dict(found.facts.raw)}
    evidence = {**told, "requests": len(found.answers), "errors": list(found.errors[:3]), "models": found.models}
    asked = len(found.errors) + len(found.answers)
    if not found.answers:
        yield Check("U1", GROUP, Verdict.FAIL, "no request was answered", evidence, "see the server's log")
    elif found.silent >= UNCOUNTED:
        message = f"it stopped answering: the last {found.silent} of {asked} requests failed"
        yield Check("U1", GROUP, Verdict.FAIL, message, evidence, "see the server's log")
    elif found.errors:
        verdict = Verdict.FAIL if len(found.errors) > FAILING * asked else Verdict.WARN
        message = f"{len(found.errors)} of {asked} requests failed"
        yield Check("U1", GROUP, verdict, message, evidence, "see the server's log")
    else:
        version = f" {found.facts.version}" if found.facts.version else ""
        which = f" ({found.model}, the first of its {found.models} models, was asked)" if found.models > 1 else ""
        yield Check("U1", GROUP, Verdict.PASS, f"{found.engine}{version} answers{which}", evidence)


def accepted(found: Probe, record: Mapping[str, Any], asked: UrlQuestion) -> Iterator[Check]:
    """U2: does it speculate and count; U3: accept length over enough rounds; U4: the gap ratio."""
    total = found.total()
    if total is None:
        if found.facts.algorithm and found.answers:
            message = f"it speculates ({found.facts.algorithm}), and its chat route does not count in this version"
            yield Check("U2", GROUP, Verdict.UNKNOWN, message, {"version": found.facts.version},
                        "give --samples FILE or --target DIR: prompts as token ids are counted",
                        "sglang srt/entrypoints/openai: return_spec_tokens_details came with 0.5.20")  # fmt: skip
            return
        if found.disturbed:
            message = (
                f"others use this server: its metrics could not be told apart by request ({found.disturbed} tries)"
            )
            fix = "ask it while nobody else does, or start a second one"
            yield Check("U2", GROUP, Verdict.UNKNOWN, message, {"disturbed": found.disturbed}, fix)
            return
        message = "no speculative counters in its replies or metrics: it serves without a draft"
        verdict = Verdict.FAIL if asked.draft is not None or found.facts.algorithm else Verdict.PASS
        yield Check("U2", GROUP, verdict, message, {}, "start it with the draft" if verdict is Verdict.FAIL else "")
        return
    if not total.verify_calls:
        yield Check("U3", GROUP, Verdict.UNKNOWN, f"no complete round ({total.cut} cut ones)", total.as_dict(),
                    "ask for more or longer answers")  # fmt: skip
        return
    length = total.accept_length()
    low, high = bootstrap_by_prompt(found.per_prompt, RoundCounts.accept_length, SEED)
    evidence = {
        "accept_length": length,
        "interval": [low, high],
        "definition": "1 + accepted / verify calls, cut rounds apart",
        "counters": total.as_dict(),
        "k": served_k(total),
        "prompts": len(found.per_prompt),
        "disturbed": found.disturbed,
        "decode": found.decode,
    }
    shown = f"accept length {length:.3f} [{low:.3f}, {high:.3f}] over {total.verify_calls:,} rounds"
    if total.cut > CUT * (total.cut + total.verify_calls):
        message = f"{shown}, and {total.cut} cut ones left out: the answers are too short to tell"
        yield Check("U3", GROUP, Verdict.UNKNOWN, message, evidence, "ask for longer answers")
        return
    if length <= NOTHING:
        enough = total.verify_calls >= 40  # nothing at all is seen early
        verdict = Verdict.FAIL if enough else Verdict.UNKNOWN
        yield Check("U3", GROUP, verdict, f"{shown}: the draft contributes nothing", evidence, "see the diagnosis (U5)")
    elif total.verify_calls < asked.rounds:
        message = f"{shown}: not enough rounds ({asked.rounds:,})"
        yield Check("U3", GROUP, Verdict.UNKNOWN, message, evidence, "give --samples, or more --seconds")
    else:
        yield Check("U3", GROUP, Verdict.PASS, shown, evidence)
    yield from gap(found, total, record)


def gap(found: Probe, total: RoundCounts, record: Mapping[str, Any]) -> Iterator[Check]:
    """U4: measured against predicted accept length, over the same prompts, k and decode mode."""
    predicted = record.get("predicted")
    value = predicted.get("accept_length") if isinstance(predicted, Mapping) else None
    if not isinstance(value, int | float):
        return
    k, mode = record.get("k"), record.get("decode")
    if found.recorded and isinstance(mode, Mapping) and mode and dict(mode) != found.mode:
        names = sorted(name for name in {*mode, *found.mode} if mode.get(name) != found.mode.get(name))
        message = f"predicted for another decode mode than that of --samples ({', '.join(names)}): not comparable"
        modes = {"predicted": dict(mode), "samples": found.mode}
        yield Check("U4", GROUP, Verdict.UNKNOWN, message, modes, "give the samples of the prediction")
        return
    if k != served_k(total):
        message = f"predicted for k={k}, served with k={served_k(total)}: not comparable"
        yield Check("U4", GROUP, Verdict.UNKNOWN, message, {}, f"serve with k={k}, or score the draft with that k")
        return
    ratio = gap_ratio(total.accept_length(), float(value), total.verify_calls)
    evidence = {
        "measured": total.accept_length(),
        "predicted": value,
        "gap_ratio": ratio.ratio,
        "same_prompts": found.recorded,
    }
    shown = "none" if ratio.ratio is None else f"{ratio.ratio:.2f}"
    verdicts = {"fine": Verdict.PASS, "weak or shifted": Verdict.WARN, "wiring fault": Verdict.FAIL}
    verdict = verdicts.get(ratio.verdict, Verdict.UNKNOWN)
    message = f"gap ratio {shown}: {ratio.verdict}"
    if not found.recorded:
        message += " (other prompts than the prediction's: give --samples)"
        verdict = Verdict.WARN if verdict is Verdict.PASS else verdict
    fix = "" if verdict is Verdict.PASS else "see the diagnosis (U5)"
    if total.verify_calls < ENOUGH_ROUNDS:
        fix = f"see {ENOUGH_ROUNDS:,} rounds or more: --rounds, --seconds"
    yield Check("U4", GROUP, verdict, message, evidence, fix)


def target_of(found: Probe, asked: UrlQuestion) -> TargetFacts | None:
    """The target that was given, else the one that the server names where that directory lies here."""
    if asked.target is not None:
        return TargetFacts.read(asked.target)
    if found.root is None or not Path(found.root).is_absolute() or not (Path(found.root) / CONFIG).is_file():
        return None
    root = Path(found.root)
    target: TargetFacts | None = attempt(lambda: TargetFacts.read(root), None)[0]
    return target


def served_instead(found: Probe, draft: Path) -> Path | None:
    """The draft that the server names, where that lies here and is another one."""
    named = Path(found.facts.draft or "")
    return named if named.is_absolute() and named.is_dir() and not named.samefile(draft) else None


def explained(found: Probe, acceptance: list[Check], asked: UrlQuestion, log: list[Check] | None) -> Iterator[Check]:
    """U5: the traps, for a server that speculates."""
    total = found.total()
    if total is None:
        return
    draft = None
    if asked.draft is not None:
        version = f"@{found.facts.version.partition('+')[0]}" if found.facts.version else ""
        try:
            target = target_of(found, asked)
            draft = check_draft(asked.draft, [found.engine + version], Question(layers=asked.layers, target=target))
        except (UsageError, HostError) as error:
            yield Check("U5", GROUP, Verdict.UNKNOWN, f"the draft could not be looked at: {error}", {}, error.remedy)
        if (other := served_instead(found, asked.draft)) is not None:
            message = f"the server serves another draft than --draft: {other}"
            yield Check("U5", GROUP, Verdict.WARN, message, {}, "give the draft that it serves")
    wrong = any(check.verdict is Verdict.FAIL for check in acceptance)
    if wrong:
        yield from diagnosis.beside(draft)
    yield from diagnosis.judge(diagnosis.tree(found.facts, found.engine, draft, log), wrong)
