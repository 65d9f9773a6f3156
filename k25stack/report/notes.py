"""Notes that people leave in a run's ledger."""

from __future__ import annotations

import os
from pathlib import Path

from k25stack import ledger
from k25stack.errors import UsageError
from k25stack.ledger import Record
from k25stack.report.facts import TEXTS

WRITER = "notes"


def note(run: Path, text: str, kind: str = "note", evidence: str = "", validated_by: str = "") -> Record:
    """Append a note, discovery, decision or assumption to a run's ledger.

    Raises UsageError for an empty text, another kind, or a directory that is no run.
    """
    if kind not in TEXTS:
        raise UsageError(f"unknown kind {kind!r}", where="note", remedy=f"one of {', '.join(TEXTS)}")
    if not text.strip():
        raise UsageError("the text is empty", where="note")
    if not (run / "ledger").is_dir():
        raise UsageError("no ledger here", where=str(run), remedy="give a run directory or the name of a run")
    extra = {"evidence": evidence, "validated_by": validated_by}
    data = {"text": text.strip(), "user": os.environ.get("USER", ""), **{k: v for k, v in extra.items() if v}}
    return ledger.append(run / "ledger" / f"{WRITER}.jsonl", kind, data)
