"""A fake engine under supervision: the fake server of the benchmark's tests, with a load phase and ways to fail.

``python tests/watch/fake_engine.py --port P --engine sglang --mode stalled --after 1`` answers /health, /metrics (under
that engine's names), /v1/models and the completion routes.  Its mode sets in after so many completions, so that the
warm request passes; ``--once FILE`` lets it fail in the first life only (FILE remembers it).

mode              what it does
ok                nothing
never-ready       /health answers 503 for ever
port-taken        prints what an engine prints then and exits 1
stalled           200 everywhere, three tokens, then none: its requests run on
truncated         a stream breaks off in the middle of an event
slow-first-token  the first token takes --slow-s
slow-sampled      the first sampled request takes --slow-s, under a process named by --compiler (a program that waits)
no-sampling       refuses sampled requests in order (400)
exit-137          kills itself with SIGKILL
gpu-lost          prints the driver's words and exits 1
crash             exits 1 with a traceback
stop              stops itself with SIGSTOP
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from k25stack.engines import reference as names
from tests.bench.fake_engine import Fake, bound, completion, models

MODES = ("ok", "never-ready", "port-taken", "stalled", "truncated", "slow-first-token", "slow-sampled", "no-sampling",
         "exit-137", "gpu-lost", "crash", "stop")  # fmt: skip
LOAD = {
    "sglang": (
        "Load weight begin. avail mem=90.00 GB",
        "Load weight end. elapsed=1.00 s",
        "Capture decode CUDA graph begin. ",
    ),
    "vllm": ("Starting to load model fake...", "Loading weights took 1.00 seconds", "Capturing CUDA graphs"),
    "reference": (),
}
LOST = "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU"


@dataclass
class Supervised(Fake):
    engine: str = "reference"
    mode: str = "ok"
    after: int = 1
    slow_s: float = 0.0
    compiler: str = ""
    compiled: bool = False
    finished_tokens: int = 0


async def answer(fake: Fake, request: web.Request) -> web.StreamResponse:
    assert isinstance(fake, Supervised)
    if fake.completions >= fake.after:
        misbehave(fake)
    sampled = (await request.json()).get("temperature")
    if sampled and fake.mode == "no-sampling":
        return web.json_response({"error": {"message": "greedy requests only"}}, status=400)
    if sampled and fake.mode == "slow-sampled" and not fake.compiled:
        await compile_first(fake)
    return await completion(fake, request)


async def compile_first(fake: Supervised) -> None:
    """As an engine that builds a kernel in the middle of a request: it counts as running, and no token comes."""
    fake.compiled = True
    fake.running += 1
    builder = subprocess.Popen([fake.compiler, "3600"]) if fake.compiler else None
    await asyncio.sleep(fake.slow_s)
    fake.running -= 1
    if builder is not None:
        builder.kill()
        builder.wait()


def misbehave(fake: Supervised) -> None:
    if fake.mode == "stalled":
        fake.fault = "stall"
    elif fake.mode == "truncated":
        fake.fault = "truncate"
    elif fake.mode == "slow-first-token":
        fake.ttft_s = fake.slow_s
    elif fake.mode == "exit-137":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fake.mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fake.mode == "gpu-lost":
        print(LOST, file=sys.stderr, flush=True)
        os._exit(1)
    elif fake.mode == "crash":
        print("Traceback (most recent call last):\nRuntimeError: broken on purpose", file=sys.stderr, flush=True)
        os._exit(1)


async def health(fake: Fake, _: web.Request) -> web.StreamResponse:
    assert isinstance(fake, Supervised)
    return web.Response(status=503 if fake.mode == "never-ready" else 200)


async def metrics(fake: Fake, _: web.Request) -> web.StreamResponse:
    """SGLang moves one counter with every step and another only at the end of a request; vLLM moves one."""
    assert isinstance(fake, Supervised)
    if fake.engine == "sglang":
        rank = 'model_name="fake",tp_rank="0"'
        lines = [
            f"sglang:num_running_reqs{{{rank}}} {fake.running}.0",
            f"sglang:num_queue_reqs{{{rank}}} 0.0",
            f'sglang:realtime_tokens_total{{{rank},mode="decode"}} {fake.generated}.0',
            f"sglang:generation_tokens_total{{{rank}}} 0.0",
        ]
    elif fake.engine == "vllm":
        rank = 'engine="0",model_name="fake"'
        lines = [
            f"vllm:num_requests_running{{{rank}}} {fake.running}.0",
            f"vllm:num_requests_waiting{{{rank}}} 0.0",
            f"vllm:generation_tokens_total{{{rank}}} {fake.generated}.0",
            f"vllm:prompt_tokens_total{{{rank}}} 0.0",
        ]
    else:
        lines = [f"{names.RUNNING} {fake.running}", f"{names.WAITING} 0", f"{names.GENERATION_TOKENS} {fake.generated}"]
    # as much text as a real engine's histograms
    lines += [f'fake:bucket{{le="{i}",l{i % 7}="{"x" * 40}"}} {i}' for i in range(400)]
    return web.Response(text="\n".join(lines) + "\n")


def first_life(once: str | None) -> bool:
    """True in the first life, which leaves ``once`` behind."""
    if once is None:
        return True
    try:
        Path(once).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def serve(options: argparse.Namespace) -> None:
    mode = options.mode if first_life(options.once) else "ok"
    if mode == "port-taken":
        print(f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {options.port}): address already in "
              "use", file=sys.stderr, flush=True)  # fmt: skip
        raise SystemExit(1)
    for line in LOAD[options.engine]:
        print(line, flush=True)
        await asyncio.sleep(options.load_s / 3)
    if options.orphan:  # a grandchild in a session of its own whose parent is gone, and a child nobody waits for
        subprocess.run(["sh", "-c", "setsid sleep 3600 & echo orphan $!"], check=True)
        subprocess.run(["sh", "-c", "true &"], check=True)
    fake = Supervised(
        ttft_s=options.ttft_ms / 1000, step_s=options.step_ms / 1000, accepted=(), k=3,
        slots=asyncio.Semaphore(10_000), fault="none", fault_every=1, ids=False, engine=options.engine, mode=mode,
        after=options.after, slow_s=options.slow_s, compiler=options.compiler,
    )  # fmt: skip
    app = web.Application()
    app.router.add_get("/health", bound(fake, health))
    app.router.add_get("/v1/models", bound(fake, models))
    app.router.add_get("/metrics", bound(fake, metrics))
    app.router.add_post("/v1/completions", bound(fake, answer))
    app.router.add_post("/v1/chat/completions", bound(fake, answer))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, (lambda: None) if options.deaf else stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: print("got SIGUSR1", flush=True))
    print("Application startup complete", flush=True)
    await stop.wait()
    await runner.cleanup()  # cuts what still runs, as an engine does that does not drain


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", choices=tuple(LOAD), default="reference")
    parser.add_argument("--mode", choices=MODES, default="ok")
    parser.add_argument("--after", type=int, default=1, help="completions before the mode sets in")
    parser.add_argument("--once", help="file that remembers the first life; later ones are ok")
    parser.add_argument("--slow-s", type=float, default=5.0)
    parser.add_argument("--compiler", default="", help="program that waits so many seconds, under a compiler's name")
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--orphan", action="store_true")
    parser.add_argument("--deaf", action="store_true", help="do not end at SIGTERM")
    asyncio.run(serve(parser.parse_args()))
