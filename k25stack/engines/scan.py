"""A command line against a catalogue: which options it gives, with which values, and what their parser would refuse.

The rules are those of argparse, which both engines build on: an exact name, else a name before ``=``, else the one
name that begins so; a word that looks like an option is never a value, except a negative number or one with a space
in it.  vLLM folds underscores in names into dashes, takes ``-O3``, and ``--some-config.key value`` for JSON: all such
keys of an option make one more value of it behind the line, which replaces a JSON text given before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from k25stack.engines.catalogue import Catalogue, Finding, Option, judge_name
from k25stack.engines.values import convert, sized
from k25stack.engines.versions import version_key

OPTIMIZATION = "--optimization-level"  # vLLM's -O
SGLANG_SERVE_SINCE = (0, 5, 16)  # the nearest older wheel that was read, 0.5.9, takes --model-path alone
NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
Kind = Literal["name", "value", "missing", "unexpected", "stray", "required"]


@dataclass(frozen=True)
class Given:
    """One option of a command line."""

    option: Option
    spelled: str  # as it was typed, without its value
    words: tuple[str, ...]
    values: tuple[Any, ...]  # converted; a word that could not be stands as it is
    position: int  # of its name in the line

    @property
    def opposite(self) -> bool:
        """The spelling that turns a flag off: --no-..., or in vLLM --disable-... of an --enable-..."""
        names, spelled = self.option.names, self.spelled.replace("_", "-")
        pair = any(name.startswith("--no-") for name in names)
        return pair and spelled.startswith("--") and spelled != next(name for name in names if name.startswith("--"))

    @property
    def value(self) -> Any:
        """True for a bare flag (False for the opposite of one), one value, or all of several."""
        if self.option.nargs == 0:
            return not self.opposite
        return self.values[0] if self.option.nargs in (None, "?") and self.values else list(self.values)


@dataclass(frozen=True)
class Refusal:
    """Something that the engine's parser refuses, or would refuse with another version's options."""

    kind: Kind
    word: str
    message: str
    fix: str
    finding: Finding | None = None  # of the option's name


@dataclass
class Scan:
    """What a line says; ``refusals`` are in its order."""

    known: Catalogue
    given: list[Given] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)  # words that belong to no option
    refusals: list[Refusal] = field(default_factory=list)
    dotted: dict[str, dict[str, Any]] = field(default_factory=dict)  # of vLLM: option -> what its --option.key say
    helped: bool = False  # the parser prints its help and stops

    def last(self, name: str) -> Given | None:
        """The option of this name (with dashes) that counts: the last one."""
        option = self.known.options.get(name)
        found = [given for given in self.given if given.option is option] if option else []
        return found[-1] if found else None

    def repeated(self) -> Iterator[list[Given]]:
        """Options that are given more than once where only the last one counts."""
        by_option: dict[int, list[Given]] = {}
        for given in self.given:
            by_option.setdefault(id(given.option), []).append(given)
        return (found for found in by_option.values() if len(found) > 1 and not found[0].option.repeats)


def scan(known: Catalogue, words: Sequence[str]) -> Scan:
    """Read the words that the parser gets (``served`` gives those behind ``sglang serve`` and ``vllm serve``)."""
    result = Scan(known)
    rest = list(_spread(known, words))
    position = 0
    while position < len(rest):
        word = rest[position]
        if word == "--":
            result.plain += rest[position + 1 :] if known.positionals else rest[position:]
            break
        if not looks_like_option(word, known):
            result.plain.append(word)
            position += 1
            continue
        position = _take(result, rest, position)
    for name, value in result.dotted.items():  # vLLM puts them behind the line, as one text of JSON each
        line = [name, json.dumps(value)]
        result.plain += line[_take(result, line, 0) :]
    _judge_plain(result)
    for option in dict.fromkeys(known.options.values()):
        if option.required and not result.helped and not any(given.option is option for given in result.given):
            result.refusals.append(Refusal("required", option.name, f"{option.name} is missing", "give it"))
    return result


def served(known: Catalogue, launcher: Sequence[str], words: Sequence[str]) -> tuple[list[str], list[Refusal]]:
    """(the words that the parser gets, what is refused before it) of those that follow a launcher.

    ``sglang serve`` takes a model without its option, and ``--model-type llm`` for itself (from 0.5.16 on).
    ``vllm serve`` moves ``--model M`` to the front and stops at a served name with no model in front
    (``sglang/cli/serve.py``, ``vllm/utils/argparse_utils.py``).
    """
    rest = list(words)
    if tuple(launcher[-1:]) != ("serve",):
        return rest, []
    if known.engine == "vllm":
        return _vllm_serve(rest)
    if version_key(known.read_as) < SGLANG_SERVE_SINCE:
        return rest, []
    refusals = []
    name = "--model-type"
    for at in reversed([i for i, word in enumerate(rest) if word == name or word.startswith(f"{name}=")]):
        used = 2 if rest[at] == name else 1
        if not (rest[at + 1 : at + 2] if used == 2 else rest[at].partition("=")[2]):
            refusals.append(Refusal("missing", name, f"{name} needs one value", "give llm"))
        del rest[at : at + used]
    return (["--model-path", *rest] if rest and not rest[0].startswith("-") else rest), refusals


def _vllm_serve(words: list[str]) -> tuple[list[str], list[Refusal]]:
    at = next((i for i, word in enumerate(words) if re.fullmatch(r"--model(=.+)?", word, re.DOTALL)), None)
    if at is not None and (words[at] != "--model" or at + 1 < len(words)):
        used = 2 if words[at] == "--model" else 1
        model = words[at + 1] if used == 2 else words[at].partition("=")[2]
        words = [model, *words[:at], *words[at + used :]]
    named = any(re.match(r"--served[-_]model[-_]name(=.|$)", word) for word in words)
    if not words or not words[0].startswith("-") or not named or any(re.match(r"--config(=.|$)", w) for w in words):
        return words, []
    message = "vllm serve stops at a served name with no model in front"
    return words, [Refusal("required", "model", message, "begin with the model: vllm serve MODEL ...")]


def _spread(known: Catalogue, words: Sequence[str]) -> Iterator[str]:
    """The words as vLLM hands them to argparse: ``-O 3``, ``-O3`` and ``-O=3`` are ``--optimization-level 3``."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if known.engine != "vllm" or not word.startswith("-O"):
            yield word
        elif word != "-O":
            yield from (OPTIMIZATION, word[2:].removeprefix("="))
        else:
            yield OPTIMIZATION if re.fullmatch(r"[0-3]", following) else word


