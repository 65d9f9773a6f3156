"""Results of host checks as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from k25stack.host.check import clean
from k25stack.host.fleet import Outcome


def lines(outcome: Outcome, verbose: bool = False) -> Iterator[str]:
    """Failures first, each with its fix; passes only with ``verbose``; then one summary line."""
    if outcome.error is not None:
        yield f"UNKNOWN {clean(str(outcome.error))}"
        return
    for ids, check in _grouped(outcome.result["checks"]):
        if check["verdict"] == "pass" and not verbose:
            continue
        yield f"{check['verdict'].upper():7} {ids:15} {check['message']}"
        if check["fix"]:
            yield f"{'':24}fix: {check['fix']}"
        if check["verdict"] in ("fail", "warn"):
            yield f"{'':24}source: {check['source']}"
    yield summary(outcome)


def _grouped(checks: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(ids, check): what is unknown for one and the same reason stands together."""
    shown: set[str] = set()
    for check in checks:
        alike = [one["id"] for one in checks if one["verdict"] == "unknown" and one["message"] == check["message"]]
        if check["verdict"] != "unknown" or len(alike) == 1:
            yield check["id"], check
        elif check["message"] not in shown:
            shown.add(check["message"])
            yield f"{len(alike)} checks", {**check, "message": f"{check['message']} ({', '.join(alike)})"}


def summary(outcome: Outcome) -> str:
    """One line per host."""
    result: dict[str, Any] = outcome.result
    if outcome.error is not None or outcome.profile is None:
        return f"UNKNOWN {clean(str(outcome.error))}"
    counts = Counter(check["verdict"] for check in result["checks"])
    told = ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in ("fail", "unknown", "warn", "pass") if counts[verdict]
    )
    aside = f"; {outcome.skipped} checks do not apply" if outcome.skipped else ""
    return f"{result['verdict'].upper()}: host {result['target']} as {outcome.profile.name}: {told}{aside}"


def table(outcomes: Sequence[Outcome], verbose: bool = False) -> Iterator[str]:
    """Many hosts: for each the failures (with ``verbose`` everything) and its summary line."""
    for outcome in outcomes:
        if outcome.error is None:
            for check in outcome.result["checks"]:
                if check["verdict"] == "fail" or verbose:
                    yield f"{outcome.result['target']}: {check['verdict'].upper()} {check['id']}: {check['message']}"
        yield summary(outcome)
