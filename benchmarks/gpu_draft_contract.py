"""A portable Kimi-shaped draft and broken ones in a real SGLang on one GPU: does each do what the check predicts?

    python benchmarks/gpu_draft_contract.py WORK_DIR OUT.json [CASE ...]

Target: a slice of Kimi-K2.5 at its full width (8 layers, 16 experts) whose text is known beforehand.  Draft: 1.19
billion weights that foresee all of it (`clockwork`).  Each case says beforehand what the contract predicts:
``accepts`` (accept length k + 1), ``raises`` or ``silent`` (the server answers, nothing is ever accepted).
The first case also keeps the engine's own account of its memory beside our plan's, and what ``k25stack check URL`` says
of the server.  Needs sglang with its kernels, torch with CUDA, and one card of 96 GB or more.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from clockwork import Clock, cycle_ids, draft_tensors, expected, prompts, write_target, write_tokenizer
from safetensors.torch import load_file, save_file

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.launch import check_argv
from k25stack.contract.url import UrlQuestion, check_url
from k25stack.draft.config import config_json
from k25stack.draft.package import bfloat16_part, map_parts, write_draft
from k25stack.draft.spec import PRESETS
from k25stack.draft.target import TargetFacts
from k25stack.draft.weightfile import WeightFile

SPEC = PRESETS["kimi-k2.5"]
LAYERS = (2, 4, 5)  # SGLang's default for 8 layers: 2, n // 2, n - 3
CLOCK = Clock(SPEC.hidden, SPEC.target_vocab)
CONTEXT, TOKENS = 8192, 96
START_S = 300
PORT = 30111


@dataclass(frozen=True)
class Case:
    name: str
    predicted: str  # accepts | raises | silent
    trap: str
    algorithm: str = "EAGLE3"


CASES = (
    Case("portable", "accepts", "-"),
    Case("null_target_hidden_size", "raises", "C6: null counts as another width"),
    Case("no_draft_vocab_size", "raises", "C3: the key is read as an attribute"),
    Case("vllm_architecture", "raises", "C1: spelling that SGLang does not register"),
    Case("unknown_layer_keys", "silent", "T2: unknown keys are dropped, missing ones not noticed"),
    Case("eagle_algorithm", "silent", "T1: EAGLE hands over 7168, fc is bypassed", "EAGLE"),
)
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
    "hidden_size": 7168, "num_hidden_layers": 8, "num_attention_heads": 64, "num_key_value_heads": 64,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 16, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 163840, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 50000.0,
    "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5, "attention_bias": False,
    "bos_token_id": 0, "eos_token_id": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip


def make_target(directory: Path) -> Path:
    """The slice: config, weights (16.5 GB, of which 10 are holes) and a tokenizer."""
    if not (directory / "tokenizer_config.json").exists():
        device = "cuda" if torch.cuda.is_available() else "cpu"
        write_target(directory, CONFIG, CLOCK, device, empty_experts=True)
        write_tokenizer(directory, CLOCK, CONTEXT)
    return directory


def write_portable(directory: Path, target: Path, work: Path) -> Path:
    """The good draft, by the package's own writer."""
    ids = cycle_ids(CLOCK, SPEC.draft_vocab)
    held = torch.zeros(SPEC.target_vocab, dtype=torch.bool)
    held[ids] = True
    save_file({"d2t": ids - torch.arange(len(ids)), "t2d": held}, work / "vocab.safetensors")
    shapes = SPEC.weights()
    parts = [bfloat16_part(name, shapes[name], make) for name, make in draft_tensors(shapes, CLOCK, ids).items()]
    parts += map_parts(SPEC, WeightFile.open(work / "vocab.safetensors"))
    config = config_json(SPEC, TargetFacts.read(target), LAYERS)
    write_draft(directory, config, parts, {"canonical_layers": list(LAYERS), "k": 3})
    return directory


