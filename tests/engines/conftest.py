"""Profiles and launches to try engines with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from k25stack.engines import Launch
from k25stack.stack import Profile

LAUNCH = Launch(
    model="/models/target",
    served_name="target",
    host="127.0.0.1",
    port=30000,
    context=4096,
    family="kimi_k25",
)


@pytest.fixture
def launch() -> Launch:
    return LAUNCH


@pytest.fixture
def drafted() -> Launch:
    return replace(LAUNCH, draft="/models/draft")


def profile(engine: str, version: str, **fields: Any) -> Profile:
    return Profile.model_validate({"engine": engine, "version": version, **fields})


CHAIN = {"k": 3, "draft": "own"}
