"""``--config FILE``: the options of a YAML file, put where the engines' own mergers put them.

Both engines merge the file in front of the line's own options, so that the line wins, and only for ``--config FILE`` in
two words: ``--config=FILE`` is taken by the parser and read by nothing (sglang ``utils/server_args_config_parser.py``,
vllm ``utils/argparse_utils.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.engines.catalogue import Catalogue

NAME = "--config"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Expanded:
    """The words of a line with its file's options among them, and what is wrong with the file."""

    words: tuple[str, ...]
    problem: str = ""
    remedy: str = ""
    refused: bool = False  # the engine stops, or reads nothing; else the file is only not at hand


def expanded(known: Catalogue, words: Sequence[str]) -> Expanded:
    """Put the file's options into a line.  A line without a file comes back as it is."""
    line = tuple(words)
    if NAME not in known.options:
        return Expanded(line)
    if attached := next((word for word in line if word.startswith(f"{NAME}=")), ""):
        fix = f"write {NAME} {attached.partition('=')[2]}"
        return Expanded(line, f"{attached} is read by nothing: only {NAME} and the file in two words is", fix, True)
    if line.count(NAME) > 1:
        return Expanded(line, f"{NAME} is given {line.count(NAME)} times: the engine stops", "keep one", True)
    if line[-1:] == (NAME,) or NAME not in line:
        return Expanded(line)
    at = line.index(NAME)
    path = Path(line[at + 1])
    if path.suffix not in (".yaml", ".yml"):
        return Expanded(line, f"{NAME} {path}: the engine takes *.yaml and *.yml alone", "rename the file", True)
    try:
        if not path.is_file():
            return Expanded(line, f"{NAME} {path} is not at hand: what it sets is not judged", "check where it lies")
        values = mapping(path)
    except (OSError, ValueError, RecursionError) as error:
        return Expanded(line, f"{NAME} {path} cannot be read: {error}", "mend the file", True)
    own = [word for key, value in values.items() for word in option(known, str(key), value)]
    rest = [*line[:at], *line[at + 2 :]]
    model = 1 if known.positionals and rest and not rest[0].startswith("-") else 0  # vLLM's model stands first
    return Expanded((*rest[:model], *own, *rest[model:]))


def mapping(path: Path) -> Mapping[Any, Any]:
    """The file's mapping.  Raises ValueError for what is none, or has aliases (a few can stand for gigabytes)."""
    import yaml

    raw = path.read_bytes()
    if len(raw) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("it has aliases")
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("no mapping of options")
    return value or {}


def option(known: Catalogue, key: str, value: Any) -> Iterator[str]:
    """The words of one key, as both mergers make them."""
    name = f"--{key}"
    spelled = name.replace("_", "-") if known.engine == "vllm" else name
    found = known.options.get(spelled) or known.options.get(name.replace("_", "-"))
    if isinstance(value, bool):
        if known.engine == "sglang" and (found is None or found.nargs != 0):
            yield from (name, str(value).lower())
        elif value:
            yield name
        elif f"--no-{key}" in known.options:
            yield f"--no-{key}"
    elif isinstance(value, list):
        yield from (name, *map(str, value)) if value else ()
    else:
        yield from (name, json.dumps(value, default=str) if isinstance(value, dict) else str(value))
