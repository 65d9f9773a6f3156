"""Runs in the engine's own environment: load one draft after another in one process and say what became of each.

``python many_drafts.py SPEC.json`` with {"cases": [{"name", "target", "draft" | null, "judges": [names]}], "prompts":
[[ids]], "k", "max_tokens"}; prints one line ``RESULT {...}`` per case: what was raised, or the counters and outputs.

A case without a draft may judge the outputs of earlier cases of the same target (`judged`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory


def counters(llm: LLM) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name:
            found[metric.name.removeprefix("vllm:spec_decode_")] = getattr(metric, "value", None) or getattr(
                metric, "values", 0
            )
    return found


def gap(logprobs: dict[int, Any], first: int, second: int) -> float:
    """How much more likely ``first`` is; infinite when the engine did not list ``second``."""
    return logprobs[first].logprob - logprobs[second].logprob if second in logprobs else float("inf")


def judged(llm: LLM, spec: dict[str, Any], outputs: list[Any], others: dict[str, list[list[int]]]) -> dict[str, Any]:
    """First divergences of others' outputs from this engine's own, held against the noise of its two leading logits.

    ``noise``: the most by which the gap of the two leading tokens differs between decoding in a batch and a prefill of
    the same text.  A divergence is a tie when the other token's gap in that prefill is no larger, else a fault.
    """
    own = [list(output.outputs[0].token_ids) for output in outputs]
    texts = [{"prompt_token_ids": [*ids, *tokens]} for ids, tokens in zip(spec["prompts"], own, strict=True)]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=20, detokenize=False)
    scored = []
    for text in texts:  # one at a time: another batch shape than while generating
        scored.append(llm.generate([text], sampling, use_tqdm=False)[0].prompt_logprobs)
    noise = 0.0
    for ids, output, prefill in zip(spec["prompts"], outputs, scored, strict=True):
        for place, decoded in enumerate(output.outputs[0].logprobs):
            first, second = sorted(decoded, key=lambda token: -decoded[token].logprob)[:2]
            again = prefill[len(ids) + place]
            if first in again and second in again:
                noise = max(noise, abs(gap(decoded, first, second) - gap(again, first, second)))
    verdicts: dict[str, Any] = {"noise": noise}
    for name, theirs in others.items():
        equal, ties, faults = 0, 0, []
        for ids, mine, other, prefill in zip(spec["prompts"], own, theirs, scored, strict=True):
            parted = [place for place, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1]]
            if not parted:
                equal += 1
                continue
            apart = gap(prefill[len(ids) + parted[0]], mine[parted[0]], other[parted[0]])
            ties += apart <= noise
            faults += [apart] if apart > noise else []
        verdicts[name] = {"equal": equal, "ties": ties, "faults": len(faults), "least_fault": min(faults, default=None)}
    return verdicts


def run(case: dict[str, Any], spec: dict[str, Any], earlier: dict[str, list[list[int]]]) -> dict[str, Any]:
    llm = None
    try:
        speculative = {"method": "eagle3", "model": case["draft"], "num_speculative_tokens": spec["k"]}
        llm = LLM(case["target"], speculative_config=speculative if case["draft"] else None, max_model_len=256,
                  max_num_seqs=16, enforce_eager=True, disable_log_stats=False, seed=0,
                  distributed_executor_backend="uni", enable_prefix_caching=False)  # fmt: skip
        before = counters(llm)
        sampling = SamplingParams(temperature=0.0, max_tokens=spec["max_tokens"], ignore_eos=True, detokenize=False,
                                  logprobs=2 if case.get("judges") else None)  # fmt: skip
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in spec["prompts"]], sampling, use_tqdm=False)
        after = counters(llm)
        texts = [list(output.outputs[0].token_ids) for output in outputs]
        found = {"raised": None, "before": before, "after": after, "outputs": texts}
        if case.get("judges"):
            others = {name: earlier[name] for name in case["judges"] if earlier[name]}  # those that served
            # A verifier that lets one wrong token through must be seen.
            others["wrong"] = [[(t + 1) % 512 if i == 40 else t for i, t in enumerate(text)] for text in texts]
            found["judged"] = judged(llm, spec, outputs, others)
        return found
    except BaseException as error:  # whatever an engine dies of is the result here
        return {"raised": f"{type(error).__name__}: {error}"[:600]}
    finally:
        del llm
        with contextlib.suppress(Exception):
            cleanup_dist_env_and_memory()
        gc.collect()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    outputs: dict[str, list[list[int]]] = {}
    for case in spec["cases"]:
        started = time.monotonic()
        result = run(case, spec, outputs)
        outputs[case["name"]] = result.get("outputs", [])
        seconds = time.monotonic() - started
        print("RESULT", json.dumps({"name": case["name"], "seconds": seconds, **result}), flush=True)


if __name__ == "__main__":
    main()
