"""The result shape: worst verdict, exit code, the lines for people."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack.contract.finding import Check, Result, Verdict, lines, worst


def check(verdict: Verdict) -> Check:
    return Check("C2", "files", verdict, "something", {"n": 1}, "mend it", "a file")


@given(st.lists(st.sampled_from(list(Verdict)), min_size=1))
def test_the_worst_check_decides(verdicts: list[Verdict]) -> None:
    result = Result("t", "draft", tuple(check(verdict) for verdict in verdicts))
    for candidate in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS):
        if candidate in verdicts:
            assert result.verdict is candidate
            break
    assert (result.exit_code == 0) == (result.verdict in (Verdict.PASS, Verdict.WARN))


def test_nothing_looked_at_is_not_a_pass() -> None:
    assert worst([]) is Verdict.UNKNOWN
    assert Result("t", "draft", ()).exit_code == 3


def test_the_json_shape() -> None:
    raw = json.loads(json.dumps(Result("t", "draft", (check(Verdict.WARN),)).as_dict()))
    assert set(raw) == {"target", "kind", "verdict", "checks"}
    assert set(raw["checks"][0]) == {"id", "group", "verdict", "message", "evidence", "fix", "source"}
    assert raw["verdict"] == raw["checks"][0]["verdict"] == "warn"


@pytest.mark.parametrize("verbose", [False, True])
def test_people_see_what_did_not_pass(verbose: bool) -> None:
    text = list(lines(Result("t", "draft", (check(Verdict.PASS), check(Verdict.FAIL))), verbose))
    assert text[-1] == "FAIL: draft t: 1 fail, 1 pass"
    assert any(line.startswith("PASS") for line in text) == verbose
    assert any("fix: mend it" in line for line in text)
