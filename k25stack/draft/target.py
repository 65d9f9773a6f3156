"""What a draft must know of its target, from the target's config.json alone (no torch, no weights)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import UsageError

# Model types whose SGLang class is DeepSeek's or wraps it; all others shift layer ids as Llama does.
DEEPSEEK_TYPES = frozenset(
    (
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "kimi_k2",
        "kimi_k25",
        "kimi_vl",
        "deepseek_vl_v2",
        "glm_moe_dsa",
        "glm4_moe_lite",
    )
)
MAX_CONFIG_BYTES = 16_000_000
DRAFT_KEYS = ("draft_vocab_size", "eagle_config", "speculators_config")  # in a draft's config alone


def layer_family(name: str) -> str:
    """The family, llama or deepseek, of a model type or family name such as kimi_k25: how SGLang shifts layer ids."""
    return "deepseek" if name == "deepseek" or name in DEEPSEEK_TYPES else "llama"


@dataclass(frozen=True)
class TargetFacts:
    """Sizes of a target model, whether its config is flat or nested under ``text_config``."""

    model_type: str
    family: str  # "llama" or "deepseek": how SGLang shifts layer ids
    hidden: int
    layers: int
    vocab: int
    context: int
    eos_ids: tuple[int, ...]
    bos_id: int | None = None

    @classmethod
    def read(cls, path: Path) -> TargetFacts:
        """Read a model directory or its config.json.  Raises UsageError when that is not a target's config."""
        file = path / "config.json" if path.is_dir() else path
        outer = read_object(file)
        if any(key in outer for key in DRAFT_KEYS):
            raise UsageError(
                "the config of a draft", where=str(file), remedy="give the target's, which the draft is for"
            )
        inner = outer.get("text_config") or outer.get("language_config") or outer
        if not isinstance(inner, Mapping):
            raise UsageError("text_config is not an object", where=str(file))

        def whole(name: str) -> int:
            value = inner.get(name, outer.get(name))
            if type(value) is not int or value <= 0:
                raise UsageError(f"{name} is {value!r}, not a whole number", where=str(file), remedy="give the target")
            return value

        types = [str(config.get("model_type", "")) for config in (outer, inner)]
        generation = file.parent / "generation_config.json"
        eos = inner.get("eos_token_id", outer.get("eos_token_id"))
        if generation.is_file():
            eos = read_object(generation).get("eos_token_id", eos)
        bos = inner.get("bos_token_id", outer.get("bos_token_id"))
        return cls(
            model_type=types[0] or types[1],
            family="deepseek" if "deepseek" in map(layer_family, types) else "llama",
            hidden=whole("hidden_size"),
            layers=whole("num_hidden_layers"),
            vocab=whole("vocab_size"),
            context=whole("max_position_embeddings"),
            eos_ids=tuple(item for item in (eos if isinstance(eos, list) else [eos]) if type(item) is int),
            bos_id=bos if type(bos) is int else None,
        )


def strict_json(text: str) -> Any:
    """Parse JSON; raises ValueError for NaN and infinity, for names given twice, and for nesting without end."""

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a name is given twice")
        return result

    try:
        return json.loads(text, parse_constant=constant, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("nested without end") from None


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object from a small file.  Raises UsageError when it is missing, too big, or no JSON object."""
    if not file.is_file():
        raise UsageError("not a file" if file.exists() else "no such file", where=str(file))
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise UsageError(f"{file.stat().st_size} bytes are too many for a config", where=str(file))
    try:
        value = strict_json(file.read_bytes().decode("utf-8"))
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=str(file), remedy="mend the file") from None
    if not isinstance(value, dict):
        raise UsageError("not a JSON object", where=str(file), remedy="mend the file")
    return value
