"""Versions with known holes."""

from __future__ import annotations

import pytest

from k25stack.contract.security import advisories, check_version, floor, table
from k25stack.engines.versions import version_key


@pytest.mark.parametrize(
    ("package", "version", "verdict"),
    [
        ("sglang", "0.5.9", "fail"),
        ("sglang", "0.5.10", "warn"),  # one hole of which only the merge date is known
        ("sglang", "0.5.16", "pass"),
        ("sglang", "0.5.20", "pass"),
        ("vllm", "0.17.1", "fail"),
        ("vllm", "0.18.0", "pass"),
        ("vllm", "0.31.0", "pass"),
        ("transformers", "5.2.0", "fail"),
        ("nvidia-container-toolkit", "1.17.7", "fail"),
    ],
)
def test_the_floor_of_a_package(package: str, version: str, verdict: str) -> None:
    (check,) = check_version(package, version, "x")
    assert (check.id, check.verdict.value) == ("L43", verdict)
    assert bool(check.fix) is (verdict != "pass")


def test_nothing_is_said_of_what_is_not_in_the_table() -> None:
    assert list(check_version("torch", "2.0", "x")) == []
    assert list(check_version("sglang", "main", "x")) == []


def test_every_row_names_its_source_and_every_fix_is_a_version() -> None:
    for row in table():
        assert row.source and row.what and row.id
        assert row.fixed is None or version_key(row.fixed)


def test_the_floor_closes_every_hole_that_can_be_closed() -> None:
    for package in {row.package for row in table()}:
        assert advisories(package, floor(package)) == []
