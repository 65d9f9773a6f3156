"""What is judged may hold anything; what is printed is plain lines and JSON of the standard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract_cases import edit_config, kimi_case, write_case
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.cli.main import main
from k25stack.contract.finding import SHOWN, Check, Result, Verdict, lines, one_line, plain

NASTY: list[Any] = [float("inf"), float("-inf"), "\ud800", "\x1b[2J\x1b[H", "a\nPASS: draft x: 31 pass", "\u202egnih",
                    "A" * 9_000, list(range(3_000)), [1, "x"], True, {"\ud800": "\n"}]  # fmt: skip
KEYS = ("architectures", "norm_output", "eagle_aux_hidden_state_layer_ids")


def strict(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def config_with(draft: Path, key: str, value: Any) -> None:
    edit_config(draft, **{key: value})
    file = draft / "config.json"
    file.write_text(file.read_text().replace("Infinity", "1e999"))  # which strict JSON allows, and reads as infinity


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("number", range(len(NASTY)))
def test_the_command_line_prints_plain_text(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], key: str, number: int
) -> None:
    draft = write_case(tmp_path / "draft", kimi_case())
    config_with(draft, key, NASTY[number])
    for words in (["check", str(draft)], ["draft", "inspect", str(draft)]):
        assert main(words) in (0, 1, 2, 3)
        out, err = (text.decode("utf-8") for text in capfdbinary.readouterr())
        shown = [line for line in out.splitlines() if line]
        assert all(line.isprintable() and len(line) < SHOWN + 200 for line in shown), shown
        assert sum(line.startswith("PASS:") for line in shown) <= (words[0] == "check")
        assert "Traceback" not in err
        if main([*words, "--json"]) in (0, 1):
            strict(capfdbinary.readouterr()[0].decode("utf-8"))
        capfdbinary.readouterr()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(values)
@settings(max_examples=60, deadline=None)
def test_any_evidence_is_json_and_one_line(value: Any) -> None:
    check = Check("C0", "files", Verdict.FAIL, str(value), {"found": value, "set": {1}, "huge": 10**5000})
    result = Result(str(value), "draft", (check,))
    text = json.dumps(result.as_dict(), ensure_ascii=False, allow_nan=False)
    assert strict(text.encode("utf-8").decode())["checks"][0]["id"] == "C0"
    assert [line for line in lines(result) if not line.isprintable()] == []


def test_what_is_already_plain_stays() -> None:
    evidence = {"a": [1, 2.5, None, True, "ü"], "b": {"c": ()}}
    assert plain(evidence) == {"a": [1, 2.5, None, True, "ü"], "b": {"c": []}}
    assert one_line("ü: 3H, 中文") == "ü: 3H, 中文"
    assert "99 characters more" in one_line("x" * (SHOWN + 99))


def test_one_wrong_target_does_not_hide_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draft = write_case(tmp_path / "draft", kimi_case())
    for missing in (["nowhere", str(draft)], [str(draft), "nowhere"]):
        assert main(["check", *missing]) == 2
        out, err = capfd.readouterr()
        assert out.startswith("PASS: draft ")
        assert err.startswith("error: nowhere: ")


@pytest.mark.parametrize("target", ["nowhere", "nowhere.yaml", ".", "/dev/zero", ""])
def test_what_is_missing_or_of_no_kind_is_usage(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", target]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
