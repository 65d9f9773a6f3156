"""All-reduce over some cards of one host: are the sums right, how long does it take, by size (torch).

Every rank fills x[i] = i mod 251 + rank, so each sum is a whole number that float32 holds exactly.  Small sizes are
captured in a CUDA graph, as engines do it: the time of a call then is that of the cards, not of Python.  The lines are
those of nccl-tests: size, count, type, operation, root, then time (us), algbw, busbw (GB/s) and wrong values of two
passes in place.  They are printed as they come, so that a hang shows where it happened.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.host.live.family import Unable, run_children

if TYPE_CHECKING:
    import torch

GRAPH_UP_TO = 8 << 20  # bytes; above that the cards take longer than Python's calls
ELEMENT = 4  # bytes of a float32


def run(request: Mapping[str, Any], limit_s: float) -> int:
    """One rank per card: ``cards``, ``sizes`` (bytes), ``env`` of the ranks, ``backend`` (nccl; gloo without cards).

    ``starts`` names the ranks that really start; one that is left out never joins, which is the twin of a hang.
    """
    cards: Sequence[int] = request["cards"]
    starts = request.get("starts", range(len(cards)))
    print(f"# ranks {len(cards)} cards {','.join(map(str, cards))}", flush=True)
    with tempfile.TemporaryDirectory(prefix="k25-live-") as place:
        store = Path(place) / "store"
        return run_children([partial(_rank, request, rank, store, limit_s) for rank in starts], limit_s)


def _rank(request: Mapping[str, Any], rank: int, store: Path, limit_s: float) -> None:
    os.environ.update(request.get("env", {}))
    import torch
    import torch.distributed

    dist: Any = torch.distributed
    cards, backend = request["cards"], request.get("backend", "nccl")
    if backend == "nccl":
        if not torch.cuda.is_available() or cards[rank] >= torch.cuda.device_count():
            raise Unable(f"torch sees no card {cards[rank]}")
        torch.cuda.set_device(cards[rank])
        device = torch.device("cuda", cards[rank])
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
    meeting = dist.FileStore(str(store), len(cards))
    dist.init_process_group(
        backend,
        store=meeting,
        rank=rank,
        world_size=len(cards),
        timeout=datetime.timedelta(seconds=2 * limit_s),  # the limit decides, not this
        device_id=device if backend == "nccl" else None,
    )
    for size in request["sizes"]:
        line = _size(size // ELEMENT, rank, len(cards), device)
        if rank == 0:
            print(line, flush=True)
    # Tearing communicators down may hang, so nobody does; but nobody leaves before all have what they read from others.
    meeting.set(f"done {rank}", "")
    meeting.wait([f"done {other}" for other in range(len(cards))])
    os._exit(0)


def _size(count: int, rank: int, ranks: int, device: torch.device) -> str:
    """The line of one size."""
    import torch

    index = torch.arange(count, device=device, dtype=torch.int32) % 251
    given = index.to(torch.float32)
    columns, size = [], count * ELEMENT
    for _ in range(2):
        values = given + rank
        torch.distributed.all_reduce(values)
        wrong = int((values != given * ranks + ranks * (ranks - 1) // 2).sum())
        if wrong and rank:
            print(f"# rank {rank}: {wrong} wrong sums at {size} B", flush=True)
        seconds = _seconds(count, device)
        rate = size / seconds / 1e9
        columns.append(f"{seconds * 1e6:9.2f} {rate:8.2f} {rate * 2 * (ranks - 1) / ranks:8.2f} {wrong:6d}")
    return f"{size:12d} {count:12d} float sum -1 {' '.join(columns)}"


def _seconds(count: int, device: torch.device) -> float:
    """Seconds of one all-reduce, the mean of many."""
    import torch

    zeros = torch.zeros(count, device=device)
    size = count * ELEMENT
    repeats = 20 if size <= GRAPH_UP_TO else 5
    rounds = 10 if size <= GRAPH_UP_TO else 2

    def calls() -> None:
        for _ in range(repeats):
            torch.distributed.all_reduce(zeros)

    play: Callable[[], None] = calls
    for _ in range(2):
        torch.distributed.all_reduce(zeros)
    if device.type == "cuda":
        torch.cuda.synchronize()
        if size <= GRAPH_UP_TO:
            play = _captured(calls)
            play()
            torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        play()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / (rounds * repeats)


def _captured(calls: Callable[[], None]) -> Callable[[], None]:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        calls()
    return graph.replay
