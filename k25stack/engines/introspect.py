"""Reads an engine's own option parser: the origin of the files in ``catalogues/``.

A script of its own (standard library only), since it runs under the engine's Python, not under ours::

    PYTHON introspect.py sglang 0.5.20 --site UNPACKED_WHEEL            the catalogue, as JSON
    PYTHON introspect.py sglang 0.5.20 --site UNPACKED_WHEEL --parse    a JSON list per line of stdin, of the words
                                                                        behind ``sglang serve``; per line {"ok": true}
                                                                        or {"ok": false, "error"}

Nothing of the engine is started and no GPU is needed.  An environment of small packages is enough
(``images/parsers/requirements.lock``); torchvision is left out there, since its wheels do not match the CPU build of
torch, and an empty package stands in its place: the engines import names from it on the way to their parser.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

VLLM_HOMES = ("common.cli_args", "launchers.cli_args", "openai.cli_args")  # newest first
SPELLING = re.compile(r"--[a-z0-9][\w{},-]*(?:=\w+)?")


def sglang_parser() -> argparse.ArgumentParser:
    stand_in_for_torchvision()
    parser = argparse.ArgumentParser(prog="sglang serve")
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser


class Nothing:
    """Whatever is imported from torchvision; the way to the parser only names such things."""

    def __init__(self, *words: object, **named: object) -> None: ...

    def __call__(self, *words: object, **named: object) -> Nothing:
        return Nothing()

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class TorchvisionFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision and everything below it, and has nothing in it."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        ours = name.split(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__.update(__path__=[], __version__="0", __getattr__=Nothing().__getattr__)
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def stand_in_for_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(TorchvisionFinder())


def sglang_words(words: list[str]) -> list[str]:
    """What ``sglang serve`` hands to the parser: it takes some words for itself, where its version does."""
    with contextlib.suppress(ImportError, AttributeError):
        serve = importlib.import_module("sglang.cli.serve")
        _, words = serve._extract_model_type_override(words)
        words, _ = serve._normalize_positional_model_path(words)
    return words


def vllm_parser(whole: bool = False) -> argparse.ArgumentParser:
    """The parser of ``serve``; ``whole``: the one of ``vllm``, which has it below and does things on the way."""
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    main = flexible(prog="vllm")
    serve = main.add_subparsers(dest="subparser").add_parser("serve") if whole else flexible(prog="vllm serve")
    for home in VLLM_HOMES:
        if importlib.util.find_spec(f"vllm.entrypoints.{home.split('.')[0]}") is None:
            continue
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(f"vllm.entrypoints.{home}")
            parser: argparse.ArgumentParser = module.make_arg_parser(serve)
            return main if whole else parser
    raise SystemExit("no make_arg_parser in this vllm")


ENGINES = ("sglang", "vllm")


def describe(action: argparse.Action) -> dict[str, Any]:
    """What decides whether a word is taken: number of values, type and choices; and whether it is on its way out."""
    found: dict[str, Any] = {"type": type_name(action)}
    if action.nargs == 0:
        found = {}
    elif action.nargs is not None:
        found["nargs"] = action.nargs
    if action.choices is not None:
        found["choices"] = sorted(action.choices, key=lambda choice: (choice is None, str(choice)))
    if action.required:
        found["required"] = True
    if type(action).__name__.endswith("AppendAction"):
        found["repeats"] = True
    if (replacement := deprecated(action)) is not None:
        found["deprecated"] = replacement
    return found


def type_name(action: argparse.Action) -> str:
    """The name of the converter; "int?" where it also takes "None"."""
    kind = action.type
    if kind is None:
        return "str"
    name = getattr(kind, "__name__", type(kind).__name__)
    inner = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or () if callable(cell.cell_contents)]
    if name in ("_optional_type", "_parse_type") and inner:
        return getattr(inner[0], "__name__", "?") + ("?" if name == "_optional_type" else "")
    return str(name)


def deprecated(action: argparse.Action) -> str | None:
    """The new spelling ("" when none is told) of an option on its way out; None for any other."""
    text = (action.help or "").strip()
    marked = type(action).__name__.startswith("Deprecated") or re.match(r"\W*deprecated\b", text, re.IGNORECASE)
    told = re.match(r"--[\w-]+ is deprecated", text) is not None or getattr(action, "deprecated", False)
    if not marked and not told:
        return None
    new = getattr(action, "new_flag", None)
    if new:
        return str(new)
    others = [word for word in SPELLING.findall(text) if word not in action.option_strings]
    return others[0] if others else ""


def catalogue(engine: str, version: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    options, positionals = {}, {}
    for action in parser._actions:
        if type(action).__name__ == "_HelpAction":
            continue
        names = [name for name, owner in parser._option_string_actions.items() if owner is action]
        if names:
            options[" ".join(names)] = describe(action)
        else:
            positionals[action.dest] = {"nargs": action.nargs}
    return {
        "engine": engine,
        "version": version,
        "source": f"the argument parser of the {engine} {version} wheel, read by engines/introspect.py",
        "positionals": positionals,
        "options": dict(sorted(options.items())),
    }


def text(value: dict[str, Any]) -> str:
    """JSON with one option per line, so that two versions can be compared line by line."""
    options = ",\n".join(
        f"  {json.dumps(names)}: {json.dumps(facts, ensure_ascii=False)}" for names, facts in value["options"].items()
    )
    head = {key: item for key, item in value.items() if key != "options"}
    lines = [f" {json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in head.items()]
    return "{\n" + ",\n".join(lines) + ',\n "options": {\n' + options + "\n }\n}\n"


def parse_line(engine: str, parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(["serve", *words] if engine == "vllm" else sglang_words(words))
    except SystemExit as stop:
        return {"ok": not stop.code, "error": said.getvalue().strip().rsplit("\n", 1)[-1]}
    except Exception as error:  # a converter that fails outside argparse: the server would not start either
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {"ok": True}


def main() -> None:
    me = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    me.add_argument("engine", choices=ENGINES)
    me.add_argument("version")
    me.add_argument("--site", type=Path, help="directory of the unpacked wheel, if it is not installed")
    me.add_argument("--parse", action="store_true")
    asked = me.parse_args()
    here = Path(__file__).resolve().parent  # holds a vllm.py and an sglang.py of its own
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != here]
    if asked.site is not None:
        sys.path.insert(0, str(asked.site.resolve()))
    out, sys.stdout = sys.stdout, sys.stderr  # engines print while they are imported
    parser = vllm_parser(asked.parse) if asked.engine == "vllm" else sglang_parser()
    if asked.parse:
        for line in sys.stdin:
            print(json.dumps(parse_line(asked.engine, parser, json.loads(line))), file=out, flush=True)
    else:
        out.write(text(catalogue(asked.engine, asked.version, parser)))


if __name__ == "__main__":
    main()
