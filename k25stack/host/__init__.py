"""The host: what it is, what is wrong with it, how its cards reach each other.  Reads only, unless repair is asked for.

::

    from k25stack.host import check_host
    check_host("user@gpu01", profile="8x-rtx-pro-6000")["verdict"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def check_host(
    target: str = "local", *, profile: str | None = None, source: Path | None = None, record: Path | None = None
) -> dict[str, Any]:
    """Judge a host (``local`` or ``[user@]host``), or with ``source`` a recording; the result shape of every check.

    Without a profile the one that fits the cards is taken.  ``record`` writes what was read, masked.
    Raises UsageError, and HostError when the host cannot be read.
    """
    from k25stack.host.collect import target_of
    from k25stack.host.fleet import check_one, check_recording
    from k25stack.host.profile import load_profile

    expected = load_profile(profile) if profile else None
    if source is not None:
        return check_recording(source, expected).result
    found = check_one(target_of(target), expected, record=record)
    if found.error is not None:
        raise found.error
    return found.result


def check_hosts(inventory: Path, *, profile: str | None = None, record: Path | None = None) -> list[dict[str, Any]]:
    """Judge all hosts of an Ansible inventory at the same time; one that cannot be read has the check ``reach``."""
    from k25stack.host.fleet import check_many
    from k25stack.host.inventory import read_inventory
    from k25stack.host.profile import load_profile

    outcomes = check_many(read_inventory(inventory), load_profile(profile) if profile else None, record=record)
    return [outcome.result for outcome in outcomes]


__all__ = ["check_host", "check_hosts"]
