"""Which of NCCL's protocols, algorithms and channel counts is fastest on this host, measured within a time budget.

First NCCL's own choice, then each algorithm with each protocol, then the best two with different numbers of channels,
then NCCL's own choice and the leader again: what differs between two measurements of the first is noise, which a winner
must beat, and of the second the slower one counts.
A combination that hangs, fails or sums wrong is recorded as such and never wins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from k25stack.errors import HostError, UsageError
from k25stack.host.live.family import FINE, TIMEOUT, UNABLE
from k25stack.host.live.session import Answer
from k25stack.host.parse import all_reduce

SWEPT = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
PEER = ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE")
KIB, MIB = 1 << 10, 1 << 20
# Bytes of the all-reduces that matter: a decode step of 1 to 128 streams sums 14 KiB to 1.75 MiB (7168 wide, bf16),
# a prefill of some thousand tokens tens of MiB.
WORKLOADS: Mapping[str, tuple[int, ...]] = {
    "latency": (8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB),
    "throughput": (8 * MIB, 32 * MIB, 128 * MIB),
}
WORKLOADS = {**WORKLOADS, "both": WORKLOADS["latency"] + WORKLOADS["throughput"]}
CHANNELS = (4, 8, 16, 32)
LEAST_GAIN = 1.05  # what is closer than this to NCCL's own choice is not worth a setting
SCOPED_SINCE = (2, 24, 3)
LIMIT_S = 60.0  # of the first measurement; later ones get four times what that took, but no less than SHORT_S
SHORT_S = 15.0


@dataclass(frozen=True)
class Combination:
    algorithm: str = ""  # "": NCCL chooses
    protocol: str = ""
    channels: int = 0

    def env(self, scoped: bool) -> dict[str, str]:
        """Its variables.  Scoped ones name the all-reduce: a bare Tree leaves other collectives without a kernel."""
        head = "allreduce:" if scoped else ""
        found = {}
        if self.algorithm:
            found["NCCL_ALGO"] = head + self.algorithm
        if self.protocol:
            found["NCCL_PROTO"] = head + self.protocol
        if self.channels:
            found |= dict.fromkeys(("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), str(self.channels))
        return found

    def __str__(self) -> str:
        words = [self.algorithm, self.protocol, f"{self.channels} channels" if self.channels else ""]
        return " ".join(word for word in words if word) or "NCCL's own choice"


OWN = Combination()


@dataclass(frozen=True)
class Try:
    combination: Combination
    outcome: str  # "fine", or what went wrong
    us: Mapping[int, float] = field(default_factory=dict)  # bytes -> microseconds
    seconds: float = 0.0  # that measuring took

    @property
    def fine(self) -> bool:
        return self.outcome == "fine"


@dataclass(frozen=True)
class Swept:
    tries: tuple[Try, ...]
    winner: Try
    gain: float  # of the winner over NCCL's own choice, geometric mean over the sizes
    noise: float  # between measurements of NCCL's own choice, at least 1
    base: Mapping[str, str]  # set in all tries
    left: int  # combinations that the budget left no time for
    seconds: float

    def env(self, scoped: bool) -> dict[str, str]:
        return {**self.base, **self.winner.combination.env(scoped)}


Ask = Callable[[Mapping[str, str], float], Answer]  # variables, limit in seconds -> all sizes of all cards


def sizes_of(workload: str) -> tuple[int, ...]:
    """Raises UsageError."""
    if workload not in WORKLOADS:
        raise UsageError(f"no workload {workload!r}", where="--workload", remedy=f"one of {', '.join(WORKLOADS)}")
    return WORKLOADS[workload]


def first_round(tries: Sequence[Try], nvlink: bool) -> list[Combination]:
    """Every algorithm with every protocol.  LL128 only over NVLink: over PCIe links it can break data."""
    protocols = ("LL", "LL128", "Simple") if nvlink else ("LL", "Simple")
    return [Combination(algorithm, protocol) for algorithm in ("Ring", "Tree") for protocol in protocols]


def second_round(tries: Sequence[Try], nvlink: bool) -> list[Combination]:
    """The best two so far with other numbers of channels."""
    return [Combination(one.algorithm, one.protocol, count) for one in _leaders(tries)[:2] for count in CHANNELS]


def last_round(tries: Sequence[Try], nvlink: bool) -> list[Combination]:
    """NCCL's own choice and the best once more."""
    return list(dict.fromkeys([OWN, *_leaders(tries)[:1]]))


def _leaders(tries: Sequence[Try]) -> list[Combination]:
    """Combinations that work, the best first."""
    fine = sorted((one for one in tries if one.fine), key=lambda one: -gain(one, tries[0]))
    return list(dict.fromkeys(one.combination for one in fine))


def is_scoped(version: str) -> bool:
    """Whether this NCCL takes ``allreduce:Ring``."""
    return tuple(int(part) for part in version.split(".") if part.isdigit()) >= SCOPED_SINCE


def base_env(present: Mapping[str, str], advised: Mapping[str, str]) -> dict[str, str]:
    """What stays the same in all tries: the file's variables without the swept ones; the advice where it has none."""
    kept = {name: value for name, value in present.items() if name not in SWEPT}
    has_peer = any(name in kept for name in PEER)
    return {**{name: value for name, value in advised.items() if not (has_peer and name in PEER)}, **kept}


