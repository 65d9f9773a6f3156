"""Whether an option's converter takes a word, by the converter's name in the catalogue (standard library only).

Only converters whose rule is known are judged; of any other every word is taken for good.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from k25stack.engines.catalogue import Option

SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}  # SGLang: case matters
IEC = {f"{unit}i": 1 << 10 * power for power, unit in enumerate("KMGT", 1)}
GRAPH_PHASES = ("decode", "prefill")


def sized(word: str, engine: str) -> int:
    """``32k`` as SGLang reads it (k and Ki) or as vLLM does (k decimal, K binary).  Raises ValueError."""
    text = word.strip()
    found = re.fullmatch(r"(\d+)(\.\d+)?(Ki|Mi|Gi|Ti|[kKmMgGtT])", text)
    if found is None:
        return int(text)
    whole, part, unit = found.group(1), found.group(2) or "", found.group(3)
    if engine == "vllm" and len(unit) == 1:
        factor = 1000 if unit.islower() else 1024
        factor **= "kmgt".index(unit.lower()) + 1
        exact = unit.isupper()
    elif engine != "vllm" and unit in SI:
        factor, exact = SI[unit], False
    elif engine != "vllm" and unit in IEC:
        factor, exact = IEC[unit], True
    else:
        raise ValueError(f"{word!r} has no unit that {engine} knows")
    if part and exact:
        raise ValueError(f"{word!r} has decimals before a binary unit")
    return int(float(whole + part) * factor)


def graph_config(word: str, engine: str) -> Any:
    value = json.loads(word)
    if not isinstance(value, dict) or not all(
        phase in GRAPH_PHASES and isinstance(settings, dict) for phase, settings in value.items()
    ):
        raise ValueError("not an object with decode and prefill")
    return value


def graph_backend(word: str, engine: str) -> str:
    if word == "tc_piecewise":
        raise ValueError("tc_piecewise was removed")
    return word


def size_or_auto(word: str, engine: str) -> int:
    return -1 if word.strip().lower() in ("-1", "auto") else sized(word, engine)


def json_object(word: str, engine: str) -> dict[str, Any]:
    value = json.loads(word)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


Converter = Callable[[str, str], Any]
CONVERTERS: dict[str, Converter] = {
    "str": lambda word, engine: word,
    "int": lambda word, engine: int(word),
    "float": lambda word, engine: float(word),
    "loads": lambda word, engine: json.loads(word),
    "json_list_type": lambda word, engine: json.loads(word),
    "_parse_type": lambda word, engine: json.loads(word),
    "parse_dataclass": json_object,
    "human_readable_int": sized,
    "human_readable_int_or_auto": size_or_auto,
    "parse_cuda_graph_config_arg": graph_config,
    "parse_cuda_graph_backend_arg": graph_backend,
}
MEANT = {
    "int": "a whole number",
    "float": "a number",
    "loads": "JSON",
    "json_list_type": "JSON",
    "_parse_type": "JSON",
    "parse_dataclass": "a JSON object",
    "human_readable_int": "a whole number, also as 32k",
    "human_readable_int_or_auto": "a whole number, also as 32k, or auto",
    "parse_cuda_graph_config_arg": 'JSON as {"decode": {...}, "prefill": {...}}',
    "parse_cuda_graph_backend_arg": "a graph backend",
}


def convert(option: Option, word: str, engine: str) -> Any:
    """The value of a word.  Raises ValueError with what was expected, or with the choices."""
    kind = option.type.removesuffix("?")
    if kind != option.type and word in ("", "None"):
        return None
    converter = CONVERTERS.get(kind)
    try:
        value = converter(word, engine) if converter else word
    except (ValueError, OverflowError, RecursionError):
        raise ValueError(f"should be {MEANT.get(kind, kind)}") from None
    if option.choices is None or value in option.choices:
        return value
    if converter is None and loose(word) in option.choices:  # a converter that folds case and dashes
        return loose(word)
    raise ValueError(f"should be one of {listed(option.choices)}")


def loose(word: str) -> str:
    return word.lower().replace("-", "_")


def listed(choices: Sequence[Any]) -> str:
    return ", ".join(str(choice) for choice in choices if choice is not None)
