"""Judges on text that is not what it should be: never an exception, never a pass."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.host.check import Check
from k25stack.host.checks import all_checks
from k25stack.host.profile import Profile
from k25stack.host.seen import Reading, Seen

from .hosts import cases, profile_of, seen_of

# Random text without the few short words that mean something to some judge ("Y", "0", "off").
GARBAGE = st.text(min_size=1, max_size=60).filter(lambda text: len(text.strip()) > 7)
PASSING = [(id, case) for id, _, case in cases() if case["expect"] == "pass"]
CHECKS = {check.id: check for check in all_checks()}


def read_by(check: Check, seen: Seen, profile: Profile) -> list[str]:
    """Places of a case that the check's sources name."""
    places = []
    for source in check.sources:
        one = source.resolve(profile)
        places += [
            place
            for place in seen.readings
            if place == one.place or (one.kind == "files" and one.pattern.fullmatch(place))
        ]
    return places


def changed(seen: Seen, place: str, text: str, rc: int | None = None) -> Seen:
    reading = seen.readings[place]
    return Seen({**seen.readings, place: Reading(text, reading.rc if rc is None else rc)}, seen.absent)


def sound(judged: dict[str, Any]) -> None:
    assert judged["verdict"] in ("pass", "warn", "unknown", "fail")
    assert judged["message"].isprintable() and len(judged["message"]) <= 400
    json.dumps(judged, allow_nan=False)


@pytest.mark.parametrize("id", sorted(CHECKS))
@settings(max_examples=8, deadline=None, derandomize=True)
@given(text=GARBAGE, rc=st.sampled_from([0, 0, 0, 1, 127]))
def test_a_check_that_sees_only_garbage_never_passes(id: str, text: str, rc: int) -> None:
    check = CHECKS[id]
    for case in [case for name, case in PASSING if name == id]:
        profile = profile_of(case)
        seen = seen_of(case)
        places = read_by(check, seen, profile)
        if not places:
            continue  # what proves this pass is that the source does not exist
        for place in places:
            seen = changed(seen, place, text, rc)
        judged = check.judge_seen(seen, profile)
        sound(judged)
        assert judged["verdict"] != "pass", judged


@pytest.mark.parametrize("id", sorted(CHECKS))
@settings(max_examples=5, deadline=None, derandomize=True)
@given(text=GARBAGE)
def test_garbage_in_the_first_source_never_passes_as_that_source(id: str, text: str) -> None:
    """Another source may still prove the pass; then it must do so without the garbage too."""
    check = CHECKS[id]
    for case in [case for name, case in PASSING if name == id]:
        profile, seen = profile_of(case), seen_of(case)
        place = check.sources[0].resolve(profile).place
        if place not in seen.readings:
            continue
        judged = check.judge_seen(changed(seen, place, text, 0), profile)
        sound(judged)
        if judged["verdict"] == "pass":
            without = Seen({key: one for key, one in seen.readings.items() if key != place}, seen.absent)
            assert check.judge_seen(without, profile)["verdict"] == "pass", judged


@pytest.mark.parametrize("id", sorted(CHECKS))
def test_empty_and_missing_sources_never_pass_and_never_raise(id: str) -> None:
    check = CHECKS[id]
    for case in [case for name, case in PASSING if name == id]:
        profile = profile_of(case)
        assert check.judge_seen(Seen({}), profile)["verdict"] == "unknown"
        seen = seen_of(case)
        for place in read_by(check, seen, profile):
            sound(check.judge_seen(changed(seen, place, ""), profile))
            sound(check.judge_seen(changed(seen, place, "", 124), profile))


@pytest.mark.parametrize("id", sorted(CHECKS))
def test_mutated_inputs_never_raise(id: str) -> None:
    """Every recorded input, with characters changed, doubled, dropped, cut and lines swapped."""
    chance = random.Random(id)
    check = CHECKS[id]
    for name, _, case in cases():
        if name != id:
            continue
        profile, seen = profile_of(case), seen_of(case)
        places = read_by(check, seen, profile)
        for place in chance.sample(places, min(len(places), 4)):
            for _ in range(5):
                sound(check.judge_seen(changed(seen, place, mutate(seen.readings[place].text, chance)), profile))


def mutate(text: str, chance: random.Random) -> str:
    if not text:
        return chance.choice(["\x00", "\n", "N/A", "{", "<", "-1", "9" * 40])
    at = chance.randrange(len(text))
    end = min(len(text), at + chance.randrange(1, 30))
    return chance.choice(
        [
            text[:at],
            text[at:],
            text[:at] + text[end:],
            text[:at] + text[at:end] * 2 + text[end:],
            text[:at] + chance.choice(["\x00", "\x1b[31m", "é", "9" * 40, "N/A", "<", "}", "-", "\n"]) + text[end:],
            "\n".join(chance.sample(text.splitlines(), len(text.splitlines()))),
        ]
    )


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.99])
def test_cut_xml_and_json_never_pass(cut: float) -> None:
    for id, case in PASSING:
        check, profile, seen = CHECKS[id], profile_of(case), seen_of(case)
        place = check.sources[0].resolve(profile).place
        text = seen.readings[place].text.strip() if place in seen.readings else ""
        if text.startswith(("<?xml", "{")) and "}\n{" not in text and place not in ("cmd/docker-containers",):
            judged = check.judge_seen(changed(seen, place, text[: int(len(text) * cut)]), profile)
            assert judged["verdict"] != "pass", judged
