"""The whole command line of every shipped profile, as people would type it.

``golden/<stack>.txt`` holds a title and a line per profile.  A change there is a change of what is served: it is made
by hand and read in review, never regenerated.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from k25stack import engines
from k25stack.engines.launch import draft_name, launch_of, model_name
from k25stack.stack import Stack, load_stack

STACKS = Path(__file__).resolve().parents[2] / "stacks"
GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in STACKS.glob("*.yaml"))


def command(stack: Stack, name: str) -> str:
    profile = stack.profile(name)
    launch = launch_of(
        stack,
        profile,
        model=None if model_name(stack) else "/run/target",
        draft=None if draft_name(profile) else "/run/draft",
    )
    engine = engines.get(profile.engine)
    argv = ["PYTHON" if word == sys.executable else word for word in engine.argv(profile, launch)]
    return " ".join([*(f"{key}={value}" for key, value in engine.env(profile, launch).items()), shlex.join(argv)])


def golden(stack: str) -> dict[str, str]:
    blocks = (GOLDEN / f"{stack}.txt").read_text(encoding="utf-8").split("# ")[1:]
    return {name: line.strip() for name, line in (block.split("\n", 1) for block in blocks)}


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_starts_with_exactly_this_command(name: str) -> None:
    stack = load_stack(STACKS / f"{name}.yaml")
    assert {profile: command(stack, profile) for profile in stack.serving.profiles} == golden(name)
