"""Write the documents of a run, or say whether they still match its ledger."""

from __future__ import annotations

import json
from pathlib import Path

from k25stack.files import write_text
from k25stack.report import markdown, page
from k25stack.report.content import document
from k25stack.report.facts import read_facts
from k25stack.report.figures import profiles
from k25stack.report.summary import summarise


def documents(run: Path) -> dict[str, str]:
    """File name -> text.  The same ledger gives the same text: there is no clock and no path in it."""
    facts = read_facts(run)
    found = profiles(facts)
    content = document(facts, found)
    return {
        "status.md": markdown.render(content),
        "report.html": page.render(content),
        "summary.json": json.dumps(summarise(facts, found), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }


def write(run: Path) -> list[Path]:
    """Write status.md, report.html and summary.json into the run directory; returns their paths."""
    written = []
    for name, text in documents(run).items():
        write_text(run / name, text)
        written.append(run / name)
    return written


def stale(run: Path) -> list[str]:
    """Names of the documents that are missing or no longer match the ledger."""
    return [name for name, text in documents(run).items() if not _holds(run / name, text)]


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (FileNotFoundError, UnicodeDecodeError):
        return False
