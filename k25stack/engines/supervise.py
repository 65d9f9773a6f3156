"""What the supervisor has to know about an engine: addresses, counters that move, lines of its log.

Only names and patterns; the supervisor itself (``k25stack.watch``) knows no engine.  Sources: the engines' own files in
the versions that `sglang` and `vllm` name.

* SGLang counts ``generation_tokens_total`` when a request *finishes*: a long answer would look like a stall.
  ``realtime_tokens_total`` (modes prefill_compute, prefill_cache, decode) moves with every decode step and every
  chunk of a prefill (``managers/scheduler_components/metrics_reporter.py``).  Its gauges are refreshed at most every
  30 s once idle, and its health address makes one token when idle, so a stale gauge corrects itself there.
* vLLM counts tokens in every step; the prompt is counted when its prefill is over.
* Both compile kernels when a request first needs them, so one request of each kind is a warm request (`warm_requests`).
  SGLang 0.5.16: the first batch with top_p or top_k, or of a greedy and a sampled request beside each other, has
  FlashInfer build its sampling module: 89 s on an H200's host (``benchmarks/results/gpu-first-request.json``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k25stack.engines import reference as names
from k25stack.engines.reference import Reference
from k25stack.engines.sglang import SGLang
from k25stack.engines.vllm import VLLM
from k25stack.errors import UsageError
from k25stack.watch.policy import Counters, Holder, Policy, Ready, Restart, Warm

# Lines of CUDA, NVML and PyTorch.  They only explain an end that has come already: a prompt in the log may hold them.
FATAL = {
    "gpu_lost": r"GPU is lost|fallen off the bus|no CUDA-capable device is detected|cudaErrorNoDevice",
    "gpu_reset": r"uncorrectable ECC error|cudaErrorECCUncorrectable|GPU requires reset|cudaErrorSystemNotReady",
    "gpu_oom": r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory",
    "port_taken": r"[Aa]ddress already in use|error while attempting to bind",
}
STARTED = r"Application startup complete"  # uvicorn, in both engines


@dataclass(frozen=True)
class Supervision:
    """``load_markers``: phase -> pattern of the line that begins it (read, copy, memory, graphs, warm)."""

    health_path: str
    metrics_path: str
    counters: Counters
    load_markers: Mapping[str, str]
    filtered: Mapping[str, Any]  # fields of the warm request whose probabilities are cut before a token is drawn
    fatal_markers: Mapping[str, str] = field(default_factory=lambda: dict(FATAL))


SUPERVISED = {
    "sglang": Supervision(
        SGLang.health_path,
        SGLang.metrics_path,
        Counters(
            running=("sglang:num_running_reqs",),
            waiting=("sglang:num_queue_reqs",),
            tokens=("sglang:realtime_tokens_total", "sglang:generation_tokens_total", "sglang:prompt_tokens_total"),
        ),
        {
            "read": r"Load weight begin",
            "copy": r"[Ll]oading (?:\w+ )?(?:checkpoint )?shards: +100%",  # all shards read: repacked on the card
            "memory": r"Load weight end",  # the pool of the KV cache; the draft's weights too
            "graphs": r"Capture .+ begin",
            "warm": STARTED,
        },
        {"top_p": 0.9, "top_k": 20, "n": 2},
    ),
    "vllm": Supervision(
        VLLM.health_path,
        VLLM.metrics_path,
        Counters(
            running=("vllm:num_requests_running",),
            waiting=("vllm:num_requests_waiting",),
            tokens=("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
        ),
        {
            "read": r"Starting to load model",
            "copy": r"Loading weights took",
            "memory": r"Model loading took|Warming up model",  # compilation, profile run, KV cache; on a CPU the latter
            "graphs": r"Capturing CUDA graphs",
            "warm": STARTED,
        },
        {"top_p": 0.9, "n": 2},  # the CPU build 0.32.0 dies of top_k beside a draft
    ),
    "reference": Supervision(
        Reference.health_path,
        Reference.metrics_path,
        Counters((names.RUNNING,), (names.WAITING,), (names.GENERATION_TOKENS, names.PROMPT_TOKENS)),
        {},
        {"top_p": 0.9, "top_k": 20},  # one answer per request
    ),
}


def supervision(engine: str) -> Supervision:
    """Raises UsageError for an engine without one."""
    if engine not in SUPERVISED:
        raise UsageError(f"no supervision for engine {engine!r}", remedy=f"one of {', '.join(SUPERVISED)}")
    return SUPERVISED[engine]


def warm_requests(engine: str, model: str, url: str) -> tuple[Warm, ...]:
    """One request of each kind that makes an engine compile, over the completions route, which all engines have."""
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "sampled": {"temperature": 0.8},
        "filtered": {"temperature": 0.8, **supervision(engine).filtered},
    }
    plain = {"model": model, "prompt": "Count: one two three", "max_tokens": 8}
    return tuple(Warm(f"{url}/v1/completions", plain | fields, name) for name, fields in kinds.items())


def policy(
    engine: str,
    model: str,
    port: int,
    *,
    host: str = "127.0.0.1",
    ready: Ready | None = None,
    restart: Restart | None = None,
    history: Path | None = None,
    lease: Path | None = None,
    holder: Holder | None = None,
    **times: Any,
) -> Policy:
    """The policy for an engine that serves ``model`` on ``port``.

    ``times``: ready_s, heartbeat_s, misses, compile_s, grace_s of `Policy`; what is not given keeps its default.
    """
    what = supervision(engine)
    url = f"http://{host}:{port}"
    return Policy(
        engine=engine,
        health_url=url + what.health_path,
        metrics_url=url + what.metrics_path,
        counters=what.counters,
        warm=warm_requests(engine, model, url),
        ready=ready or Ready(),
        restart=restart or Restart(),
        history=history,
        lease=lease,
        holder=holder or Holder(),
        load_markers=dict(what.load_markers),
        fatal_markers=dict(what.fatal_markers),
        **times,
    )