def looks_like_option(word: str, known: Catalogue) -> bool:
    """Whether argparse takes a word for an option."""
    if not word.startswith("-") or word == "-":
        return False
    if known.engine == "vllm" and "." in word.partition("=")[0]:
        return True  # --config.key; a decimal below zero is taken for one as well
    if word in known.options or word.partition("=")[0] in known.options:
        return True
    if NEGATIVE.fullmatch(word):
        return False
    return " " not in word or _find(word, known)[0] is not None


def _take(result: Scan, rest: Sequence[str], position: int) -> int:
    """Read the option at ``position`` with its values; the position after them."""
    word, known = rest[position], result.known
    following = []
    for later in rest[position + 1 :]:
        if later == "--" or looks_like_option(later, known):
            break
        following.append(later)
    name, equals, attached = word.partition("=")
    if word in ("-h", "--help") or (known.engine == "vllm" and name == "--help"):
        result.helped = True
        return position + 1
    if known.engine == "vllm" and "." in name:
        return position + 1 + _dotted(result, name, attached if equals else None, following)
    option, finding = _find(word, known)
    if finding is not None and finding.problem != "dead" and finding.problem != "replaced":
        result.refusals.append(Refusal("name", name, finding.message, finding.remedy, finding))
    if option is None:  # its values are nobody's
        return position + 1 + len(following)
    return position + 1 + _values(result, option, name, attached if equals else None, following, position)


