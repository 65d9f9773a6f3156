"""Are the cards healthy: memory errors, Xids, clocks, heat, power?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from k25stack.host.check import FAIL, WARN, Judgement, bad, cards, cards_on_metal, check, ok, unknown
from k25stack.host.parse import smi
from k25stack.host.parse.kernel import Line, kernel_log
from k25stack.host.parse.values import common, listed, number
from k25stack.host.places import DMESG, JOURNAL, SMI, UPTIME
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen
from k25stack.host.strain import margin_c, slowed
from k25stack.host.xid import FATAL, action

MARGIN_C = 10  # below this distance to its limit a card is about to slow down


@check(
    "ecc.mode",
    "health",
    severity=WARN,
    sources=(SMI,),
    applies=lambda p: p.gpus > 0 and p.ecc != "either",
    fix="nvidia-smi -e 1 (or 0), then reboot; with it on, 6 % of some cards' memory goes to the codes",
    source="NVIDIA nvidia-smi manual; kvcache-ai/ktransformers#1730",
)
def ecc_mode(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    now, then = found.texts("ecc_mode/current_ecc"), found.texts("ecc_mode/pending_ecc")
    if odd := sorted({*now, *then} - {"Enabled", "Disabled", "N/A"}):
        raise Unseen(f"nvidia-smi -q -x: ECC mode {listed(odd)}")
    if now != then:
        return bad("a change of the ECC mode waits for a reboot", current=now, pending=then)
    if other := [f"GPU {index} {mode}" for index, mode in enumerate(now) if mode != profile.ecc]:
        return bad(f"ECC should be {profile.ecc}: {listed(other)}", current=now)
    return ok(f"ECC {profile.ecc}", current=now)


@check(
    "ecc.errors",
    "health",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="reset the card (nvidia-smi --gpu-reset) or reboot; if errors return, exchange it",
    source="NVIDIA GPU memory error management; azurehpc-health-checks check_gpu_ecc",
)
def ecc_errors(seen: Seen, profile: Profile) -> Judgement:
    now: dict[str, float] = {}
    ever: dict[str, float] = {}
    counted = 0
    gpus = smi.parse(seen.need(SMI)).gpus
    for gpu in gpus:
        rows = list(gpu.under("ecc_errors/"))
        if not rows:
            raise Unseen(f"nvidia-smi -q -x: {gpu} tells no ECC errors")
        for span, counts in (("volatile", now), ("aggregate", ever)):
            for name, text in gpu.under(f"ecc_errors/{span}/"):
                if name == "sram_threshold_exceeded" and text == "Yes":
                    return bad(f"{gpu}: the threshold of SRAM errors is exceeded", fix="exchange the card")
                if ("uncorrectable" in name or name.startswith("double_bit")) and (value := number(text)) is not None:
                    counted += 1
                    if value:
                        counts[f"{gpu} {name}"] = value
        if gpu.get("ecc_errors/unrepairable_memory") == "Yes":
            return bad(f"{gpu}: memory that cannot be repaired", fix="exchange the card")
    if now:
        return bad(f"uncorrectable errors since the driver was loaded: {_counted(now)}", errors=now)
    if ever:
        return bad(f"uncorrectable errors in the card's life: {_counted(ever)}", severity=WARN, errors=ever)
    if counted:
        return ok("no uncorrectable error", counters=counted)
    if all(gpu.raw("ecc_mode/current_ecc") in ("Disabled", "N/A") for gpu in gpus):
        return ok("ECC is off: nothing is counted", counters=0)
    raise Unseen("nvidia-smi -q -x: ECC is on and no counter is told")


def _counted(counts: dict[str, float]) -> str:
    return listed(f"{name} {count:g}" for name, count in counts.items())


@check(
    "ecc.remap",
    "health",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="pending: reset the card or reboot; failure: exchange it",
    source="NVIDIA GPU memory error management (row remapping, page retirement)",
)
def ecc_remap(seen: Seen, profile: Profile) -> Judgement:
    failures, pending, told = [], [], 0
    for gpu in smi.parse(seen.need(SMI)).gpus:
        names = (
            "remapped_rows/remapped_row_failure",
            "remapped_rows/remapped_row_pending",
            "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist",
            "ecc_errors/channel_repair_pending",
            "ecc_errors/tpc_repair_pending",
        )
        values = {name: text for name in names if (text := gpu.get(name)) is not None}
        if odd := [text for text in values.values() if text not in ("Yes", "No")]:
            raise Unseen(f"nvidia-smi -q -x: {gpu} says {odd[0]!r} of its remapped rows")
        if gpu.raw("remapped_rows", "retired_pages/pending_retirement", *names) is None:
            raise Unseen(f"nvidia-smi -q -x: {gpu} tells neither remapped rows nor retired pages")
        told += len(values)
        failures += [str(gpu)] if values.get(names[0]) == "Yes" else []
        pending += [f"{gpu} {name.rpartition('/')[2]}" for name in names[1:] if values.get(name) == "Yes"]
    if failures:
        return bad(f"rows could not be remapped: {listed(failures)}", failures=failures, fix="exchange the card")
    if pending:
        return bad(f"repairs wait for a reset: {listed(pending)}", pending=pending)
    return ok("no repair is due" if told else "these cards count no repairs", told=told)


@check(
    "gpu.recovery",
    "health",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="do the named action: reset the card, drain and reset, or reboot",
    source="NVIDIA nvidia-smi manual (GPU recovery action)",
)
def recovery(seen: Seen, profile: Profile) -> Judgement:
    wanted = []
    silent = 0
    for gpu in smi.parse(seen.need(SMI)).gpus:
        action_text = gpu.raw("gpu_recovery_action")
        resets = [gpu.raw(f"gpu_reset_status/{name}") for name in ("reset_required", "drain_and_reset_recommended")]
        if action_text is not None and action_text not in ("None", "N/A"):
            wanted.append(f"{gpu}: {action_text}")
        elif "Yes" in resets:
            wanted.append(f"{gpu}: reset")
        elif action_text != "None" and resets[0] != "No":
            silent += 1
    if wanted:
        return bad(f"the driver asks for recovery: {listed(wanted)}", wanted=wanted)
    if silent:
        return unknown("this driver does not tell whether a card needs a reset", severity=WARN)
    return ok("no card asks for recovery")


def xids(lines: list[Line]) -> Iterator[tuple[float, int, str]]:
    """(seconds since boot, code, bus) of every Xid in a kernel log."""
    for line in lines:
        found = re.search(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\):? (\d{1,3})\b", line.text)
        if found:
            yield line.seconds, int(found.group(2)), found.group(1)


def log_lines(seen: Seen) -> list[Line]:
    """The kernel log of this boot from the journal, else from dmesg.  Raises Unseen."""
    reasons = []
    for source in (JOURNAL, DMESG):
        try:
            return kernel_log(seen.need(source), str(source))
        except Unseen as reason:
            reasons.append(str(reason))
    raise Unseen("; ".join(reasons))


@check(
    "xid",
    "health",
    severity=FAIL,
    sources=(JOURNAL, DMESG, UPTIME),
    applies=cards,
    fix="act as the entry says; repeated ones on one card: exchange it",
    source="NVIDIA Xid catalogue; azurehpc-health-checks check_gpu_xid, its PR #105 (two-hour window)",
)
def xid(seen: Seen, profile: Profile) -> Judgement:
    lines = log_lines(seen)
    found = list(xids(lines))
    up = number((seen.text(UPTIME) or "").split(" ")[0])
    now = max(line.seconds for line in lines) if up is None else up
    window_s = profile.xid_window_h * 3600
    recent = [entry for entry in found if not window_s or up is None or now - entry[0] <= window_s]
    evidence: dict[str, Any] = {"all": len(found), "codes": sorted({code for _, code, _ in found})}
    if fatal := [entry for entry in recent if entry[1] in FATAL]:
        codes = sorted({code for _, code, _ in fatal})
        buses = sorted({bus for _, _, bus in fatal})
        return bad(f"Xid {listed(codes)} on {listed(buses)}: {action(codes[0])}", fix=action(codes[0]), **evidence)
    if found:
        when = f"in the last {profile.xid_window_h:g} h" if recent else "earlier in this boot"
        codes = sorted({code for _, code, _ in recent or found})
        return bad(f"Xid {listed(codes)} {when}: {action(codes[0])}", severity=WARN, fix=action(codes[0]), **evidence)
    return ok("no Xid in the kernel log of this boot", lines=len(lines))


@check(
    "persistence",
    "health",
    severity=WARN,
    sources=(SMI,),
    applies=cards,
    fix="enable nvidia-persistenced (or nvidia-smi -pm 1): otherwise every start initialises the cards again",
    repair=lambda seen, profile: [("nvidia-smi", "-pm", "1")],
    source="NVIDIA driver persistence documentation",
)
def persistence(seen: Seen, profile: Profile) -> Judgement:
    modes = smi.parse(seen.need(SMI)).texts("persistence_mode")
    if odd := sorted(set(modes) - {"Enabled", "Disabled"}):
        raise Unseen(f"nvidia-smi -q -x: persistence mode {listed(odd)}")
    if off := [f"GPU {index}" for index, mode in enumerate(modes) if mode == "Disabled"]:
        return bad(f"persistence mode is off: {listed(off)}", modes=modes)
    return ok("persistence mode is on", modes=modes)


@check(
    "power.cap",
    "health",
    severity=WARN,
    sources=(SMI,),
    applies=cards_on_metal,
    fix="nvidia-smi -pl WATTS on all cards, kept by a systemd unit (playbook role nvidia)",
    repair=lambda seen, profile: [("nvidia-smi", "-pl", str(profile.power_set_w))] if profile.power_set_w else [],
    source="local-inference-lab/rtx6kpro hardware/blackwell-power-limit-sweep.md (Server and Workstation "
    "600 W, Max-Q 300 W)",
)
def power(seen: Seen, profile: Profile) -> Judgement:
    limits = smi.parse(seen.need(SMI)).numbers(
        "W",
        "gpu_power_readings/current_power_limit",
        "power_readings/power_limit",
        "power_readings/enforced_power_limit",
    )
    low, high = profile.power_w
    if common(limits) is None:
        return bad(
            f"different power limits: {listed(f'{watts:g} W' for watts in limits)}; the slowest card leads",
            watts=limits,
        )
    if high and not low <= limits[0] <= high:
        return bad(f"power limit {limits[0]:g} W, expected {low} to {high} W", watts=limits)
    return ok(f"power limit {limits[0]:g} W on all cards", watts=limits)


@check(
    "clocks.events",
    "health",
    severity=WARN,
    sources=(SMI,),
    applies=cards,
    fix="hw_slowdown or thermal: cooling and air flow; hw_power_brake: power supply and cables",
    source="NVIDIA nvidia-smi manual (clocks event reasons); azurehpc-health-checks check_gpu_clock_throttling",
)
def clocks(seen: Seen, profile: Profile) -> Judgement:
    found: list[str] = []
    for gpu in smi.parse(seen.need(SMI)).gpus:
        reasons = slowed(gpu)
        if reasons is None:
            raise Unseen(f"nvidia-smi -q -x: {gpu} tells no reason for its clocks")
        found += [f"{gpu} {reason}" for reason in reasons]
    if found:
        return bad(f"slowed down: {listed(found)}", reasons=found)
    return ok("no card is slowed down by heat or power")


@check(
    "temp",
    "health",
    severity=WARN,
    sources=(SMI,),
    applies=cards,
    fix="cooling: fans, filters, ducts, neighbours in the rack",
    source="NVIDIA nvidia-smi manual (T.Limit: distance to the limit in C)",
)
def temperature(seen: Seen, profile: Profile) -> Judgement:
    margins = []
    for gpu in smi.parse(seen.need(SMI)).gpus:
        margin = margin_c(gpu)
        if margin is None:
            raise Unseen(f"nvidia-smi -q -x: {gpu} tells no temperature and limit")
        margins.append(margin)
    if hot := [f"GPU {index}: {margin:g} C" for index, margin in enumerate(margins) if margin <= MARGIN_C]:
        return bad(f"close to the limit: {listed(hot)}", margin_c=margins)
    return ok(f"at least {min(margins):g} C below the limit", margin_c=margins)
