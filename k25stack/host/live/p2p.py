"""Copies between all pairs of cards: are they right, how fast, how late (torch, CUDA's runtime).

The tables are those of NVIDIA's p2pBandwidthLatencyTest, and one more of wrong values.  Latency is that of small copies
which wait in the queue behind a pause, so that the time of the calls does not count.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k25stack.host.live.family import Unable

PAUSE_CYCLES = 40_000_000  # of the card's clock, some 20 ms: time to queue the copies
LARGE, SMALL = 128 << 20, 16  # bytes of a copy
REPEATS = 100

Table = list[list[float]]


def measure(request: Mapping[str, Any]) -> None:
    """Print the tables of all pairs of ``cards``."""
    import torch

    cards: list[int] = request["cards"]
    if not torch.cuda.is_available() or max(cards) >= torch.cuda.device_count():
        raise Unable(f"torch sees {torch.cuda.device_count()} cards, not {len(cards)}")
    runtime = _runtime()
    wrong, reach, speed, delay = (square(len(cards)) for _ in range(4))
    pairs = [(row, column) for row in range(len(cards)) for column in range(len(cards))]
    for row, column in pairs:  # the first copy opens peer access, so all are copied before any is timed
        source, goal = cards[row], cards[column]
        print(f"# copy {source} to {goal}", flush=True)
        reach[row][column] = float(source == goal or torch.cuda.can_device_access_peer(source, goal))
        wrong[row][column] = _wrong(source, goal)
    for row, column in pairs:
        source, goal = cards[row], cards[column]
        print(f"# time {source} to {goal}", flush=True)
        speed[row][column] = LARGE / _seconds(runtime, source, goal, LARGE, 8) / 1e9
        delay[row][column] = _seconds(runtime, source, goal, SMALL, REPEATS) * 1e6
    for line in tables(wrong, reach, speed, delay):
        print(line, flush=True)


def square(count: int) -> Table:
    return [[0.0] * count for _ in range(count)]


def tables(wrong: Table, reach: Table, speed: Table, delay: Table) -> list[str]:
    """The text of all tables; row: from, column: to."""
    return [
        *table("P2P Connectivity Matrix", "D\\D", reach, "{:6.0f}"),
        *table("P2P=Enabled Wrong Values Matrix", "D\\D", wrong, "{:6.0f}"),
        *table("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", "D\\D", speed, "{:8.2f}"),
        *table("P2P=Enabled Latency (P2P Writes) Matrix (us)", "GPU", delay, "{:8.2f}"),
    ]


def table(title: str, corner: str, cells: Table, form: str) -> list[str]:
    head = f"{corner:>6} " + " ".join(f"{index:8d}" for index in range(len(cells)))
    return [title, head, *(f"{row:6d} " + " ".join(map(form.format, line)) for row, line in enumerate(cells))]


def _wrong(source: int, goal: int) -> int:
    """Values that arrive altered: a pattern goes over and is compared where it arrives."""
    import torch

    def pattern(card: int) -> torch.Tensor:
        index = torch.arange(LARGE // 4, device=f"cuda:{card}", dtype=torch.int32)
        return index * 1664525 + 1013904223 + source * 97 + goal  # wraps around: all bits change

    sent, arrived = pattern(source), torch.zeros(LARGE // 4, dtype=torch.int32, device=f"cuda:{goal}")
    arrived.copy_(sent)
    torch.cuda.synchronize(goal)
    return int((arrived != pattern(goal)).sum())


def _seconds(runtime: ctypes.CDLL, source: int, goal: int, size: int, repeats: int) -> float:
    """Seconds of one copy of ``size`` bytes, queued behind a pause and timed by the card."""
    import torch

    cuda: Any = torch.cuda
    sent = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{source}")
    arrived = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{goal}")
    for card in (source, goal):
        torch.cuda.synchronize(card)
    with cuda.device(source):
        stream = cuda.Stream()
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(stream):
            cuda._sleep(PAUSE_CYCLES)
            _copy(runtime, arrived, goal, sent, source, stream)
            begin.record()
            for _ in range(repeats):
                _copy(runtime, arrived, goal, sent, source, stream)
            end.record()
        stream.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / repeats


def _copy(runtime: ctypes.CDLL, arrived: Any, goal: int, sent: Any, source: int, stream: Any) -> None:
    code = runtime.cudaMemcpyPeerAsync(
        ctypes.c_void_p(arrived.data_ptr()),
        goal,
        ctypes.c_void_p(sent.data_ptr()),
        source,
        ctypes.c_size_t(sent.numel()),
        ctypes.c_void_p(stream.cuda_stream),
    )
    if code:
        raise RuntimeError(f"CUDA error {code} when copying from card {source} to card {goal}")


def _runtime() -> ctypes.CDLL:
    """CUDA's runtime as torch has loaded it."""
    import torch

    cuda: Any = torch.cuda
    cuda.init()
    found = re.search(r"\S*/libcudart[\w.-]*\.so\S*", Path("/proc/self/maps").read_text())
    if found is None:
        raise Unable("torch has no libcudart of its own")
    return ctypes.CDLL(found.group(0))