def _find(word: str, known: Catalogue) -> tuple[Option | None, Finding | None]:
    """The option that the parser takes ``word`` for, and what is wrong with its name."""
    name = word if word in known.options else word.partition("=")[0]
    if known.engine == "vllm" and name.startswith("--"):
        name = name.replace("_", "-")
    if name in known.options:
        long = name if name.startswith("--") else known.options[name].name
        return known.options[name], judge_name(known, long[2:])
    finding = judge_name(known, name[2:]) if name.startswith("--") else _short(known, name)
    if finding is not None and finding.problem == "abbreviated":
        return next(option for spelled, option in known.options.items() if spelled.startswith(name)), finding
    return None, finding


def _short(known: Catalogue, name: str) -> Finding:
    """What is wrong with a name of one dash that is no option's own."""
    here = f"{known.engine} {known.version}"
    longer = sorted(spelled for spelled in known.options if spelled.startswith(name))
    if len(longer) == 1:
        whole = known.options[longer[0]].name.lstrip("-")
        return Finding(name[1:], "abbreviated", f"only a beginning of {longer[0]}", f"write {whole}", known.source)
    if longer:
        told = f"{here} cannot tell {', '.join(longer)} apart"
        return Finding(name[1:], "ambiguous", told, "spell one of them out", known.source)
    near = f"-{name}" if f"-{name}" in known.options else ""
    fix = f"write {near}" if near else "leave it out"
    return Finding(name[1:], "unknown", f"{here} has no option {name}", fix, known.source)


def _values(
    result: Scan, option: Option, name: str, attached: str | None, following: Sequence[str], position: int
) -> int:
    """Record the option with the values it takes; how many of the following words those are."""
    least, most = _span(option, len(following))
    if attached is not None:
        taken: Sequence[str] = (attached,)
        if option.nargs == 0:
            result.refusals.append(Refusal("unexpected", name, f"{name} takes no value", f"write {option.name} alone"))
            taken = ()
        used = 0
    else:
        taken = following[:most]
        used = len(taken)
        if used < least:
            what = "one value" if least == 1 else f"{least} values"
            result.refusals.append(Refusal("missing", name, f"{name} needs {what}", "give it"))
    values = []
    for word in taken:
        try:
            values.append(convert(option, word, result.known.engine))
        except ValueError as error:
            values.append(word)
            fix = str(error).replace("should be", "give", 1)
            result.refusals.append(Refusal("value", name, f"{name} {word}: {error}", fix))
    result.given.append(Given(option, name, tuple(taken), tuple(values), position))
    return used


def _span(option: Option, available: int) -> tuple[int, int]:
    """How many values the option takes, at least and at most."""
    if isinstance(option.nargs, int):
        return option.nargs, option.nargs
    most = 1 if option.nargs in (None, "?") else available
    return int(option.nargs in (None, "+")), most


def _dotted(result: Scan, name: str, attached: str | None, following: Sequence[str]) -> int:
    """``--some-config.key value``: one key of an option that takes JSON; ``key+`` adds the items of a list."""
    path, adds = name.removesuffix("+"), name.endswith("+")
    head, *keys = path.split(".")
    if attached is None and not following:
        result.refusals.append(Refusal("missing", name, f"{name} needs one value", "give it"))
        return 0
    word = attached if attached is not None else following[0]
    value: Any = word.split(",") if adds else dotted_value(word)
    option, _ = _find(head, result.known)
    inner = result.dotted.setdefault(option.name if option and option.name.startswith(head) else head, {})
    for key in keys[:-1]:
        deeper = inner.get(key)
        inner[key] = inner = deeper if isinstance(deeper, dict) else {}
    if isinstance(value, list) and isinstance(inner.get(keys[-1]), list):
        inner[keys[-1]] += value
    else:
        inner[keys[-1]] = value
    return 0 if attached is not None else 1


def dotted_value(word: str) -> Any:
    """As vLLM reads it: JSON, else a number with a unit, else the text itself."""
    for read in (json.loads, lambda text: sized(text, "vllm")):
        try:
            return read(word)
        except (ValueError, OverflowError, RecursionError):
            continue
    return word


def _judge_plain(result: Scan) -> None:
    """Words that stand alone: as many as the parser has places for; it counts them last, and not after its help."""
    if result.helped:
        return
    for word in result.plain[len(result.known.positionals) :]:
        fix = "leave it out, or put it after its option"
        result.refusals.append(Refusal("stray", word, f"{word!r} belongs to no option", fix))
