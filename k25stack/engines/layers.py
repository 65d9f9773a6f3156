"""Target families as the stack file names them, and as layer-id rules group them."""

from __future__ import annotations

from k25stack.engines.protocol import Family


def layer_family(family: Family) -> str:
    """DeepSeek-V3 and Kimi-K2.5 share one rule; everything Llama-like has the other."""
    return "llama" if family == "llama" else "deepseek"
