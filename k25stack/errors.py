"""Every error this project raises on purpose.

::

    K25Error                 exit 1   a finding or a failure
    ├── UsageError           exit 2   wrong arguments, or a thing of another kind
    │   └── StackError       exit 2   the stack file is wrong (file, line, column)
    ├── HostError            exit 3   environment or unreachable: disk, permission, network, missing tool
    │   └── LeaseError       exit 3   somebody else holds the host's GPUs or this run
    ├── ContractError        exit 1   a check found something that would fail silently later
    ├── DamageError          exit 1   a file is torn, altered or not what its header says
    └── DriftError           exit 4   a lock or a rendered file no longer matches

An error is one line for people: *what* happened, *where*, and *what to do* (the remedy).  The command line prints
it without a traceback; ``--debug`` shows the traceback.
"""

from __future__ import annotations


class K25Error(Exception):
    """What happened, where, and what to do about it."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{where}{self.what}{remedy}"


class UsageError(K25Error):
    """Wrong arguments, or a target that is not of that kind."""

    exit_code = 2


class StackError(UsageError):
    """The stack file is wrong; ``where`` holds file:line:column."""


class HostError(K25Error):
    """The environment does not allow it: disk, permission, network, missing tool, unreachable host."""

    exit_code = 3


class LeaseError(HostError):
    """Another process holds the GPUs or the run directory; the message names the holder."""


class ContractError(K25Error):
    """A check found something that an engine would accept in silence and get wrong."""


class DamageError(K25Error):
    """A file is torn, altered, or not what its header says."""


class DriftError(K25Error):
    """What is on disk no longer matches its lock or its source."""

    exit_code = 4


def in_words(error: Exception) -> str:
    """What an exception of Python's own says of bad data: a bare KeyError is no more than a name in quotes."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error) or type(error).__name__
