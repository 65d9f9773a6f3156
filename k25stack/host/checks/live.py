"""Judges of what is measured on request (``check host --live``); in a recording without it they do not appear."""

from __future__ import annotations

import re
from typing import Any

from k25stack.host.check import (
    FAIL,
    WARN,
    Judgement,
    bad,
    cards,
    cards_in_containers,
    check,
    ok,
    several,
    unknown,
)
from k25stack.host.parse import all_reduce
from k25stack.host.parse.all_reduce import remark
from k25stack.host.parse.values import integer, json_object, listed, number, plural, real
from k25stack.host.places import LIVE_CDI, LIVE_DCGM, LIVE_NCCL, LIVE_P2P, LIVE_SOAK
from k25stack.host.profile import Profile
from k25stack.host.seen import FAILED, TIMEOUT, Seen, Unseen
from k25stack.host.xid import FATAL, action


@check(
    "cdi.live",
    "live",
    severity=FAIL,
    sources=(LIVE_CDI,),
    applies=cards_in_containers,
    live=True,
    fix="cdi.spec and docker.runtime come first",
    source="NVIDIA Container Toolkit documentation (CDI)",
)
def cdi_live(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(LIVE_CDI)
    if reading is not None and "could not select device driver" in reading.text:
        return bad(
            "Docker knows no way to give a container a card", fix="install nvidia-container-toolkit (docker.toolkit)"
        )
    found = re.findall(r"^GPU \d+: .+$", seen.need(LIVE_CDI), re.MULTILINE)
    if not found:
        raise Unseen(f"{LIVE_CDI}: no card in it")
    if len(found) != profile.gpus:
        return bad(f"a container sees {plural(len(found), 'card')}, expected {profile.gpus}", cards=len(found))
    return ok(f"a container sees {plural(len(found), 'card')}", cards=len(found))


@check(
    "nccl.live",
    "live",
    severity=FAIL,
    sources=(LIVE_NCCL,),
    applies=several,
    live=True,
    fix="a hang: iommu, acs, topo.p2p; slow: k25stack host nccl sweep",
    source="local-inference-lab/rtx6kpro optimization/nccl-tuning.md (8 cards: 22 GB/s untuned, 37 to 41 tuned)",
)
def nccl_live(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(LIVE_NCCL)
    text = reading.text if reading is not None else ""
    joined, last = _reached(text)
    if reading is not None and reading.rc == TIMEOUT:
        return bad(f"the all-reduce{joined} hangs: {last}", ranks=joined.strip())
    if reading is not None and reading.rc == FAILED:
        return bad(
            f"the all-reduce{joined} fails: {remark(text)}", fix="read NCCL's message (NCCL_DEBUG=WARN); nccl.env"
        )
    found = all_reduce.rows(seen.need(LIVE_NCCL))
    rows = [row for group in found for row in group]
    if not rows or not found[-1]:
        raise Unseen(f"{LIVE_NCCL}: no line of nccl-tests in it")
    if wrong := all_reduce.wrong_sizes(text):
        return bad(f"wrong sums at {listed(wrong)}", wrong=wrong)
    if any(speed is None for row in rows for speed in (row.first, row.second)) or all(
        row.first_wrong == "N/A" for row in rows
    ):
        raise Unseen(f"{LIVE_NCCL}: sums were not checked, or no bandwidth in it")
    largest = max(found[-1], key=lambda row: row.size)
    best = max(largest.first or 0.0, largest.second or 0.0)
    told = f"{len(rows)} sizes up to {largest.size} B right, {best:.1f} GB/s bus bandwidth{joined}"
    times = {str(row.size): row.us for row in found[-1]}
    if best < profile.busbw_gb_s:
        return bad(f"{told}, expected {profile.busbw_gb_s:g}", severity=WARN, busbw_gb_s=best, us_by_bytes=times)
    return ok(told, busbw_gb_s=best, sizes=len(rows), us_by_bytes=times)


def _reached(text: str) -> tuple[str, str]:
    """(" of 2 cards", where it stood when it ended)."""
    ranks = re.findall(r"^# ranks (\d+)", text, re.MULTILINE)
    sizes = [row.size for row in all_reduce.rows(text)[-1]]
    where = f"it did not end in time, the last size that did is {sizes[-1]} B" if sizes else "it never began"
    return (f" of {ranks[-1]} cards" if ranks else ""), where if ranks else "it did not end in time"


@check(
    "p2p.live",
    "live",
    severity=WARN,
    sources=(LIVE_P2P,),
    applies=several,
    live=True,
    fix="acs, iommu, pcie.width and pcie.gen come first",
    source="NVIDIA cuda-samples p2pBandwidthLatencyTest; local-inference-lab/rtx6kpro hardware/pcie-bandwidth.md",
)
def p2p_live(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(LIVE_P2P)
    if reading is not None and reading.rc in (TIMEOUT, FAILED):
        copies = re.findall(r"^# (?:copy|time) (\d+) to (\d+)$", reading.text, re.MULTILINE)
        pair = f" from card {copies[-1][0]} to card {copies[-1][1]}" if copies else ""
        how = "hangs" if reading.rc == TIMEOUT else f"fails: {remark(reading.text)}"
        return bad(f"the copy{pair} {how}", severity=FAIL)
    text = seen.need(LIVE_P2P)
    if "P2P=Enabled Wrong Values" in text:
        damage = _table(text, "P2P=Enabled Wrong Values", profile.gpus)
        altered = [f"{i} to {j}" for i in range(profile.gpus) for j in range(profile.gpus) if damage[i][j]]
        if altered:
            return bad(f"data arrives altered: {listed(altered)}", severity=FAIL, altered=altered)
    speed = _table(text, "Unidirectional P2P=Enabled Bandwidth", profile.gpus)
    delay = _table(text, "P2P=Enabled Latency", profile.gpus)
    slow = [f"{i} to {j}: {speed[i][j]:g} GB/s" for i, j in _pairs(profile.gpus) if speed[i][j] < profile.p2p_gb_s]
    late = [
        f"{i} to {j}: {delay[i][j]:g} us"
        for i, j in _pairs(profile.gpus)
        if profile.p2p_us and delay[i][j] > profile.p2p_us
    ]
    least = min(speed[i][j] for i, j in _pairs(profile.gpus))
    if slow or late:
        return bad(f"pairs below the profile: {listed([*slow, *late], 4)}", slow=slow, late=late)
    return ok(f"every pair at least {least:g} GB/s", least_gb_s=least)


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(count) for j in range(count) if i != j]


def _table(text: str, title: str, count: int) -> list[list[float]]:
    """The square of numbers below a title.  Raises Unseen."""
    at = text.find(title)
    rows: list[list[float]] = []
    for line in text[at:].splitlines()[1:] if at >= 0 else []:
        words = line.split()
        if len(words) == count + 1 and words[0] == str(len(rows)):
            values = [number(word) for word in words[1:]]
            if all(value is not None for value in values):
                rows.append([float(value or 0) for value in values])
        if len(rows) == count:
            return rows
    raise Unseen(f"{LIVE_P2P}: no whole table {title!r} for {count} cards")


@check(
    "dcgm.live",
    "live",
    severity=WARN,
    sources=(LIVE_DCGM,),
    applies=cards,
    live=True,
    fix="read the failed test's message; DCGM names the card",
    source="NVIDIA DCGM documentation (dcgmi diag)",
)
def dcgm(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(LIVE_DCGM)
    text = reading.text if reading is not None and "{" in reading.text else seen.need(LIVE_DCGM)
    record = json_object(text[text.index("{") :] if "{" in text else text, str(LIVE_DCGM))
    statuses = re.findall(r'"status"\s*:\s*"(\w+)"', str(text))
    if not record or not statuses:
        raise Unseen(f"{LIVE_DCGM}: no test result in it")
    failed = [status for status in statuses if status.upper() in ("FAIL", "FAILED")]
    if failed:
        return bad(f"{len(failed)} of {len(statuses)} tests failed", failed=len(failed))
    if not any(status.upper() in ("PASS", "PASSED") for status in statuses):
        raise Unseen(f"{LIVE_DCGM}: no test passed")
    return ok(f"{len(statuses)} tests, none failed", tests=len(statuses))


@check(
    "stress",
    "live",
    severity=WARN,
    sources=(LIVE_SOAK,),
    applies=cards,
    live=True,
    fix="heat: clocks.events and temp; Xids: the xid check",
    source="gpu-burn; imbue-ai/cluster-health",
)
def stress(seen: Seen, profile: Profile) -> Judgement:
    record = json_object(seen.need(LIVE_SOAK), str(LIVE_SOAK))
    seconds, codes, margin = real(record.get("seconds")), record.get("xids"), real(record.get("least_margin_c"))
    if wrong := [f"GPU {index}" for index, count in enumerate(_counts(record.get("wrong"))) if count]:
        return bad(f"wrong products under load: {listed(wrong)}", severity=FAIL, fix="exchange the card", wrong=wrong)
    if ended := record.get("ended"):
        return bad(f"the load ended early: {ended}", severity=FAIL, seconds=seconds)
    if seconds and codes is None:
        return unknown("the kernel log is not readable: Xids under load are not known", severity=WARN, **_kept(record))
    if not seconds or not isinstance(codes, list) or any(integer(code) is None for code in codes):
        raise Unseen(f"{LIVE_SOAK}: no seconds and xids in it")
    if codes:
        fatal = [code for code in codes if code in FATAL]
        return bad(
            f"Xid {listed(codes)} under load: {action((fatal or codes)[0])}",
            severity=FAIL if fatal else None,
            xids=codes,
        )
    if margin is not None and margin <= 0:
        return bad(f"a card reached its temperature limit ({margin:g} C left)", least_margin_c=margin)
    if slowed := record.get("slowed"):
        return bad(f"slowed down under load: {listed(slowed)}", **_kept(record))
    return ok(f"{_span(seconds)} of load without an Xid", **_kept(record))


def _counts(value: object) -> list[int]:
    return [integer(one) or 0 for one in value] if isinstance(value, list) else []


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    """Figures of a soak that are worth printing."""
    names = ("seconds", "least_margin_c", "sm_mhz", "tflops_per_card", "slowed", "samples")
    return {name: record[name] for name in names if name in record}


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
