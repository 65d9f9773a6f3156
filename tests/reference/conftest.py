"""The tiny target in both types, and a tiny draft of it that was trained for a second."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import tiny_draft
import torch

from k25stack.draft.model import DraftModel
from k25stack.reference.target import Target


@pytest.fixture(scope="session")
def target32(tiny_target_dir: Path) -> Target:
    return Target.load(tiny_target_dir, dtype=torch.float32)


@pytest.fixture(scope="session")
def target16(tiny_target_dir: Path) -> Target:
    return Target.load(tiny_target_dir)


@pytest.fixture(scope="session")
def draft32(target32: Target) -> DraftModel:
    return tiny_draft.train(target32)


@pytest.fixture(scope="session")
def draft16(draft32: DraftModel) -> DraftModel:
    return copy.deepcopy(draft32).to(torch.bfloat16)


@pytest.fixture(scope="session")
def tiny_draft_dir(draft32: DraftModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_draft.write(draft32, tmp_path_factory.mktemp("draft") / "tiny")