def break_draft(good: Path, case: Case, directory: Path) -> Path:
    """A copy of the good draft with one thing wrong."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name in ("k25stack.json", "model.safetensors"):
        (directory / name).symlink_to(good / name)
    config = json.loads((good / "config.json").read_text())
    if case.name == "null_target_hidden_size":
        config["target_hidden_size"] = None
    elif case.name == "no_draft_vocab_size":
        del config["draft_vocab_size"]
    elif case.name == "vllm_architecture":
        config["architectures"] = ["Eagle3LlamaForCausalLM"]
    elif case.name == "unknown_layer_keys":
        tensors = load_file(good / "model.safetensors")
        (directory / "model.safetensors").unlink()
        renamed = {name.replace("midlayer.", "layer0."): value for name, value in tensors.items()}
        save_file(renamed, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def ask(path: str, body: dict[str, Any] | None = None, timeout: float = 60.0) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def argv(case: Case, target: Path, draft: Path) -> list[str]:
    return [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(target), "--served-model-name", "slice",
        "--enable-metrics", "--tp-size", "1", "--attention-backend", "triton", "--grammar-backend", "none",
        "--sampling-backend", "pytorch", "--mem-fraction-static", "0.6", "--random-seed", "1", "--port", str(PORT),
        "--max-total-tokens", "65536", "--max-running-requests", "8", "--disable-radix-cache",
        "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
        "--speculative-algorithm", case.algorithm, "--speculative-draft-model-path", str(draft),
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    ]  # fmt: skip


def serve(case: Case, target: Path, draft: Path, log: Path) -> dict[str, Any]:
    """Start the engine with this draft; what happened, and the raw counters of a few replies."""
    started = time.monotonic()
    with log.open("w") as file:
        command = argv(case, target, draft)
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        while time.monotonic() - started < START_S:
            if server.poll() is not None:
                return {"outcome": "raises", "seconds": time.monotonic() - started, "error": last_error(log)}
            try:
                ask("/health", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
            if "Traceback" in log.read_text(errors="replace") and "Error" in last_error(log):
                time.sleep(3)
                return {"outcome": "raises", "seconds": time.monotonic() - started, "error": last_error(log)}
        else:
            return {"outcome": "no start", "seconds": START_S, "error": last_error(log)}
        row = {"seconds": time.monotonic() - started, **replies()}
        if case.name == "portable":
            row |= {"memory": reported(log), "check_url": checked(draft, log)}
        return row
    finally:
        subprocess.run(["pkill", "-9", "-s", str(server.pid)], check=False)
        server.wait()
        time.sleep(2)


def replies() -> dict[str, Any]:
    """Answers to random prompts: the raw counters over all of them, and how many greedy texts are the known one."""
    verify = accepted = proposed = tokens = known = greedy = 0
    for number, ids in enumerate(prompts(CLOCK, 6, 64)):
        sampling = {"temperature": 0.0 if number < 4 else 1.0, "max_new_tokens": TOKENS, "ignore_eos": True}
        reply = ask("/generate", {"input_ids": ids, "sampling_params": sampling}, timeout=180)
        meta = reply["meta_info"]
        greedy += number < 4
        known += number < 4 and reply.get("output_ids") == expected(CLOCK, ids, TOKENS)
        verify += meta["spec_verify_ct"]
        accepted += meta["spec_num_correct_drafts"]
        proposed += meta["spec_num_proposed_drafts"]
        tokens += meta["completion_tokens"]
    length = 1 + accepted / verify
    return {
        "outcome": "accepts" if length > 3.5 else "silent" if length < 1.05 else "accepts a part",
        "verify_calls": verify, "accepted": accepted, "proposed": proposed, "completion_tokens": tokens,
        "accept_length": length, "known_texts": f"{known} of {greedy}",
    }  # fmt: skip


MEMORY = (
    ("weights_gb", r"Load weight end.*?type=(\w+).*?mem usage=([\d.]+) GB"),
    (
        "pool",
        r"KV Cache is allocated.*?#tokens: (\d+), (?:KV size: ([\d.]+) GB|K size: ([\d.]+) GB, V size: ([\d.]+) GB)",
    ),
    ("end", r"max_total_num_tokens=(\d+).*?available_gpu_mem=([\d.]+) GB"),
)


def reported(log: Path) -> dict[str, Any]:
    """The engine's own figures: its GB are 2**30 bytes."""
    text = log.read_text(errors="replace")
    found: dict[str, Any] = {
        name: [[word for word in groups if word] for groups in re.findall(pattern, text)] for name, pattern in MEMORY
    }
    smi = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader"]
    found["nvidia_smi"] = subprocess.run(smi, text=True, capture_output=True, check=False).stdout.strip()
    return found


def checked(draft: Path, log: Path) -> dict[str, Any]:
    """What ``k25stack check URL`` says of this server: real requests, raw counters."""
    decode = {"kind": "greedy", "temperature": 0.0, "max_new_tokens": 128}
    rows = [{"doc_id": f"d{number}", "turn": 1, "domain": "ids", "split": "held_out", "prompt_ids": ids,
             "decode": decode} for number, ids in enumerate(prompts(CLOCK, 80, 64))]  # fmt: skip
    samples = log.with_name("samples.jsonl")
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    question = UrlQuestion(draft=draft, samples=samples, log=log, layers=LAYERS, rounds=1500, seconds=90)
    started = time.monotonic()
    result = check_url(f"http://127.0.0.1:{PORT}", question).as_dict()
    for check in result["checks"]:
        check["evidence"].pop("info", None)  # hundreds of arguments
    return {"seconds": time.monotonic() - started, **result}


def last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line and not line.startswith("File")]
    return errors[-1][-300:] if errors else (lines[-1][-300:] if lines else "")


def contract(case: Case, draft: Path, target: Path) -> list[str]:
    """Ids and verdicts of the checks of draft and launch line that do not pass for SGLang 0.5.16."""
    engine = "sglang@0.5.16"
    results = (
        check_draft(draft, [engine], Question(target=TargetFacts.read(target))),
        check_argv(argv(case, target, draft), engine),
    )
    checks = [check for result in results for check in result.checks]
    return [f"{check.id} {check.verdict}: {check.message}" for check in checks if check.verdict != "pass"]


def main() -> int:
    started = time.monotonic()
    work, out = Path(sys.argv[1]), Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    target = make_target(work / "target")
    good = work / "portable"
    if not good.exists():
        write_portable(good, target, work)
    print(f"target and draft after {time.monotonic() - started:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    wanted = sys.argv[3:]
    for case in CASES:
        if wanted and case.name not in wanted:
            continue
        altered = case.name not in ("portable", "eagle_algorithm")
        draft = break_draft(good, case, work / case.name) if altered else good
        found = contract(case, draft, target)
        row = {"case": case.name, "trap": case.trap, "predicted": case.predicted, "contract": found}
        row |= serve(case, target, draft, work / f"{case.name}.log")
        rows.append(row)
        print(json.dumps({**row, "total_seconds": time.monotonic() - started}), flush=True)
        out.write_text(json.dumps(summary(rows), indent=2) + "\n")
        shutil.copy(work / f"{case.name}.log", out.parent / f"{case.name}.log")
    return 1 if any(row["outcome"] != row["predicted"] for row in rows) else 0


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "command": "python benchmarks/gpu_draft_contract.py WORK OUT " + " ".join(sys.argv[3:]),
        "gpu": torch.cuda.get_device_name(0),
        "versions": {name: version(name) for name in ("torch", "sglang", "transformers")},
        "parameters": SPEC.parameters(with_embedding=False),
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
