"""What a finished step leaves in the ledger: its end record and the facts that figures are made from.

The report reads the ledger and nothing else, so a new run that reuses earlier results repeats their facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError
from k25stack.files import read_json
from k25stack.ledger import Record, append_all
from k25stack.pipeline.step import Fact, Step
from k25stack.pipeline.store import Kept


def note_step(ledger: Path, earlier: list[Record], step: Step, kept: Kept, cached: bool, spent_s: float) -> None:
    """Append ``step.end``, and before it the step's facts unless this ledger has those of this very result."""
    record = kept.record
    identity = {"step": step.name, "key": record["key"]}
    items: list[tuple[str, dict[str, Any]]] = []
    if not any(_same(other, step, record) for other in earlier):
        items = [(fact.kind, {**identity, **part}) for fact in step.facts for part in elements(kept.tree.root, fact)]
    end = {
        **identity,
        "kind": step.kind,
        "content": record["content"],
        "made": record.get("made"),
        "cached": cached,
        "seconds": record["seconds"],
        "spent_s": round(spent_s, 3),
        "setup": step.setup,
        "peak_rss_gb": record["peak_rss_gb"],
        "bytes": record["bytes"],
        "result": kept.result(),
    }
    append_all(ledger / "run.jsonl", [*items, ("step.end", end)])


def _same(other: Record, step: Step, record: dict[str, Any]) -> bool:
    data = other.data
    return (
        other.kind == "step.end"
        and data.get("step") == step.name
        and data.get("key") == record["key"]
        and data.get("made") == record.get("made")
    )


def elements(out: Path, fact: Fact) -> Iterator[dict[str, Any]]:
    """The objects of a JSON or JSON-lines file; none when the step did not write it.  Raises DamageError."""
    path = out / fact.file
    if not path.exists():
        return
    try:
        if path.suffix == ".jsonl":
            found: Any = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        else:
            found = read_json(path)
        if fact.field:
            found = found[fact.field]
    except (ValueError, KeyError, TypeError):
        raise DamageError("not what a step leaves there", where=str(path), remedy="run the step --again") from None
    for element in found if isinstance(found, list) else [found]:
        yield element if isinstance(element, dict) else {"value": element}
