"""``k25stack check URL`` on a real engine that serves a draft which must be accepted whole, in about four minutes.

    python benchmarks/gpu_check_url.py WORK_DIR OUT.json [--seconds 300] [--vllm BIN_DIR]

Target and draft: `clockwork_llama`, 22 and 17 MB, so that an engine starts as fast as it can.  SGLang 0.5.16 is meant;
with ``--vllm`` the vLLM of that environment is asked instead (as ``make env-vllm`` makes it).  OUT.json is written anew
after every part, and the engine's log lies beside it: a run that is cut keeps what it has.  SGLang compiles its small
kernels one after another in the first requests, FlashInfer's for sampling among them (gpu_first_request.py); here they
are compiled side by side while it starts (``warm.log``), and the kinds are asked when that is done.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

PORT = 30112
URL = f"http://127.0.0.1:{PORT}"
ROUNDS, TOKENS = 1500, 64
REPLIES = 4
# SGLang's kernels of this target and draft: module, function, arguments (bfloat16 for "b").
KERNELS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("norm", "_jit_rmsnorm_module", (512, "b")),
    ("norm", "_jit_fused_add_rmsnorm_module", ("b", False)),
    ("activation", "_jit_activation_module", ("b",)),
    ("rope", "_jit_fused_rope_module", (True, 64, "b")),
    ("kvcache", "_jit_kvcache_module", (256,)),
    ("clamp_position", "_jit_clamp_position_module", ("l",)),
)
# Without dynamo: compiling a few helpers would cost the first request many seconds.
SGLANG_ENV = {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}
VLLM_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # fmt: skip


class Book:
    """OUT.json, written anew with every part."""

    def __init__(self, path: Path) -> None:
        self.path, self.started = path, time.monotonic()
        self.found: dict[str, Any] = {"command": "python " + " ".join(sys.argv), "state": "running", "at_seconds": {}}

    def put(self, part: str, value: Any) -> None:
        self.found[part] = value
        self.found["at_seconds"][part] = round(self.seconds(), 1)
        self.save()
        print(f"{self.seconds():6.1f} s  {part}", flush=True)

    def save(self) -> None:
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(self.found, indent=2, default=str) + "\n")
        part.replace(self.path)

    def seconds(self) -> float:
        return time.monotonic() - self.started


def warm() -> None:
    """Compile SGLang's kernels side by side into the place where the engine looks for them."""
    from concurrent.futures import ThreadPoolExecutor
    from importlib import import_module

    import torch
    from sglang.jit_kernel.utils import get_jit_cuda_arch  # type: ignore[import-not-found,unused-ignore]

    kinds = {"b": torch.bfloat16, "l": torch.int64}
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = get_jit_cuda_arch().target_name

    def one(module: str, name: str, arguments: tuple[Any, ...]) -> float:
        begun = time.monotonic()
        make = getattr(import_module(f"sglang.jit_kernel.{module}"), name)
        make(*(kinds[value] if isinstance(value, str) else value for value in arguments))
        return time.monotonic() - begun

    def sampling() -> float:
        begun = time.monotonic()
        import_module("flashinfer.sampling").get_sampling_module()
        return time.monotonic() - begun

    for module in {module for module, _, _ in KERNELS}:
        import_module(f"sglang.jit_kernel.{module}")
    with ThreadPoolExecutor(len(KERNELS) + 1) as pool:
        running = {kernel[1]: pool.submit(one, *kernel) for kernel in KERNELS}
        running["sampling"] = pool.submit(sampling)
        for name, future in running.items():
            error = future.exception()
            print(name, error or f"{future.result():.1f} s", flush=True)


def sglang_argv(target: Path, draft: Path) -> list[str]:
    return [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(target), "--served-model-name", "clock",
        "--enable-metrics", "--tp-size", "1", "--attention-backend", "triton", "--grammar-backend", "none",
        "--sampling-backend", "pytorch", "--mem-fraction-static", "0.6", "--random-seed", "1", "--port", str(PORT),
        "--max-total-tokens", "65536", "--max-running-requests", "8", "--disable-cuda-graph", "--disable-radix-cache",
        "--skip-server-warmup", "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft),
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    ]  # fmt: skip


def vllm_argv(bin_dir: Path, target: Path, draft: Path) -> list[str]:
    speculative = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3}
    return [str(bin_dir / "vllm"), "serve", str(target), "--served-model-name", "clock", "--host", "127.0.0.1",
            "--port", str(PORT), "--max-num-seqs", "8", "--enforce-eager",
            "--speculative-config", json.dumps(speculative)]  # fmt: skip


def ask(path: str, body: dict[str, Any] | None = None, timeout: float = 5.0) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def wait(server: subprocess.Popen[bytes], log: Path) -> str:
    """Until the server lists its model; what its log says when it ends before."""
    while server.poll() is None:
        try:
            ask("/v1/models")
            return ""
        except (urllib.error.URLError, OSError, ValueError):
            time.sleep(0.5)
    return log.read_text(errors="replace")[-3000:]


