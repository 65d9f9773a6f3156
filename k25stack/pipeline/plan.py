"""What a run would do, step by step, and why.

A step's key needs the contents of its inputs.  Where an input is still to be made the key is not known yet: the step
*waits*, and the plan names what is already known to differ.  A redone input with the same content changes nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from k25stack.errors import UsageError
from k25stack.files import read_json, write_json
from k25stack.pipeline import fingerprint
from k25stack.pipeline.key import PACKAGE, changed, fields, key_of
from k25stack.pipeline.outputs import from_json, scan
from k25stack.pipeline.step import Estimate, Step
from k25stack.pipeline.store import Damaged, Kept, Store
from k25stack.pipeline.workspace import Run

NO_ESTIMATE = Estimate()


@dataclass(frozen=True)
class Decision:
    """``cached``: there already.  ``run``: must be made.  ``waits``: an input must be made first."""

    step: Step
    state: Literal["cached", "run", "waits"]
    reason: str
    changed: tuple[str, ...] = ()
    key: str | None = None
    fields: dict[str, Any] | None = None
    found: Kept | Damaged | None = None
    estimate: Estimate = NO_ESTIMATE

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.step.name,
            "kind": self.step.kind,
            "key": self.key,
            "state": self.state,
            "reason": self.reason,
            "changed": list(self.changed),
            "estimate": None
            if self.state == "cached"
            else {
                "seconds": round(self.estimate.seconds, 1),
                "disk_gb": round(self.estimate.disk_gb, 3),
                "memory_gb": round(self.estimate.memory_gb, 2),
            },
        }


class Planner:
    """Decides about steps of one run; ``again`` names steps that are made anew though they are there."""

    def __init__(
        self, run: Run, store: Store, again: Sequence[str] = (), code: Path = PACKAGE, stack: str | None = None
    ) -> None:
        self.run = run
        self.store = store
        self.again = set(again)
        self.code = code
        others = [other for other in run.workspace.all_runs() if other.name != run.name]
        self._earlier = [run, *(other for other in others if stack in (None, other.stack))]

    def plan(self, steps: Sequence[Step]) -> list[Decision]:
        """A decision for every step, in order."""
        realised: dict[str, Kept] = {}
        decisions = []
        for step in steps:
            decision = self.decide(step, realised)
            if decision.state == "cached" and isinstance(decision.found, Kept):
                realised[step.name] = decision.found
            elif step.blocked:
                decision = replace(decision, reason=f"{decision.reason}; cannot run: {step.blocked}")
            decisions.append(decision)
        return decisions

    def decide(self, step: Step, realised: Mapping[str, Kept]) -> Decision:
        """What must happen with ``step``, given the results of the steps before it."""
        references = step.all_inputs()
        hashes = {
            name: _content(realised[ref.step], ref.path) for name, ref in references.items() if ref.step in realised
        }
        document = fields(step, hashes, self._hash_files(step), fingerprint.host(), self.code)
        before = self._before(step.name)
        differing = changed(before[1], document) if before else {}
        waiting = [name for name in references if name not in hashes]
        differing = {name: pair for name, pair in differing.items() if name.removeprefix("input.") not in waiting}
        estimate = self._estimate(step, before)
        if waiting:
            makers = list(dict.fromkeys(references[name].step for name in waiting))
            reason = "; ".join([f"after {', '.join(makers)}", *_describe(differing)])
            return Decision(step, "waits", reason, tuple(differing), estimate=estimate)
        key = key_of(document)
        found = self.store.find(step, key)
        if isinstance(found, Kept) and step.name not in self.again:
            return Decision(
                step, "cached", f"made by {found.record.get('run', 'an earlier run')}", (), key, document, found
            )
        reason = self._why(step, key, found, before, differing)
        return Decision(step, "run", reason, tuple(differing), key, document, found, estimate)

    def _why(
        self,
        step: Step,
        key: str,
        found: Kept | Damaged | None,
        before: tuple[str, dict[str, Any]] | None,
        differing: dict[str, tuple[Any, Any]],
    ) -> str:
        if isinstance(found, Damaged):
            return "; ".join(found.lines[:3]) + (f" and {len(found.lines) - 3} more" if len(found.lines) > 3 else "")
        if step.name in self.again:
            return "asked for: --again"
        parts = _describe(differing)
        if (self.run.workspace.work / key / "out").exists():
            parts.append("goes on: an earlier try did not end")
        if not parts:
            made = before is not None and any((run.step(key) / "outputs.json").exists() for run in self._earlier)
            parts.append("its outputs are gone" if made else "not made yet")
        return "; ".join(parts)

    def _before(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Key and fields of this step at the last call: of this run, else of the newest of its stack that has it."""
        for run in self._earlier:
            key = run.keys().get(name)
            if key is None:
                continue
            try:
                return key, dict(read_json(run.step(key) / "spec.json")["fields"])
            except (OSError, KeyError, ValueError):
                continue
        return None

    def _estimate(self, step: Step, before: tuple[str, dict[str, Any]] | None) -> Estimate:
        """What this step took at the last call; the step's own guess when there was none."""
        if before is not None:
            for run in self._earlier:
                try:
                    record = read_json(run.step(before[0]) / "outputs.json")
                except (OSError, ValueError):
                    continue
                return Estimate(record["seconds"], record["bytes"] / 1e9, record["peak_rss_gb"])
        return step.estimate

    def _hash_files(self, step: Step) -> dict[str, str]:
        """Content hashes of the user's files, remembered by path, size, mtime and inode."""
        if not step.files:
            return {}
        path = self.run.workspace.state / "hashes.json"
        try:
            memory = dict(read_json(path))
        except (FileNotFoundError, json.JSONDecodeError):
            memory = {}
        hashes = {}
        for name, source in step.files.items():
            if not source.exists():
                raise UsageError("no such file", where=str(source), remedy=f"step {step.name} reads it as {name}")
            known = from_json(source, memory.get(str(source.resolve()), {})).files
            tree = scan(source, known, self.store.deep)
            memory[str(source.resolve())] = tree.as_json()
            hashes[name] = tree.content()
        with contextlib.suppress(OSError):  # it only saves time
            if path.parent.exists():
                write_json(path, memory)
        return hashes


