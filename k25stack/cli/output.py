"""Printing that outlives its reader: a lost terminal or a closed pipe ends no work and changes no exit code."""

from __future__ import annotations

import os
import sys


def say(text: str, *, err: bool = False) -> None:
    """A line on stdout (data) or stderr (for people)."""
    stream = sys.stderr if err else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError:
        hole = os.open(os.devnull, os.O_WRONLY)
        os.dup2(hole, stream.fileno())  # what is still buffered must not fail again when Python exits
        os.close(hole)
