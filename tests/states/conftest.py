"""A small states directory with train and held-out shards."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_row import Row
from shard_rows import rows, write


@pytest.fixture
def samples() -> list[Row]:
    return [*rows([(3, 5), (9, 4), (2, 12), (1, 1), (6, 0), (4, 9)]), *rows([(3, 8), (5, 6)], "held_out")]


@pytest.fixture
def states_dir(tmp_path: Path, samples: list[Row]) -> Path:
    write(tmp_path / "states", samples)
    return tmp_path / "states"
