"""Each engine's series as PromQL, under names that are the same for all: what recording rules are rendered from.

Expressions hold ``{window}`` where a range stands (``5m``).  What an engine does not export is left out.  Names were
read in the wheels of SGLang 0.5.16, 0.5.20 and 0.5.23 (``srt/observability/metrics_collector.py``) and of vLLM 0.31.0
and 0.32.0 (``v1/metrics/loggers.py``, ``v1/spec_decode/metrics.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from k25stack.engines import reference as names


@dataclass(frozen=True)
class Series:
    """PromQL of one engine.  Counters are summed over ranks and labels, so that one server is one line."""

    running: str
    waiting: str
    generated: str  # counter selector: tokens, as soon as the engine counts them
    prompt: str  # counter selector
    requests: str | None = None  # counter selector: finished requests
    ttft: str | None = None  # histogram, seconds
    itl: str | None = None  # histogram, seconds
    kv_use: str | None = None  # share of the cache, 0 to 1
    verify_calls: str | None = None  # counter selector: speculative rounds
    accept_length: str | None = None  # 1 + accepted / verify calls over {window}
    per_position: str | None = None  # counter selector: rounds that accepted position i, label ``position`` from 0


# SGLang exports no accepted tokens.  Every response has one token of the prefill and 1 + accepted of each round, so
# accept length = (tokens - requests) / verify calls; the last round is counted whole though a response may end in it,
# which makes this a little low (one round per response), never high.
_SGLANG_ACCEPT = (
    "(sum(increase(sglang:generation_tokens_total[{window}])) - sum(increase(sglang:num_requests_total[{window}])))"
    " / (sum(increase(sglang:spec_verify_calls_total[{window}])) > 0)"
)

SERIES = {
    "sglang": Series(
        running="sum(sglang:num_running_reqs)",
        waiting="sum(sglang:num_queue_reqs)",
        generated='sglang:realtime_tokens_total{mode="decode"}',
        prompt='sglang:realtime_tokens_total{mode="prefill_compute"}',
        requests="sglang:num_requests_total",
        ttft="sglang:time_to_first_token_seconds",
        itl="sglang:inter_token_latency_seconds",
        kv_use="max(sglang:token_usage)",
        verify_calls="sglang:spec_verify_calls_total",
        accept_length=_SGLANG_ACCEPT,
    ),
    "vllm": Series(
        running="sum(vllm:num_requests_running)",
        waiting="sum(vllm:num_requests_waiting)",
        generated="vllm:generation_tokens_total",
        prompt="vllm:prompt_tokens_total",
        requests="vllm:request_success_total",
        ttft="vllm:time_to_first_token_seconds",
        itl="vllm:inter_token_latency_seconds",
        kv_use="max(vllm:kv_cache_usage_perc)",
        verify_calls="vllm:spec_decode_num_drafts_total",
        accept_length="1 + sum(increase(vllm:spec_decode_num_accepted_tokens_total[{window}]))"
        " / (sum(increase(vllm:spec_decode_num_drafts_total[{window}])) > 0)",
        per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    ),
    "reference": Series(
        running=f"sum({names.RUNNING})",
        waiting=f"sum({names.WAITING})",
        generated=names.GENERATION_TOKENS,
        prompt=names.PROMPT_TOKENS,
        requests=names.FINISHED,
        verify_calls=names.VERIFY_CALLS,
        accept_length=f"1 + sum(increase({names.ACCEPTED}[{{window}}]))"
        f" / (sum(increase({names.VERIFY_CALLS}[{{window}}])) > 0)",
        per_position=names.PER_POSITION,
    ),
}
