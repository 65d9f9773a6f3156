"""Status document, page and summary of a run, from its ledger and nothing else (standard library only)."""

from k25stack.report.gating import gates
from k25stack.report.notes import note
from k25stack.report.summary import summary
from k25stack.report.table import table
from k25stack.report.write import stale, write

__all__ = ["gates", "note", "stale", "summary", "table", "write"]
