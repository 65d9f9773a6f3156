"""Words against a catalogue: the rules of argparse, told as findings instead of the first error."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.engines.catalogue import Option, catalogue, remarks, versions
from k25stack.engines.scan import Scan, scan
from k25stack.engines.values import convert, sized
from k25stack.errors import UsageError

MODEL = "--model-path m "


def read(line: str, engine: str = "sglang", version: str = "0.5.20") -> Scan:
    known = catalogue(engine, version)
    assert known is not None
    return scan(known, shlex.split(line))


def refusals(line: str, engine: str = "sglang", version: str = "0.5.20") -> list[tuple[str, str]]:
    return [(found.kind, found.word) for found in read(line, engine, version).refusals]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (MODEL + "--tp-size 8 --disable-radix-cache", []),
        (MODEL + "--tp-size=8", []),
        (MODEL + "--context-length 32k --max-total-tokens 1Ki", []),
        (MODEL + "--cuda-graph-bs-decode 1 2 4 --tp-size 8", []),
        (MODEL + "--model-checksum --tp-size 8", []),  # takes a value or none
        (MODEL + "--hicache-ratio -1.5", []),  # a negative number is a value
        (MODEL + "--served-model-name '-a name'", []),  # and so is a word with a space
        ("--tp-size 8", [("required", "--model-path")]),
        (MODEL + "--tp 8", [("name", "--tp")]),
        (MODEL + "--tp=8", [("name", "--tp")]),
        (MODEL + "--cuda-graph-max-bs 8", [("name", "--cuda-graph-max-bs")]),
        (MODEL + "--no-such thing --tp-size 8", [("name", "--no-such")]),  # its value is not a stray word too
        (MODEL + "--tp-size eight", [("value", "--tp-size")]),
        (MODEL + "--attention-backend tritom", [("value", "--attention-backend")]),
        (MODEL + "--tp-size --disable-radix-cache", [("missing", "--tp-size")]),
        (MODEL + "--tp-size", [("missing", "--tp-size")]),
        (MODEL + "--cuda-graph-bs-decode --tp-size 8", [("missing", "--cuda-graph-bs-decode")]),
        (MODEL + "--disable-radix-cache=true", [("unexpected", "--disable-radix-cache")]),
        (MODEL + "--disable-radix-cache true", [("stray", "true")]),
        (MODEL + "stray --tp-size 8", [("stray", "stray")]),
        (MODEL + "-- --tp-size", [("stray", "--"), ("stray", "--tp-size")]),
        (MODEL + "--", [("stray", "--")]),  # this parser has no place for a word alone
        (MODEL + "---tp 8", [("name", "---tp")]),
        (MODEL + "--cuda-graph-config {bad", [("value", "--cuda-graph-config")]),
        (MODEL + "-z", [("name", "-z")]),
    ],
)
def test_what_the_engines_parser_would_refuse(line: str, expected: list[tuple[str, str]]) -> None:
    assert refusals(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("m -tp 8 --max-num-seqs 4", []),
        ("--tensor-parallel-size 8 m", []),
        ("m --tensor_parallel_size 8", []),  # underscores are dashes
        ("m -O3", []),
        ("m --compilation-config.mode 3 --speculative-config.method eagle3", []),
        ("m --max-model-len auto", []),
        ("m --moe-backend Triton", []),  # that converter folds case
        ("m extra", [("stray", "extra")]),
        ("m --speculative-config {bad", [("value", "--speculative-config")]),
        ("m --tensor-par 8", [("name", "--tensor-par")]),
        ("m --nothing.key 3", [("name", "--nothing")]),
        ("m --tp 8", [("name", "--tp")]),  # -tp has one dash
        ("m --dp 2", [("name", "--dp")]),  # ... and here the parser cannot even tell what is meant
        ("m -t 8", [("name", "-t")]),
        ("m -p 8", [("name", "-p")]),
        ("m -O 3 -tp=8 -dcp 2", []),
        ("m -O", [("name", "-O")]),
        ("m --compilation-config 3", [("value", "--compilation-config")]),
        ("m --attention-config x", [("value", "--attention-config")]),
        ("m --mm-processor-kwargs x", [("value", "--mm-processor-kwargs")]),
        ("m --", []),
    ],
)
def test_vllm_has_ways_of_its_own(line: str, expected: list[tuple[str, str]]) -> None:
    assert refusals(line, "vllm", "0.31.0") == expected


@pytest.mark.parametrize(
    ("line", "fix"),
    [("m --tp 8", "write tensor-parallel-size"), ("m --dp 2", "write data-parallel-size"),
     ("m -t 8", "write tensor-parallel-size"), ("m -port 8", "write --port"),
     ("m --max-model-len x", "give a whole number, also as 32k, or auto")],
)  # fmt: skip
def test_the_fix_is_what_to_write(line: str, fix: str) -> None:
    found = read(line, "vllm", "0.31.0")
    assert [one.fix for one in found.refusals] == [fix]


def test_every_problem_of_a_line_is_told_at_once() -> None:
    line = "--tp 8 --atention-backend triton --mem-fraction-static much stray"
    assert [kind for kind, _ in refusals(line)] == ["name", "name", "value", "stray", "required"]


def test_values_are_converted_and_the_last_one_counts() -> None:
    line = read(MODEL + "--tp-size 4 --tp-size 8 --cuda-graph-bs-decode 1 2 --disable-radix-cache")
    tp, batches, flag = (line.last(name) for name in ("--tp-size", "--cuda-graph-bs-decode", "--disable-radix-cache"))
    assert tp is not None and tp.value == 8
    assert batches is not None and batches.value == [1, 2]
    assert flag is not None and flag.value is True
    assert [found[0].option.name for found in line.repeated()] == ["--tp-size"]


@pytest.mark.parametrize(
    ("word", "engine", "value"),
    [
        ("32k", "sglang", 32000),
        ("32Ki", "sglang", 32768),
        ("25.6k", "sglang", 25600),
        ("32K", "vllm", 32768),
        ("25.6k", "vllm", 25600),
        ("7", "vllm", 7),
    ],
)
def test_sizes_mean_what_each_engine_makes_of_them(word: str, engine: str, value: int) -> None:
    assert sized(word, engine) == value


@pytest.mark.parametrize(
    ("word", "engine"), [("1.5Ki", "sglang"), ("1.5K", "vllm"), ("1K", "sglang"), ("", "vllm"), ("9" * 5000, "vllm")]
)
def test_sizes_that_are_none(word: str, engine: str) -> None:
    with pytest.raises(ValueError):
        sized(word, engine)


def test_sizes_beyond_any_number_are_refused() -> None:
    for word in ("9" * 400 + "k", "9" * 400 + "K", "9" * 5000):
        assert [kind for kind, _ in refusals(f"m --max-model-len {word}", "vllm", "0.31.0")] in ([], ["value"])
        assert [kind for kind, _ in refusals(f"{MODEL} --context-length {word}")] == ["value"]


def test_none_is_a_value_only_where_the_parser_says_so() -> None:
    assert convert(Option(("--x",), None, "int?"), "None", "vllm") is None
    with pytest.raises(ValueError, match="whole number"):
        convert(Option(("--x",), None, "int"), "None", "vllm")


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["--tp-size", "--tp", "--", "-", "-1", "--x=", "--model-path", "--compilation-config.", "-O", "-O3", "="]
    ),
)


@settings(deadline=None, max_examples=100)  # the first example reads the catalogues
@given(st.lists(WORDS, max_size=8))
def test_any_words_are_read_without_an_error(words: list[str]) -> None:
    for engine, version in (("sglang", "0.5.20"), ("vllm", "0.31.0")):
        known = catalogue(engine, version)
        assert known is not None
        line = scan(known, words)
        assert len(line.given) <= len(words)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_catalogues_agree_with_the_reviewed_table(engine: str) -> None:
    """What is called dead exists; what is called renamed is gone or deprecated; what is to be written exists."""
    for version in versions(engine):
        known = catalogue(engine, version)
        assert known is not None
        for name, remark in remarks(engine, version).items():
            option = known.options.get(f"--{name}")
            assert remark.source
            if remark.kind == "dead":
                assert option is not None, (version, name)
            else:
                assert option is None or option.deprecated is not None, (version, name)


def test_versions_that_were_not_read_are_judged_by_the_nearest_older() -> None:
    for asked, read_as in {"0.5.21": "0.5.20", "0.5.20.post1": "0.5.20", "1.0": "0.5.23", "0.4": "0.5.9"}.items():
        known = catalogue("sglang", asked)
        assert known is not None and known.read_as == read_as
        assert known.exact is (asked == "0.5.20.post1")
    assert catalogue("reference", "0.1.0") is None
    with pytest.raises(UsageError, match="no version"):
        catalogue("sglang", "newest")


def test_all_seven_catalogues_are_there() -> None:
    assert versions("sglang") == ["0.5.9", "0.5.16", "0.5.20", "0.5.23"]
    assert versions("vllm") == ["0.31.0", "0.32.0", "0.33.0"]
