"""Runs in the engine's own environment: load one draft after another in one process and say what became of each.

``python many_drafts.py SPEC.json`` with {"cases": [{"name", "target", "draft" | null}], "prompts": [[ids]], "k",
"max_tokens"}; prints one line ``RESULT {...}`` per case: what was raised, or the counters and outputs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
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


def run(case: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    llm = None
    try:
        speculative = {"method": "eagle3", "model": case["draft"], "num_speculative_tokens": spec["k"]}
        llm = LLM(case["target"], speculative_config=speculative if case["draft"] else None, max_model_len=256,
                  max_num_seqs=16, enforce_eager=True, disable_log_stats=False, seed=0,
                  distributed_executor_backend="uni", enable_prefix_caching=False)  # fmt: skip
        before = counters(llm)
        sampling = SamplingParams(temperature=0.0, max_tokens=spec["max_tokens"], ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in spec["prompts"]], sampling, use_tqdm=False)
        after = counters(llm)
        texts = [list(output.outputs[0].token_ids) for output in outputs]
        return {"raised": None, "before": before, "after": after, "outputs": texts}
    except BaseException as error:  # whatever an engine dies of is the result here
        return {"raised": f"{type(error).__name__}: {error}"[:600]}
    finally:
        del llm
        with contextlib.suppress(Exception):
            cleanup_dist_env_and_memory()
        gc.collect()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    for case in spec["cases"]:
        print("RESULT", json.dumps({"name": case["name"], **run(case, spec)}), flush=True)


if __name__ == "__main__":
    main()
