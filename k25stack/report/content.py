"""The sections of the status document."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from k25stack.ledger import Record
from k25stack.report.benchmarks import benchmarks
from k25stack.report.blocks import Block, Bullets, Commands, Document, Section, Text, listed, table
from k25stack.report.facts import Facts
from k25stack.report.figures import Profile
from k25stack.report.summary import peak_rss_gb, seconds
from k25stack.report.table import bounds
from k25stack.report.warnings import loss_of, warnings


def document(facts: Facts, found: Sequence[Profile]) -> Document:
    """Everything the ledger says, in the order a reader needs it."""
    return Document(
        title=f"Run {facts.run}",
        lead=f"Stack {stack_name(facts)}; {state(facts)}; last record {facts.updated}. Made from the ledger alone.",
        sections=(
            Section("Goal and constraints", tuple(_goal(facts))),
            Section("Discoveries", tuple(_discoveries(facts, found))),
            Section("Benchmarks", tuple(benchmarks(facts, found))),
            Section("Training", tuple(_training(facts))),
            Section("Accomplished", tuple(_accomplished(facts))),
            Section("Assumptions", (listed([_assumption(r) for r in facts.texts["assumption"]], "None noted."),)),
            Section("Decisions", (listed([_dated(r) for r in facts.texts["decision"]], "None noted."),)),
            Section("Next steps", (Commands(tuple(next_steps(facts))),)),
        ),
    )


def stack_name(facts: Facts) -> str:
    return str((facts.start.get("stack") or {}).get("name") or "unknown")


def state(facts: Facts) -> str:
    if facts.end is None:
        return "not ended yet"
    if facts.end.get("code"):
        return f"ended with exit code {facts.end['code']}: {facts.end.get('error')}"
    return "ended well"


def _goal(facts: Facts) -> list[Block]:
    stack: Mapping[str, Any] = facts.start.get("stack") or {}
    items = []
    if stack.get("description"):
        items.append(" ".join(str(stack["description"]).split()))
    target, decode = stack.get("target") or {}, (stack.get("data") or {}).get("decode")
    if target:
        items.append(f"Target: {target.get('name')}")
    if decode:
        items.append("Decode mode: " + ", ".join(f"{name} {_plain(value)}" for name, value in sorted(decode.items())))
    gates = {name: value for name, value in (stack.get("gates") or {}).items() if value is not None}
    if gates:
        items.append("Gates: " + ", ".join(f"{name} {_plain(value)}" for name, value in gates.items()))
    host: Mapping[str, Any] = facts.start.get("host") or {}
    if host:
        items.append("Host: " + ", ".join(f"{name} {_plain(value)}" for name, value in sorted(host.items())))
    items.append("Weight and KV precision are not lowered for speed unless a profile says so by name.")
    return [Bullets(tuple(items))]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_plain(item)}" for name, item in sorted(value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        return f"{value:g}"
    return "unset" if value is None else str(value)


def _discoveries(facts: Facts, found: Sequence[Profile]) -> list[Block]:
    noted = []
    for record in facts.texts["discovery"]:
        evidence = record.data.get("evidence")
        noted.append(_dated(record) + (f" (evidence: {_plain(evidence)})" if evidence else ""))
    warned = [f"Warning: {line}" for line in warnings(facts, found)]
    notes = [_dated(record) for record in facts.texts["note"]]
    return [listed([*warned, *noted, *notes], "None: no warning follows from the figures, and none was noted.")]


def _dated(record: Record) -> str:
    return f"{record.time[:10]}: {record.data.get('text', '')}"


def _assumption(record: Record) -> str:
    validated = record.data.get("validated_by")
    return f"{_dated(record)} [{'validated by ' + str(validated) if validated else 'unvalidated'}]"


def _training(facts: Facts) -> list[Block]:
    if not facts.epochs:
        return [Text("No training in this ledger.")]
    flat = [_flat(epoch) for epoch in facts.epochs]
    names = list(dict.fromkeys(name for epoch in flat for name in epoch))
    rows = [names, *([epoch.get(name, "-") for name in names] for epoch in flat)]
    caption = (
        "One row per evaluation. loss: training cross-entropy, summed over the chain with its weights; accuracy: per "
        "chain step, tokens outside the draft vocabulary are misses; walk: greedy walk over the validation split."
    )
    blocks: list[Block] = [table(rows, caption)]
    losses = [loss for epoch in facts.epochs if (loss := loss_of(epoch)) is not None]
    if len(losses) > 1:
        blocks.append(Text(f"Loss {losses[0]:.4f} to {losses[-1]:.4f} over {len(losses)} evaluations."))
    coverage = facts.held_out_coverage()
    if coverage is not None:
        blocks.append(Text(f"Draft vocabulary coverage: {coverage:.1%} of the held-out response tokens lie inside it."))
    return blocks


def _flat(epoch: Mapping[str, Any]) -> dict[str, str]:
    """Column -> cell of one evaluation: figures, lists of figures, and the accept length of the walk."""
    cells = {}
    for name, value in epoch.items():
        if name == "walk" and isinstance(value, Mapping):
            length, interval = value.get("accept_length"), value.get("interval")
            cells["walk accept length"] = "-" if length is None else f"{length:.3f}{bounds(interval)}"
            cells["survival_uniform"] = _cell(value.get("survival_uniform"))
        elif isinstance(value, list) and all(_is_figure(item) for item in value):
            cells[name] = " / ".join(_cell(item) for item in value)
        elif _is_figure(value) or isinstance(value, bool):
            cells[name] = _cell(value)
    return cells


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _accomplished(facts: Facts) -> list[Block]:
    if not facts.steps:
        return [Text("No step has ended yet.")]
    header = ["step", "seconds", "peak memory GB", "this call"]
    rows = [
        [
            step.name + (" (set-up)" if step.setup else ""),
            f"{step.seconds:.1f}",
            "-" if step.peak_rss_gb is None else f"{step.peak_rss_gb:.2f}",
            "found done" if step.cached else "made",
        ]
        for step in facts.steps.values()
    ]
    spent, peak = seconds(facts), peak_rss_gb(facts)
    memory = "" if peak is None else f", peak memory {peak:.2f} GB (sum over the process tree)"
    caption = f"Total {spent['total']:.1f} s without set-up ({spent['setup']:.1f} s){memory}."
    checks = [f"Check {check['kind']} {check['target']}: {check['verdict']}" for check in facts.checks]
    return [table([header, *rows], caption), *([Bullets(tuple(checks))] if checks else [])]


def next_steps(facts: Facts) -> list[tuple[str, str]]:
    """(command, purpose), to be typed where ``runs/`` is."""
    run = shlex.quote(facts.run)
    again = f"k25stack run runs/{run}/stack.resolved.yaml --name {run}"
    if facts.end is None or facts.end.get("code"):
        return [(f"k25stack logs {run}", "See how far it came"), (again, "Go on from where it stands")]
    steps = []
    if "package" in facts.steps:
        package = facts.steps["package"].key
        steps.append(
            (f"k25stack check state/artefacts/{package}/out", "Check the draft against the engines' contracts")
        )
    steps.append((again, "Repeat; what is done is not done again"))
    steps.append((f"k25stack report {run} --check", "Verify that this document still matches the ledger"))
    steps.append((f"k25stack report note {run} TEXT --kind assumption", "Write down what is assumed and not shown"))
    return steps
