"""What the reference target needs to know of a model's config.json (no torch)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, UsageError, in_words
from k25stack.files import read_json

ARCHITECTURE = "LlamaForCausalLM"


@dataclass(frozen=True)
class TargetConfig:
    """Shapes and constants of a Llama."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    rms_eps: float
    context: int  # positions
    tied: bool  # head and embedding are one matrix
    eos_ids: tuple[int, ...]  # any of them ends a response
    bos_id: int | None

    @property
    def scale(self) -> float:
        """What scores are multiplied with: 1 / sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    @classmethod
    def read(cls, directory: Path) -> TargetConfig:
        """Raises UsageError for a missing file or another architecture, DamageError for a file that is not readable."""
        path = directory / "config.json"
        raw = _read(path)
        refuse_unsupported(raw, str(path))
        try:
            heads = int(raw["num_attention_heads"])
            rope = raw.get("rope_parameters") or {}
            return cls(
                hidden=int(raw["hidden_size"]),
                layers=int(raw["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
                intermediate=int(raw["intermediate_size"]),
                vocab=int(raw["vocab_size"]),
                rope_theta=float(raw.get("rope_theta") or rope["rope_theta"]),
                rms_eps=float(raw["rms_norm_eps"]),
                context=int(raw["max_position_embeddings"]),
                tied=bool(raw.get("tie_word_embeddings", False)),
                eos_ids=_eos(directory, raw),
                bos_id=raw.get("bos_token_id"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamageError(f"not a complete Llama config: {in_words(error)}", where=str(path)) from None


def refuse_unsupported(raw: dict[str, Any], where: str) -> None:
    """Raises UsageError naming the first thing that this forward pass would compute wrongly."""
    architectures = raw.get("architectures") or [raw.get("model_type")]
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    checks = (
        (architectures[0] in (ARCHITECTURE, "llama"), f"architecture {architectures[0]}"),
        (kind == "default", f"rotary scaling {kind}"),
        (raw.get("hidden_act", "silu") == "silu", f"activation {raw.get('hidden_act')}"),
        (not raw.get("attention_bias") and not raw.get("mlp_bias"), "biases in attention or MLP"),
        ("quantization_config" not in raw, "quantized weights"),
    )
    for supported, what in checks:
        if not supported:
            remedy = "serve this model with SGLang or vLLM instead"
            raise UsageError(f"the reference engine does not run {what}", where=where, remedy=remedy)


def _eos(directory: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    generation = directory / "generation_config.json"
    found = _read(generation).get("eos_token_id") if generation.is_file() else None
    value = raw.get("eos_token_id") if found is None else found
    return tuple(value) if isinstance(value, list) else () if value is None else (int(value),)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"no {path.name}", where=str(path.parent), remedy="give a model directory") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamageError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(value, dict):
        raise DamageError("not a JSON object", where=str(path))
    return value