def _content(kept: Kept, part: str) -> str:
    return kept.tree.content(part) if part else kept.content


def _describe(differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """``params.layers [2,15,27] -> [10,20,29]``; hashes are only named."""
    lines = []
    for name, (old, new) in list(differing.items())[:4]:
        if name.split(".")[0] in ("code", "input", "file"):
            lines.append(f"{name} changed")
        else:
            lines.append(f"{name} {_short(old)} -> {_short(new)}")
    if len(differing) > 4:
        lines.append(f"{len(differing) - 4} more fields")
    return lines


def _short(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def render(decisions: Sequence[Decision]) -> list[str]:
    """The plan as lines of a table, with what it needs at the end."""
    rows = [("step", "state", "time", "disk", "memory", "reason")]
    for decision in decisions:
        guess = decision.estimate
        idle = decision.state == "cached"
        rows.append(
            (
                decision.step.name,
                decision.state,
                "" if idle else f"{guess.seconds:.0f} s",
                "" if idle else f"{guess.disk_gb:.2f} GB",
                "" if idle else f"{guess.memory_gb:.1f} GB",
                decision.reason,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]) for row in rows
    ]
    needs = total(decisions)
    lines.append(
        f"estimated: at most {needs.seconds:.0f} s, {needs.disk_gb:.2f} GB of disk, {needs.memory_gb:.1f} GB of memory"
        if any(decision.state != "cached" for decision in decisions)
        else "nothing to do: everything is there"
    )
    return lines


def total(decisions: Sequence[Decision]) -> Estimate:
    """Time and disk of all steps that may run, memory of the largest."""
    todo = [decision.estimate for decision in decisions if decision.state != "cached"]
    return Estimate(
        sum(guess.seconds for guess in todo),
        sum(guess.disk_gb for guess in todo),
        max((guess.memory_gb for guess in todo), default=0.0),
    )
