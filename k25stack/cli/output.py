"""Printing that outlives its reader: a lost terminal or a closed pipe ends no work and changes no exit code."""

from __future__ import annotations

import errno
import os
import shlex
import sys

GONE = (errno.EPIPE, errno.EIO)  # a closed pipe, a lost terminal


def command(*words: object) -> str:
    """One of our own commands, to be typed in as it is printed."""
    return shlex.join(["k25stack", *map(str, words)])


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """A line on stdout (data) or stderr (for people), read or not.

    Data that cannot be kept, as on a full disk, raises OSError.
    """
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # closed by who started us
        return
    try:
        print(text, file=stream, end=end, flush=True)
    except OSError as error:
        hole = os.open(os.devnull, os.O_WRONLY)
        os.dup2(hole, stream.fileno())  # what is still buffered must not fail again when Python exits
        os.close(hole)
        if not err and error.errno not in GONE:
            raise