def sweep(
    ask: Ask,
    base: Mapping[str, str],
    *,
    nvlink: bool,
    scoped: bool,
    budget_s: float,
    told: Callable[[str], None] = lambda line: None,
) -> Swept:
    """Measure combinations until the budget is spent; ``ask`` runs the all-reduce of all cards with these variables.

    Raises HostError when not even NCCL's own choice works.
    """
    began = time.monotonic()

    def one(combination: Combination, limit_s: float = LIMIT_S) -> Try:
        found = _try(ask, combination, {**base, **combination.env(scoped)}, limit_s)
        told(f"{time.monotonic() - began:5.0f} s  {combination}: {_shown(found)}")
        return found

    own = one(OWN)
    if not own.fine and "NCCL_P2P_DISABLE" not in base:
        base = {**{name: value for name, value in base.items() if name not in PEER}, "NCCL_P2P_DISABLE": "1"}
        told(f"with peer access {own.outcome}; without it from here on")
        own = one(OWN)
    if not own.fine:
        raise HostError(
            f"the all-reduce {own.outcome} whatever is set",
            where="sweep",
            remedy="k25stack check host --live says more",
        )
    tries, left = [own], 0
    for plan in (first_round, second_round, last_round):
        for combination in plan(tries, nvlink):
            cost = max(found.seconds for found in tries if found.fine)
            if time.monotonic() - began + cost > budget_s:
                left += 1
                continue
            tries.append(one(combination, max(SHORT_S, 4 * own.seconds)))
    return _decided(tries, base, left, time.monotonic() - began)


def _try(ask: Ask, combination: Combination, env: Mapping[str, str], limit_s: float) -> Try:
    answer = ask(env, limit_s)
    if answer.code == UNABLE:
        raise HostError(answer.why(), where="sweep", remedy="give --python or --image with torch that sees the cards")
    if answer.code == TIMEOUT:
        return Try(combination, "hangs", seconds=answer.seconds)
    if answer.code != FINE:
        return Try(combination, f"fails: {all_reduce.remark(answer.text)}", seconds=answer.seconds)
    if wrong := all_reduce.wrong_sizes(answer.text):
        return Try(combination, f"sums wrong at {', '.join(wrong)}", seconds=answer.seconds)
    times = {row.size: row.us for row in all_reduce.rows(answer.text)[-1] if row.us}
    return Try(combination, "fine" if times else "fails: no figures", times, answer.seconds)


def gain(found: Try, own: Try) -> float:
    """How much faster, as the geometric mean over the sizes of both."""
    ratios = [own.us[size] / us for size, us in found.us.items() if size in own.us]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 0.0


def _decided(tries: Sequence[Try], base: Mapping[str, str], left: int, seconds: float) -> Swept:
    own = tries[0]
    again = [gain(one, own) for one in tries[1:] if one.combination == OWN and one.fine]
    noise = max([1.0, *(max(ratio, 1 / ratio) for ratio in again)])

    def worth(one: Try) -> float:
        return gain(one, own) if one.fine else 0.0

    slowest: dict[Combination, Try] = {}
    for one in tries:
        slowest[one.combination] = min(slowest.get(one.combination, one), one, key=worth)
    best = max(slowest.values(), key=worth)
    reached = gain(best, own)
    if best.combination == OWN or reached < max(LEAST_GAIN, noise**2):
        best, reached = own, 1.0
    return Swept(tuple(tries), best, reached, noise, base, left, seconds)


def _shown(found: Try) -> str:
    if not found.fine:
        return found.outcome
    return ", ".join(f"{size_text(size)} {us:.1f} us" for size, us in found.us.items())


def size_text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def nccl_file(swept: Swept, scoped: bool, about: str, workload: str, date: str) -> str:
    """The text of nccl.env: the winner, with everything that was measured as comments."""
    own = swept.tries[0]
    lines = [
        f"# NCCL's settings, written by: k25stack host nccl sweep ({date})",
        f"# {about}; workload {workload}; {len(swept.tries)} measurements in {swept.seconds:.0f} s"
        + (f", no time for {swept.left} more" if swept.left else ""),
        f"# winner: {swept.winner.combination}, {swept.gain:.2f} times NCCL's own choice "
        f"(geometric mean over {len(own.us)} sizes; noise {swept.noise:.2f})",
        *(f"# {line}" for line in evidence(swept)),
    ]
    return "\n".join([*lines, *(f"{name}={value}" for name, value in sorted(swept.env(scoped).items()))]) + "\n"


def evidence(swept: Swept) -> Iterator[str]:
    """One line a measurement: gain and microseconds by size."""
    own = swept.tries[0]
    yield f"{'microseconds at':24} {'gain':>5} " + " ".join(f"{size_text(size):>9}" for size in own.us)
    for one in swept.tries:
        if not one.fine:
            yield f"{one.combination!s:24} {one.outcome}"
            continue
        cells = " ".join(f"{one.us.get(size, math.nan):9.1f}" for size in own.us)
        yield f"{one.combination!s:24} {gain(one, own):5.2f} {cells}"


def as_dict(swept: Swept, scoped: bool, about: str, workload: str) -> dict[str, Any]:
    own = swept.tries[0]
    return {
        "about": about,
        "workload": workload,
        "env": swept.env(scoped),
        "winner": str(swept.winner.combination),
        "gain": round(swept.gain, 3),
        "noise": round(swept.noise, 3),
        "seconds": round(swept.seconds, 1),
        "left_out": swept.left,
        "tries": [
            {
                "combination": str(one.combination),
                "env": one.combination.env(scoped),
                "outcome": one.outcome,
                "gain": round(gain(one, own), 3) if one.fine else None,
                "us_by_bytes": {str(size): us for size, us in one.us.items()},
                "seconds": round(one.seconds, 1),
            }
            for one in swept.tries
        ],
    }
