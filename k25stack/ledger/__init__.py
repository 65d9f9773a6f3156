"""The append-only record of a run: one file per writer, merged when read (standard library only)."""

from k25stack.ledger.records import KINDS, SCHEMA, Record, append, append_all, read, read_file

__all__ = ["KINDS", "SCHEMA", "Record", "append", "append_all", "read", "read_file"]
