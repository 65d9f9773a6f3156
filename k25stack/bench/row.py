"""The row of one profile at one concurrency, as it stands in the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from k25stack.bench.measurement import Measurement
from k25stack.bench.records import RequestRecord
from k25stack.bench.repeat import Repeat
from k25stack.bench.stats import percentiles, repeated
from k25stack.speculation import RoundCounts, bootstrap_by_prompt
from k25stack.speculation.interval import total
from k25stack.speculation.rounds import ACCEPT_LENGTH

ROW_SCHEMA = 1

DEFINITIONS = {
    "accept_length": ACCEPT_LENGTH,  # 1 + accepted / verify calls, uncut rounds, raw counters
    "single_stream_tok_s": "k25stack/single-stream/1",  # 1 / TPOT: decode tokens / decode seconds of one request
    "throughput_tok_s": "k25stack/throughput-steady/1",  # output tokens / seconds over the steady window
    "step_s": "k25stack/step-time/1",  # event gaps in decode-only time / tokens, times tokens per round
    "ttft_s": "k25stack/ttft/1",  # from sending to the first event with text
    "tpot_s": "k25stack/tpot/1",  # (last - first event) / tokens after the first event
    "e2e_s": "k25stack/e2e/1",  # from sending to the last byte
}


def build_row(
    measurement: Measurement, model: str, concurrency: int, repeats: Sequence[Repeat], flushed: bool
) -> dict[str, Any]:
    """JSON object of a row: raw counters, figures with units in their names, and the definitions they follow."""
    protocol, prompts, decode = measurement.protocol, measurement.prompts, measurement.decode
    records = [record for repeat in repeats for record in repeat.records]
    reasons = [f"repeat {i}: {reason}" for i, repeat in enumerate(repeats, 1) for reason in repeat.reasons]
    rounds = _rounds(records, repeats)
    k = protocol.k if protocol.k is not None or rounds is None else chain_length(rounds)
    return {
        "schema": ROW_SCHEMA,
        "profile": protocol.profile,
        "role": protocol.role,
        "engine": protocol.engine,
        "engine_version": protocol.engine_version,
        "model": model,
        "draft": protocol.draft,
        "concurrency": concurrency,
        "k": k,
        "verify_rule": protocol.verify_rule or (None if k is None else _rule(decode)),
        "decode": decode,
        "ignore_eos": protocol.ignore_eos,
        "max_tokens": measurement.max_tokens,
        "prompts": {"split": prompts.split, "distinct": len({r.key for r in records}), "hash": prompts.hash},
        "definitions": DEFINITIONS,
        "requests": sum(len(repeat.load.records) for repeat in repeats),
        "output_tokens": sum(record.completion_tokens or 0 for record in records),
        "single_stream_tok_s": _over([repeat.per_request for repeat in repeats]) if concurrency == 1 else None,
        "per_request_tok_s": _over([repeat.per_request for repeat in repeats]),
        "throughput_tok_s": _over([repeat.throughput for repeat in repeats]),
        "ttft_s": percentiles([record.ttft for record in records if record.ttft is not None]),
        "tpot_s": percentiles([record.tpot for record in records if record.tpot is not None]),
        "e2e_s": percentiles([record.e2e for record in records]),
        "step": _step(repeats, records),
        "rounds": rounds.as_dict() if rounds else None,
        "accept_length": _accept_length(rounds, records, protocol.seed),
        "documents": _documents(records),
        "steady_window_s": [None if r.window is None else r.window[1] - r.window[0] for r in repeats],
        "client_cpu_share": max(repeat.load.cpu_share for repeat in repeats),
        "prefix_cache_flushed": flushed,
        "unstable_outputs": unstable(records),
        "lossless": None,  # filled in where outputs without a draft are at hand
        "overall": None,  # filled in by `conclusion` once all rows are there
        "cost": None,
        "accepted": not reasons,
        "reasons": reasons,
    }


def chain_length(rounds: RoundCounts) -> int | None:
    """k of an unknown server, from what it proposed."""
    return round(rounds.proposed / rounds.verify_calls) if rounds.verify_calls else None


def _rule(decode: dict[str, Any]) -> str | None:
    return "greedy" if not decode.get("temperature") else None


def _over(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Median and t-interval over the repeats that have the figure; None when none has."""
    known = [value for value in values if value is not None]
    return repeated(known).as_dict() if known else None


def _rounds(records: Sequence[RequestRecord], repeats: Sequence[Repeat]) -> RoundCounts | None:
    """Sum of the requests' own counters; else the server's counters over the repeats; else None."""
    own = [record.rounds for record in records if record.rounds is not None]
    if own:
        return total(own)
    served = [repeat.counters.rounds() for repeat in repeats if repeat.counters is not None]
    known = [counts for counts in served if counts is not None]
    return total(known) if known and any(counts.verify_calls for counts in known) else None


def _accept_length(rounds: RoundCounts | None, records: Sequence[RequestRecord], seed: int) -> dict[str, Any] | None:
    if rounds is None or not rounds.verify_calls:
        return None
    by_cluster: dict[str, list[RoundCounts]] = defaultdict(list)
    for record in records:
        if record.rounds is not None:
            by_cluster[record.cluster].append(record.rounds)
    prompts = [total(counts) for _, counts in sorted(by_cluster.items())]
    interval = None
    if sum(counts.verify_calls > 0 for counts in prompts) >= 2:
        interval = list(bootstrap_by_prompt(prompts, RoundCounts.accept_length, seed))
    return {
        "value": rounds.accept_length(),
        "interval": interval,  # 95 %, clustered by prompt; null without counters per request
        "survival": rounds.survival() if rounds.histogram else None,
        "rounds": rounds.verify_calls,
        "prompts": len(prompts),
    }


def _step(repeats: Sequence[Repeat], records: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """Time of one decode step or speculative round; None without decode-only time (a capped server)."""
    known = [repeat.decode for repeat in repeats if repeat.decode is not None]
    if not known:
        return None
    per_round = tokens_per_round(records)
    return {
        "seconds": median(decode.seconds_per_token for decode in known) * per_round,
        "tokens_per_round": per_round,
        "running": median(decode.running for decode in known),
        "decode_only_share": median(decode.share for decode in known),
    }


def tokens_per_round(records: Sequence[RequestRecord]) -> float:
    """Tokens one request gains per step: 1 without speculation; cut rounds count as rounds here, since they took time.

    The first token of a response comes from the prefill and from no round.
    """
    pairs = [(r.completion_tokens - 1, r.rounds) for r in records if r.completion_tokens and r.rounds is not None]
    rounds = sum(counts.verify_calls + counts.cut for _, counts in pairs)
    return sum(tokens for tokens, _ in pairs) / rounds if rounds else 1.0


def _documents(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """Counters per prompt, so that they can be held against the walk over the same responses."""
    requests = Counter(record.key for record in records if record.rounds is not None)
    first = {record.key: record for record in reversed(records)}
    sums: dict[str, list[RoundCounts]] = defaultdict(list)
    for record in records:
        if record.rounds is not None:
            sums[record.key].append(record.rounds)
    return [
        {
            "key": key,
            "cluster": first[key].cluster,
            "domain": first[key].domain,
            "requests": requests[key],
            "rounds": total(sums[key]).as_dict(),
        }
        for key in sorted(sums)
    ]


def unstable(records: Sequence[RequestRecord]) -> int | None:
    """Prompts whose token ids differed between requests of this row; None when the server returns no ids."""
    seen: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for record in records:
        if record.token_ids is not None:
            seen[record.key].add(record.token_ids)
    return sum(len(texts) > 1 for texts in seen.values()) if seen else None
