"""All checks, in the order in which people meet them.  One module per group; a check is a module-level value."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from k25stack.host.check import Check

MODULES = (
    "cards",
    "driver",
    "software",
    "health",
    "pcie",
    "peer",
    "system",
    "memory",
    "storage",
    "docker",
    "network",
    "nccl",
    "live",
)


@cache
def all_checks() -> tuple[Check, ...]:
    found: list[Check] = []
    for name in MODULES:
        module = import_module(f"k25stack.host.checks.{name}")
        found += [value for value in vars(module).values() if isinstance(value, Check)]
    return tuple(found)


def check_named(id: str) -> Check | None:
    return next((one for one in all_checks() if one.id == id), None)
