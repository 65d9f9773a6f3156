"""Load under supervision for a while: ``python tests/watch/soak.py --seconds 3600`` (nightly; CI takes 30 s).

Prints one JSON object: requests, tokens, restarts, misses, and what the supervisor itself took: seconds of a core per
second in per cent (user and system time of its process, /proc/PID/stat) and its largest resident memory in MB (10^6
bytes, VmHWM).  Exit 1 when anything was restarted or a request was cut.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.watch.conftest import BODY, Watched

TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


async def load(url: str, until: float, streams: int) -> dict[str, int]:
    """Streams side by side, each asking again and again; ``cut`` counts answers without their end."""
    counts = {"requests": 0, "tokens": 0, "cut": 0}

    async def ask(session: aiohttp.ClientSession, number: int) -> None:
        tokens = 20 + 10 * number
        while time.monotonic() < until:
            try:
                async with session.post(f"{url}/v1/completions", json={**BODY, "max_tokens": tokens}) as reply:
                    whole = (await reply.read()).rstrip().endswith(b"[DONE]")
            except aiohttp.ClientError:
                whole = False
            counts["requests"] += 1
            counts["tokens"] += tokens * whole
            counts["cut"] += not whole
            await asyncio.sleep(0.5 * (number % 3))  # idle moments too

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(ask(session, number) for number in range(streams)))
    return counts


def soak(root: Path, seconds: float, engine: str = "sglang", beat: float = 1.0, streams: int = 8) -> dict[str, Any]:
    one = Watched(root, engine, beat=beat).start("--step-ms", "40", "--ttft-ms", "200").ready(60)
    try:
        assert one.process is not None
        pid = one.process.pid
        cpu, begun = cpu_s(pid), time.monotonic()
        counts = asyncio.run(load(one.url, begun + seconds, streams))
        wall = time.monotonic() - begun
        status = one.status()
        if status["restarts"]:
            print(one.log(), file=sys.stderr)
        return {
            "seconds": round(wall, 1), "heartbeat_s": beat, "streams": streams, **counts,
            "restarts": status["restarts"], "misses": status["misses"],
            "core_percent": round(100 * (cpu_s(pid) - cpu) / wall, 3), "peak_rss_mb": round(peak_mb(pid), 1),
        }  # fmt: skip
    finally:
        one.signal(15)
        one.end(30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--engine", choices=("sglang", "vllm", "reference"), default="sglang")
    parser.add_argument("--heartbeat", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = soak(Path(place), options.seconds, options.engine, options.heartbeat, options.streams)
    print(json.dumps(found))
    sys.exit(1 if found["restarts"] or found["cut"] else 0)