def replies(native: bool, book: Book) -> None:
    """A few answers to random prompts: raw counters, and whether the text is the known one.  The first one is slow."""
    from clockwork import expected, prompts
    from clockwork_llama import CLOCK

    rows: list[dict[str, Any]] = []
    for ids in prompts(CLOCK, REPLIES, 64):
        body: dict[str, Any]
        begun = time.monotonic()
        if native:
            body = {"input_ids": ids, "sampling_params": {"temperature": 0.0, "max_new_tokens": TOKENS}}
            reply = ask("/generate", body, timeout=170)
            meta, output = reply["meta_info"], reply.get("output_ids")
            counters = {name: value for name, value in meta.items() if name.startswith("spec_")}
        else:
            body = {"model": "clock", "prompt": ids, "max_tokens": TOKENS, "temperature": 0.0, "return_token_ids": True}
            output, counters = ask("/v1/completions", body, timeout=170)["choices"][0]["token_ids"], {}
        known = output == expected(CLOCK, ids, TOKENS)
        rows.append({"seconds": time.monotonic() - begun, "known_text": known, "tokens": len(output or ()), **counters})
        book.put("replies", rows)


def checked(target: Path, draft: Path, log: Path, book: Book, seconds: float) -> None:
    """``check URL --draft --target``, then one request of every kind, each kept as it comes."""
    from clockwork_llama import LAYERS

    from k25stack.bench.kinds import KINDS, run_kinds
    from k25stack.contract.url import UrlQuestion, check_url
    from k25stack.errors import HostError

    begun = time.monotonic()
    question = UrlQuestion(draft, target, log=log, layers=LAYERS, rounds=ROUNDS, seconds=max(10.0, seconds))
    result = check_url(URL, question).as_dict()
    for check in result["checks"]:
        check["evidence"].pop("info", None)  # hundreds of arguments
    book.put("check_url", {"seconds": time.monotonic() - begun, **result})
    kinds: list[dict[str, Any]] = []
    for name in KINDS:
        try:
            (one,) = run_kinds(URL, (name,), timeout_s=30)
            kinds.append({"kind": one.kind, "outcome": one.outcome, "detail": one.detail, "seconds": one.seconds})
        except HostError as error:
            kinds.append({"kind": name, "outcome": "no answer", "detail": str(error)})
        book.put("kinds", kinds)


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("torch", "sglang", "transformers", "triton", "aiohttp"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not here"
    return found


def cut(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)  # the clean-up is not cut again
    raise TimeoutError(f"cut by signal {number}")


def started(argv: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)


def run(options: argparse.Namespace, book: Book) -> str:
    """How it ended: ``done``, or what stopped it."""
    work, log = options.work.absolute(), options.out.with_suffix(".log")
    work.mkdir(parents=True, exist_ok=True)
    running: list[subprocess.Popen[bytes]] = []
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", PORT))  # another server there would be taken for this one
    try:
        added = SGLANG_ENV
        if options.vllm is not None:
            added = VLLM_ENV | {"PATH": os.pathsep.join([str(options.vllm), os.environ["PATH"]])}
        env = {**os.environ, **added}
        if options.vllm is None:
            running.append(started([sys.executable, __file__, "--warm"], options.out.with_name("warm.log"), env))
        book.put("versions", versions())
        from clockwork_llama import write_foreseeing, write_llama

        target = write_llama(work / "target")
        draft = write_foreseeing(work / "draft", target)
        book.put("draft", json.loads((draft / "config.json").read_text()))
        argv = sglang_argv(target, draft) if options.vllm is None else vllm_argv(options.vllm, target, draft)
        running.append(started(argv, log, env))
        book.put("argv", {"words": argv, "added_env": added})
        if problem := wait(running[-1], log):
            book.put("error", problem)
            return "the engine did not start"
        book.put("listening", True)
        replies(options.vllm is None, book)
        if options.vllm is None:
            book.put("compiled", running[0].wait())
        checked(target, draft, log, book, options.seconds - book.seconds() - 15)
        return "done"
    finally:
        signal.alarm(0)
        for one in running:
            subprocess.run(["pkill", "-9", "-s", str(one.pid)], check=False)  # the session that was started here
            one.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="check URL on a real engine with a draft that foresees all")
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=int, default=300, help="time for everything")
    parser.add_argument("--vllm", type=Path, help="bin directory of an environment with vLLM, instead of SGLang")
    options = parser.parse_args()
    options.out = options.out.absolute()
    if options.vllm is not None:
        options.vllm = options.vllm.absolute()
    book = Book(options.out)
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, cut)
    signal.alarm(options.seconds)
    try:
        state = run(options, book)
    except BaseException as error:
        book.put("error", f"{type(error).__name__}: {error}"[:2000])
        book.found["state"] = "cut" if isinstance(error, TimeoutError) else "failed"
        book.save()
        raise
    book.found["state"] = state
    book.put("seconds", book.seconds())
    failed = [one for one in book.found.get("check_url", {}).get("checks", ()) if one["verdict"] == "fail"]
    return 0 if state == "done" and not failed else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--warm"]:
        warm()
    else:
        sys.exit(main())
