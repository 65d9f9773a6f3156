"""Sustained load: matrix products on every card, each compared with the first (torch).

A card that computes wrong under heat gives another product from the same numbers by the same kernel.  One line of JSON
a second tells the products per card so far and how many of them differed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from k25stack.host.live.family import Unable

EVERY_S = 1.0


def measure(request: Mapping[str, Any]) -> None:
    """Load ``cards`` for ``seconds`` with products of two matrices of ``width`` x ``width`` (bf16; CPU: float32)."""
    import torch

    cards, width, seconds = request["cards"], int(request["width"]), float(request["seconds"])
    on_cards = request.get("device", "cuda") == "cuda"
    if on_cards and (not torch.cuda.is_available() or max(cards) >= torch.cuda.device_count()):
        raise Unable(f"torch sees {torch.cuda.device_count()} cards, not {len(cards)}")
    devices = [torch.device("cuda", card) if on_cards else torch.device("cpu") for card in cards]
    kind = torch.bfloat16 if on_cards else torch.float32
    given = []
    for device in devices:
        generator = torch.Generator(device=device).manual_seed(17)
        given.append([torch.randn(width, width, generator=generator, device=device).to(kind) for _ in range(2)])
    first = [left @ right for left, right in given]
    wrong = [torch.zeros((), dtype=torch.int64, device=device) for device in devices]
    batch = 1
    products, began, told = 0, time.monotonic(), time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        for index, (left, right) in enumerate(given):
            for _ in range(batch):
                product = left @ right
            wrong[index] += (product != first[index]).any()
        for device in devices if on_cards else []:
            torch.cuda.synchronize(device)
        products += batch
        spent = time.monotonic() - now
        batch = max(1, min(1000, int(batch * 0.5 / spent))) if spent > 0 else batch  # half a second between looks
        if time.monotonic() - told >= EVERY_S or now - began >= seconds:
            told = time.monotonic()
            _tell(told - began, products, width, wrong)
    _tell(time.monotonic() - began, products, width, wrong)


def _tell(seconds: float, products: int, width: int, wrong: list[Any]) -> None:
    rate = products * 2 * width**3 / seconds / 1e12
    line = {"seconds": round(seconds, 1), "tflops_per_card": round(rate, 3), "wrong": [int(count) for count in wrong]}
    print(json.dumps(line), flush=True)
