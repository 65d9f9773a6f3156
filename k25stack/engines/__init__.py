"""Inference engines behind one protocol: command line, environment, endpoints, metric names, counters.

``get("sglang")`` gives the engine.  Nothing outside this package may know an engine's option or metric name.
"""

from __future__ import annotations

from k25stack.engines.protocol import Counters, Engine, Launch
from k25stack.errors import UsageError

__all__ = ["NAMES", "Counters", "Engine", "Launch", "get"]

NAMES = ("reference", "sglang", "vllm")


def get(name: str) -> Engine:
    """The engine of this name.  Raises UsageError for an unknown one."""
    if name == "reference":
        from k25stack.engines.reference import Reference

        return Reference()
    if name == "sglang":
        from k25stack.engines.sglang import SGLang

        return SGLang()
    if name == "vllm":
        from k25stack.engines.vllm import VLLM

        return VLLM()
    raise UsageError(f"no engine {name!r}", remedy=f"there are {', '.join(NAMES)}")
