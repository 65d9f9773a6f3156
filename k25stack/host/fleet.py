"""Check one host or many: collect, judge, record.  Hosts are read in parallel; one that fails stops no other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k25stack.errors import HostError, K25Error, UsageError
from k25stack.host.check import Check, overall
from k25stack.host.checks import all_checks
from k25stack.host.collect import LIMIT_S, Target, collect
from k25stack.host.mask import HOSTNAME
from k25stack.host.profile import Profile, load_profile
from k25stack.host.recording import read_recording, write_recording
from k25stack.host.seen import Seen
from k25stack.host.sources import Source, file

AT_ONCE = 64  # SSH sessions at a time
EXIT_CODES = {"pass": 0, "warn": 0, "fail": 1, "unknown": 3}


@dataclass(frozen=True)
class Outcome:
    """The result of one host; ``error`` when it could not be read."""

    result: dict[str, Any]
    profile: Profile | None = None
    skipped: int = 0  # checks that do not apply
    error: K25Error | None = None
    seen: Seen | None = None


def sources_for(profile: Profile, live: bool = False) -> list[Source]:
    """What must be read for a profile, each source once."""
    found: dict[str, Source] = {"": file("/" + HOSTNAME)}
    for check in checks_for(profile):
        for source in check.sources:
            if not source.place.startswith("cmd/live-") or live:
                one = source.resolve(profile)
                found.setdefault(f"{one.kind} {one.place}", one)
    return list(found.values())


def checks_for(profile: Profile) -> list[Check]:
    return [check for check in all_checks() if check.applies(profile) and check.id not in profile.skip]


def judge(seen: Seen, profile: Profile, target: str) -> dict[str, Any]:
    """The result of a host: failures first, then what is unknown, warnings, passes.

    Live checks are judged where their measurement is there, and left out elsewhere.
    """
    judged = [
        check.judge_seen(seen, profile)
        for check in checks_for(profile)
        if not check.live or seen.reading(check.sources[0]) is not None
    ]
    order = ("fail", "unknown", "warn", "pass")
    judged.sort(key=lambda one: order.index(one["verdict"]))
    return {"target": target, "kind": "host", "verdict": overall(judged), "checks": judged}


def guess_profile(seen: Seen) -> Profile:
    """The profile that the cards of a host fit.  Raises UsageError when none does."""
    from k25stack.host.cards import on_bus
    from k25stack.host.parse import smi
    from k25stack.host.places import SMI
    from k25stack.host.profile import profile_names
    from k25stack.host.seen import NOT_FOUND, Unseen

    profiles = [load_profile(name) for name in profile_names()]
    known = f"--profile NAME ({', '.join(profile_names())})"
    try:
        products = [gpu.name or "" for gpu in smi.parse(seen.need(SMI)).gpus]
    except Unseen as reason:
        try:
            bus = on_bus(seen)
        except Unseen:
            bus = None
        reading = seen.reading(SMI)
        if bus == [] and (reading is None or reading.rc == NOT_FOUND):
            return load_profile("cpu")
        raise UsageError(f"which profile is meant cannot be told: {reason}", where="--profile", remedy=known) from None
    fitting = [profile for profile in profiles if profile.matches(products)]
    if len(fitting) == 1:
        return fitting[0]
    # A host that lacks cards is judged as what it was: the check gpu.count then says so.
    whole = [one for one in profiles if one.gpus > len(products) and all(one.is_model(name) for name in products)]
    if whole:
        return min(whole, key=lambda one: one.gpus)
    shown = f"{len(products)}x {products[0]}" if len(set(products)) == 1 else ", ".join(products)
    raise UsageError(f"no profile fits {shown}", where="--profile", remedy=known)


def widest() -> Profile:
    """Everything any profile reads: for hosts whose profile is not known yet."""
    return replace(load_profile("8x-rtx-pro-6000"), custom_all_reduce=True, skip={})


Live = Callable[[Seen, Profile], tuple[Seen, Profile]]


def check_one(
    target: Target,
    profile: Profile | None,
    *,
    record: Path | None = None,
    limit_s: int = LIMIT_S,
    live: Live | None = None,
) -> Outcome:
    """Collect and judge one host; ``live`` adds what it measures.  What goes wrong becomes part of the outcome."""
    try:
        expected = load_profile(target.profile) if target.profile else profile
        seen = collect(with_password(target), sources_for(expected or widest()), limit_s)
        expected = expected or guess_profile(seen)
        if live is not None:
            seen, expected = live(seen, expected)
        if record is not None:
            write_recording(record, seen, expected.name, time.strftime("%Y-%m-%d"))
    except K25Error as error:
        named = error if target.name in error.where else type(error)(error.what, where=target.name, remedy=error.remedy)
        return Outcome(unreachable(target.name, named), error=named)
    return outcome(seen, expected, target.name)


def outcome(seen: Seen, profile: Profile, name: str) -> Outcome:
    return Outcome(judge(seen, profile, name), profile, len(all_checks()) - len(checks_for(profile)), seen=seen)


def unreachable(name: str, error: K25Error) -> dict[str, Any]:
    """The result of a host that could not be read, in the shape of every result."""
    check = {
        "id": "reach",
        "group": "host",
        "verdict": "unknown",
        "message": f"{error.what}",
        "evidence": {},
        "fix": error.remedy,
        "source": "",
    }
    return {"target": name, "kind": "host", "verdict": "unknown", "checks": [check]}


def with_password(target: Target) -> Target:
    """The sudo password of the environment where the inventory has none."""
    password = target.password or os.environ.get("K25_BECOME_PASSWORD", "")
    return replace(target, password=password)


def check_recording(directory: Path, profile: Profile | None) -> Outcome:
    """Judge what was recorded, without touching any host.  Raises UsageError, DamageError."""
    seen = read_recording(directory, sources_for(profile or widest(), live=True))
    return outcome(seen, profile or guess_profile(seen), str(directory))


def check_many(
    targets: Sequence[Target | HostError],
    profile: Profile | None,
    *,
    record: Path | None = None,
    limit_s: int = LIMIT_S,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """All hosts at the same time; outcomes in the order of the targets, ``done`` is told as they come."""
    from concurrent.futures import ThreadPoolExecutor

    def one(target: Target | HostError) -> Outcome:
        if isinstance(target, HostError):
            found = Outcome(unreachable(target.where, target), error=target)
        else:
            found = check_one(target, profile, record=record / target.name if record else None, limit_s=limit_s)
        done(found)
        return found

    with ThreadPoolExecutor(max_workers=min(AT_ONCE, max(len(targets), 1))) as pool:
        return list(pool.map(one, targets))


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """3 when a host could not be read, else 1 for a failure, 3 for something that could not be judged, 0."""
    if any(outcome.error for outcome in outcomes):
        codes = {outcome.error.exit_code for outcome in outcomes if outcome.error}
        return 3 if 3 in codes else max(codes)
    verdicts = {outcome.result["verdict"] for outcome in outcomes}
    return next((EXIT_CODES[verdict] for verdict in ("fail", "unknown") if verdict in verdicts), 0)
