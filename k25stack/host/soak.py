"""A long load on all cards, and what shows meanwhile: Xids, clocks, heat, reasons for slowing down, wrong products."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from k25stack.errors import HostError, UsageError
from k25stack.host.checks.health import log_lines, xids
from k25stack.host.collect import Target, collect
from k25stack.host.live.family import FINE
from k25stack.host.live.session import Session
from k25stack.host.parse import smi
from k25stack.host.places import DMESG, JOURNAL, SMI, UPTIME
from k25stack.host.seen import Unseen
from k25stack.host.strain import margin_c, slowed

EVERY_S = 5.0  # between two looks at the cards
TELL_S = 15.0  # between two lines of progress
WARM_S = 5.0  # clocks rise before they count
WIDTH = 8192  # of the matrices: a product keeps a card busy for milliseconds
WATTS = (
    "gpu_power_readings/instant_power_draw",
    "gpu_power_readings/power_draw",
    "power_readings/power_draw",
)
HERE = Target("local")


def seconds_of(text: str) -> float:
    """``60m``, ``90s``, ``1.5h`` or seconds.  Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)] if found else 0.0
    if not 1 <= seconds <= 72 * 3600:
        raise UsageError(f"{text!r} is no span from 1 s to 72 h", where="duration", remedy="write 60m, 90s or 1h")
    return seconds


@dataclass
class Watch:
    """Looks at the cards while they work; ``look`` is called in a thread until it is stopped."""

    margins: list[float] = field(default_factory=list)
    clocks: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    lost: str = ""

    def look(self, text: str, warm: bool) -> None:
        """Take in one output of ``nvidia-smi -q -x``."""
        try:
            found = smi.parse(text)
        except Unseen as reason:
            self.lost = self.lost or str(reason)
            return
        self.looks += 1
        for gpu in found.gpus:
            if gpu.lost:
                self.lost = self.lost or f"{gpu} is lost"
            if (margin := margin_c(gpu)) is not None:
                self.margins.append(margin)
            if warm and (clock := gpu.number("MHz", "clocks/sm_clock")) is not None:
                self.clocks.append(clock)
            if warm and (watts := gpu.number("W", *WATTS)) is not None:
                self.watts.append(watts)
            for slow in slowed(gpu) or []:
                key = f"{gpu} {slow}"
                self.reasons[key] = self.reasons.get(key, 0) + 1

    def record(self) -> dict[str, Any]:
        span = {"least": min(self.clocks), "most": max(self.clocks)} if self.clocks else None
        return {
            "samples": self.looks,
            "least_margin_c": min(self.margins, default=None),
            "sm_mhz": span,
            "most_watts": max(self.watts, default=None),
            "slowed": dict(sorted(self.reasons.items())),
        }


def soak(
    session: Session, cards: list[int], seconds: float, told: Callable[[str], None], **load: Any
) -> dict[str, Any]:
    """Load the cards for ``seconds``; the record that the check ``stress`` judges.  Ctrl-C ends it early, not without.

    ``load`` changes the request to the worker (``width``, ``device``).
    """
    watch, stop = Watch(), threading.Event()
    began, booted = time.monotonic(), _uptime()

    def looking() -> None:
        while not stop.wait(EVERY_S if watch.looks else 1.0):
            watch.look(_smi(), time.monotonic() - began > WARM_S)

    last: dict[str, Any] = {}

    def progress(line: str) -> None:
        if line.startswith("{"):
            last.update(json.loads(line))
            if last["seconds"] >= last.setdefault("tell_at", 0.0):
                last["tell_at"] = last["seconds"] + TELL_S
                told(f"load {last['seconds']:.0f} of {seconds:.0f} s, {last['tflops_per_card']} TFLOP/s a card")

    thread = threading.Thread(target=looking, daemon=True)
    thread.start()
    ended, interrupted = "", False
    try:
        answer = session.ask("load", seconds + 120, progress, cards=cards, seconds=seconds, **{"width": WIDTH, **load})
        ended = "" if answer.code == FINE else answer.why()
    except KeyboardInterrupt:
        interrupted = True
        session.stop()
    except HostError as error:
        ended = error.what
    stop.set()
    thread.join(30)
    return {
        "seconds": last.get("seconds", 0.0),
        "cards": len(cards),
        "xids": new_xids(booted),
        **watch.record(),
        "tflops_per_card": last.get("tflops_per_card"),
        "wrong": last.get("wrong", []),
        "ended": ended or watch.lost,
        "interrupted": interrupted,
    }


def new_xids(since: float) -> list[int] | None:
    """Xids in the kernel log after ``since`` (seconds since boot); None when the log cannot be read."""
    try:
        lines = log_lines(collect(HERE, [JOURNAL, DMESG]))
    except (Unseen, HostError):
        return None
    return sorted({code for seconds, code, _ in xids(lines) if seconds >= since})


def _smi() -> str:
    reading = collect(HERE, [SMI]).reading(SMI)
    return reading.text if reading is not None else ""


def _uptime() -> float:
    return float((collect(HERE, [UPTIME]).text(UPTIME) or "0").split(" ")[0])
