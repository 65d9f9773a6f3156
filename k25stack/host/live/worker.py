"""The program that measures: ``python -m k25stack.host.live.worker``; requests on stdin, answers on stdout.

A request is one line of JSON, ``{"job": "allreduce", "limit_s": 60, ...}``; the answer ends with ``# end CODE``:
0 done, 69 not possible here, 70 failed, 124 no end within the limit.  The process itself never touches a card.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from k25stack.host.live import allreduce, disk, load, p2p
from k25stack.host.live.family import UNABLE, Unable, run_children

Request = Mapping[str, Any]


def probe(request: Request) -> None:
    """What this Python can measure, as one JSON object."""
    import torch

    cuda: Any = torch.cuda
    cards = cuda.device_count() if cuda.is_available() else 0
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "cards": cards}
    if cards:
        found["names"] = [cuda.get_device_name(card) for card in range(cards)]
        found["nccl"] = ".".join(str(part) for part in cuda.nccl.version())
    print(json.dumps(found), flush=True)


ALONE: Mapping[str, Callable[[Request], None]] = {
    "probe": probe,
    "p2p": p2p.measure,
    "load": load.measure,
    "disk": disk.measure,
}
NEEDS_TORCH = ("probe", "p2p", "load", "allreduce")


def answer(request: Request) -> int:
    """Do one job; prints its lines and returns its exit code."""
    job, limit_s = str(request["job"]), float(request["limit_s"])
    if job in NEEDS_TORCH:
        if importlib.util.find_spec("torch") is None:
            print(f"# no torch in {sys.executable}", flush=True)
            return UNABLE
        import torch  # once, before the children are made

        del torch
    if job == "allreduce":
        return allreduce.run(request, limit_s)
    return run_children([lambda: ALONE[job](request)], limit_s)


def main() -> int:
    for line in sys.stdin:
        try:
            code = answer(json.loads(line))
        except Unable as reason:
            print(f"# {reason}", flush=True)
            code = UNABLE
        print(f"# end {code}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
