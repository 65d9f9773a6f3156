"""What a command line means, under names that are the same for every engine (standard library only).

Rules over launches ask for ``"max_running"`` or ``"draft"``; only this table knows how each engine spells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from k25stack.engines.scan import Given, Scan

# Meaning -> the option's names, old ones last: of those that a line gives, the first one counts.
SPELLED: dict[str, dict[str, tuple[str, ...]]] = {
    "sglang": {
        "model": ("--model-path",),
        "revision": ("--revision",),
        "served_name": ("--served-model-name",),
        "host": ("--host",),
        "port": ("--port",),
        "api_key": ("--api-key",),
        "admin_key": ("--admin-api-key",),
        "tensor_parallel": ("--tp-size",),
        "pipeline_parallel": ("--pp-size",),
        "data_parallel": ("--dp-size",),
        "context": ("--context-length",),
        "max_running": ("--max-running-requests",),
        "load_format": ("--load-format",),
        "dummy_seed": ("--random-seed",),
        "remote_code": ("--trust-remote-code",),
        "quantization": ("--quantization",),
        "kv_dtype": ("--kv-cache-dtype",),
        "attention": ("--attention-backend",),
        "attention_prefill": ("--prefill-attention-backend",),
        "attention_decode": ("--decode-attention-backend",),
        "moe": ("--moe-runner-backend",),
        "fused_allreduce": ("--flashinfer-allreduce-fusion-backend",),
        "prefix_cache_off": ("--disable-radix-cache",),
        "states": ("--enable-return-hidden-states",),
        "aux_states": ("--enable-return-aux-hidden-states",),
        "graph_batch": ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
        "graph_batches": ("--cuda-graph-bs-decode", "--cuda-graph-bs"),
        "graph_off": ("--cuda-graph-backend-decode", "--disable-cuda-graph"),
        "memory_share": ("--mem-fraction-static",),
        "max_tokens": ("--max-total-tokens",),
        "prefill_chunk": ("--chunked-prefill-size",),
        "algorithm": ("--speculative-algorithm",),
        "draft": ("--speculative-draft-model-path",),
        "draft_revision": ("--speculative-draft-model-revision",),
        "steps": ("--speculative-num-steps",),
        "topk": ("--speculative-eagle-topk",),
        "rows": ("--speculative-num-draft-tokens",),
        "draft_attention": ("--speculative-draft-attention-backend",),
        "draft_quantization": ("--speculative-draft-model-quantization",),
        "draft_load_format": ("--speculative-draft-load-format",),
        "draft_kv_dtype": ("--speculative-draft-kv-cache-dtype",),
        "token_map": ("--speculative-token-map",),
        "rejection": ("--speculative-use-rejection-sampling",),
        "adaptive": ("--speculative-adaptive",),
        "log_level": ("--log-level",),
    },
    "vllm": {
        "model": ("--model",),
        "revision": ("--revision",),
        "served_name": ("--served-model-name",),
        "host": ("--host",),
        "port": ("--port",),
        "api_key": ("--api-key",),
        "tensor_parallel": ("--tensor-parallel-size",),
        "pipeline_parallel": ("--pipeline-parallel-size",),
        "data_parallel": ("--data-parallel-size",),
        "context": ("--max-model-len",),
        "max_running": ("--max-num-seqs",),
        "load_format": ("--load-format",),
        "dummy_seed": ("--seed",),
        "remote_code": ("--trust-remote-code",),
        "quantization": ("--quantization",),
        "kv_dtype": ("--kv-cache-dtype",),
        "attention": ("--attention-backend",),
        "moe": ("--moe-backend",),
        "graph_batch": ("--max-cudagraph-capture-size",),
        "graph_off": ("--enforce-eager",),
        "memory_share": ("--gpu-memory-utilization",),
        "prefill_chunk": ("--max-num-batched-tokens",),
        "speculative": ("--speculative-config",),
        "algorithm": ("--spec-method",),
        "draft": ("--spec-model",),
        "steps": ("--spec-tokens",),
        "optimization": ("--optimization-level",),
    },
}
# Keys of vLLM's --speculative-config.
IN_JSON = {
    "algorithm": "method",
    "draft": "model",
    "draft_revision": "revision",
    "steps": "num_speculative_tokens",
    "draft_attention": "attention_backend",
    "draft_quantization": "quantization",
    "draft_kv_dtype": "kv_cache_dtype",
}
EXTRACTION = "extract_hidden_states"  # vLLM's method that drafts nothing


@dataclass(frozen=True)
class LaunchFacts:
    """One launch.  A meaning that is not in ``values`` was not given."""

    engine: str
    version: str
    values: Mapping[str, Any]
    written: Mapping[str, str]  # meaning -> as it was typed
    env: Mapping[str, str] = field(default_factory=dict)

    def get(self, meaning: str, default: Any = None) -> Any:
        return self.values.get(meaning, default)

    def spell(self, meaning: str) -> str:
        """How this engine spells it, for the advice that a finding gives."""
        if self.engine == "vllm" and meaning in IN_JSON:
            return f'"{IN_JSON[meaning]}" in --speculative-config'
        return self.written.get(meaning) or SPELLED[self.engine][meaning][0]

    @property
    def label(self) -> str:
        return f"{self.engine}@{self.version}"

    @property
    def extracts(self) -> bool:
        """The server gives hidden states out and drafts nothing."""
        if self.engine == "vllm":
            return bool(self.get("algorithm") == EXTRACTION)
        return bool(self.get("aux_states")) or bool(self.get("states") and not self.speculates)

    @property
    def speculates(self) -> bool:
        return bool(self.get("algorithm") or self.get("speculative")) and not (
            self.get("algorithm") == EXTRACTION or self.get("aux_states")
        )


def launch_facts(line: Scan, env: Mapping[str, str] | None = None) -> LaunchFacts:
    """The meaning of a scanned line; words that could not be converted stand as they were typed."""
    engine = line.known.engine
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    for meaning, names in SPELLED[engine].items():
        given = _given(line, names)
        if given is not None:
            values[meaning] = _meant(meaning, given)
            written[meaning] = given.option.name
    if engine == "vllm":
        if line.plain:
            values.setdefault("model", line.plain[0])
        _merge_json(values)
    return LaunchFacts(engine, line.known.version, values, written, dict(env or {}))


def _given(line: Scan, names: tuple[str, ...]) -> Given | None:
    return next((given for name in names if (given := line.last(name)) is not None), None)


def _meant(meaning: str, given: Given) -> Any:
    value = given.value
    if meaning == "graph_off":
        return value in (True, "disabled")
    if meaning == "algorithm" and isinstance(value, str):
        return value.upper() if given.option.name == "--speculative-algorithm" else value  # SGLang folds case
    return value


def _merge_json(values: dict[str, Any]) -> None:
    """The meanings that stand in vLLM's JSON; one of the line's own options for the same counts first."""
    given = values.get("speculative")
    config = {str(key).replace("-", "_"): value for key, value in given.items()} if isinstance(given, Mapping) else {}
    for meaning, key in IN_JSON.items():
        if config.get(key) is not None:
            values.setdefault(meaning, config[key])
    if config:
        values["speculative"] = config
