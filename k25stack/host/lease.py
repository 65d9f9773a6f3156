"""The record of the host's GPU lease, as the lock file shows it (an empty file: nobody holds it)."""

from __future__ import annotations

from typing import Any

from k25stack.host.parse.values import json_object
from k25stack.host.places import LEASE
from k25stack.host.seen import Seen, Unseen


def lease_of(seen: Seen) -> dict[str, Any] | None:
    """Holder of the lease, or None."""
    text = seen.text(LEASE)
    if not text or not text.strip():
        return None
    try:
        found = json_object(text, str(LEASE))
    except Unseen:
        return None
    pid = found.get("pid")
    return {**found, "who": str(found.get("who", "somebody"))} if isinstance(pid, int) and pid > 0 else None
