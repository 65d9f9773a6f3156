"""``python -m k25stack.reference.server --target DIR [--draft DIR]``: start, serve, drain, stop.

Prints one line on stdout when it answers: ``ready http://HOST:PORT ...``.  SIGTERM and Ctrl-C stop taking requests,
let running ones finish for ``--grace`` seconds, and exit 0.  A port in use is a one-line error with exit 3.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.errors import HostError, K25Error

if TYPE_CHECKING:
    from aiohttp.web import SockSite

    from k25stack.model.tokenizer import Tokenizer
    from k25stack.reference.engine import Engine

DEFAULT_MAX_LEN = 2048
LAST_WORDS_S = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m k25stack.reference.server", description="the reference engine")
    parser.add_argument("--target", type=Path, required=True, help="model directory (Hugging Face format)")
    parser.add_argument("--draft", type=Path, help="draft directory; without it the server decodes plainly")
    parser.add_argument("--k", type=int, default=3, help="draft tokens per round")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0 takes a free one")
    parser.add_argument("--slots", type=int, default=16, help="requests decoded at once")
    parser.add_argument(
        "--max-len", type=int, help="prompt and response tokens per request; default: 2048 or the context"
    )
    parser.add_argument("--threads", type=int, default=2, help="compute threads")
    parser.add_argument("--seed", type=int, default=0, help="of sampling, for requests without one")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of weights and caches")
    parser.add_argument("--sample-rule", choices=("rejection", "target_only"), default="rejection")
    parser.add_argument("--same-rows", action="store_true", help="decode and verify with the same row count")
    parser.add_argument("--served-model-name", help="default: the target directory's name")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds that running requests get at the end")
    return parser.parse_args(argv)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening.  Raises HostError when the address is taken or not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise HostError(
            f"cannot listen: {error.strerror or error}",
            where=f"{host}:{port}",
            remedy="choose another --port or --host",
        ) from None
    return bound


async def serve(options: argparse.Namespace, bound: socket.socket) -> None:
    """Load, answer until a stop signal, drain.  Raises HostError when the engine itself fails."""
    from aiohttp import web

    from k25stack.reference.http import Service, application
    from k25stack.reference.loop import EngineLoop

    stop = asyncio.Event()
    here = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        here.add_signal_handler(number, stop.set)
    engine, tokenizer = load(options)

    def on_death() -> None:
        here.call_soon_threadsafe(stop.set)

    loop = EngineLoop(engine, on_death)
    service = Service(loop, tokenizer, options.served_model_name or options.target.resolve().name)
    runner = web.AppRunner(application(service), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    loop.start()
    try:
        await runner.setup()
        await start(web.SockSite(runner, bound), f"{options.host}:{options.port}")
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"ready http://{shown}:{port} {describe(options, service.name)}", flush=True)
        await stop.wait()
        service.draining = True
        if not loop.died:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.quiet.wait(), options.grace)
    finally:
        died = loop.died
        loop.close()  # aborts what the grace was too short for; the answers get their last words
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(service.quiet.wait(), LAST_WORDS_S)
        await runner.cleanup()
    if died:
        raise HostError("the engine failed", where="engine", remedy="see the traceback above")


async def start(site: SockSite, where: str) -> None:
    """Raises HostError when another process that bound the same port listens on it by now."""
    try:
        await site.start()
    except OSError as error:
        raise HostError(
            f"cannot listen: {error.strerror or error}", where=where, remedy="choose another --port"
        ) from None


def load(options: argparse.Namespace) -> tuple[Engine, Tokenizer]:
    from k25stack.reference.load import Launch, load_engine
    from k25stack.reference.settings import EngineConfig, longest
    from k25stack.reference.target import TargetConfig

    if options.max_len is None:
        options.max_len = min(DEFAULT_MAX_LEN, longest(TargetConfig.read(options.target).context, options.k))
    config = EngineConfig(
        slots=options.slots,
        max_len=options.max_len,
        k=options.k,
        same_rows=options.same_rows,
        sample_rule=options.sample_rule,
        seed=options.seed,
    )
    return load_engine(Launch(options.target, options.draft, config, options.dtype, options.threads))


def describe(options: argparse.Namespace, name: str) -> str:
    draft = f"draft={options.draft} k={options.k}" if options.draft else "draft=none"
    rows = " same-rows" if options.same_rows else ""
    return f"model={name} {draft} slots={options.slots} max-len={options.max_len} threads={options.threads}{rows}"


def main(argv: list[str] | None = None) -> int:
    options = arguments(sys.argv[1:] if argv is None else argv)
    try:
        with contextlib.closing(listen(options.host, options.port)) as bound:
            asyncio.run(serve(options, bound))
    except K25Error as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
