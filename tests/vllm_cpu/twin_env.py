"""What the engine is started with, and the type of the fixture that runs many drafts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ENGINE_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

Many = Callable[[list[dict[str, Any]], list[list[int]], int], dict[str, dict[str, Any]]]
