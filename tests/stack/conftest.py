"""The shipped stack files, and a way to spoil one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

STACKS = Path(__file__).resolve().parents[2] / "stacks"
SHIPPED = sorted(STACKS.glob("*.yaml"))

Spoil = Callable[..., Path]


@pytest.fixture
def spoil(tmp_path: Path) -> Spoil:
    """``spoil(old, new, base="smollm2-cpu")``: a copy of a shipped stack with one piece of text changed."""

    def change(old: str, new: str, base: str = "smollm2-cpu") -> Path:
        text = (STACKS / f"{base}.yaml").read_text(encoding="utf-8")
        assert old in text
        path = tmp_path / "spoiled.yaml"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        return path

    return change
