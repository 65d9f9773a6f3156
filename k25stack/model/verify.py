"""Is a directory a usable target model?  Answered from its config, tokenizer files and safetensors headers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, UsageError, in_words
from k25stack.files import read_json
from k25stack.model.tensorfile import TensorInfo, read_header
from k25stack.model.tokenizer import missing_files

REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class TargetFacts:
    """What a target says about itself, checked against its tensors where the family is known."""

    family: str  # config.json's model_type
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int  # tokens
    tied: bool
    tensors: int
    bytes: int  # of all weight files


def verify_target(directory: Path) -> TargetFacts:
    """Check a Hugging Face model directory.

    Raises UsageError when it is not one (no config, tokenizer or weights: the message names the files), DamageError
    when a weight file is damaged or a tensor is missing or of another shape than the config says.
    """
    if not directory.is_dir():
        raise UsageError("no such model directory", where=str(directory), remedy="give a directory with config.json")
    if not (directory / "config.json").is_file():
        raise UsageError("no config.json: not a model directory", where=str(directory), remedy="check the path")
    if missing := missing_files(directory):
        what = f"target without tokenizer: {', '.join(missing)} missing"
        raise UsageError(what, where=str(directory), remedy="add the tokenizer files of the model")
    config = read_config(directory)
    files = weight_files(directory)
    tensors: dict[str, TensorInfo] = {}
    for path in files:
        tensors.update(read_header(path).tensors)
    text = config.get("text_config", config)
    heads = text["num_attention_heads"]
    facts = TargetFacts(
        family=str(config.get("model_type", "unknown")),
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or text["hidden_size"] // heads,
        intermediate=text["intermediate_size"],
        vocab=text["vocab_size"],
        context=text.get("max_position_embeddings", 0),
        tied=bool(text.get("tie_word_embeddings", False)),
        tensors=len(tensors),
        bytes=sum(path.stat().st_size for path in files),
    )
    if facts.family == "llama":
        _check_llama(directory, facts, tensors)
    return facts


def read_config(directory: Path) -> dict[str, Any]:
    """config.json with the keys every target needs.  Raises UsageError naming the first that is missing."""
    path = directory / "config.json"
    try:
        config: dict[str, Any] = read_json(path)
        text = config.get("text_config", config)
        lacking = [key for key in REQUIRED if not isinstance(text.get(key), int)]
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise DamageError(f"not a model config: {error}", where=str(path), remedy="restore the file") from None
    if lacking:
        raise UsageError(f"{', '.join(lacking)} missing", where=str(path), remedy="give a causal language model")
    return config


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model, by its index when it has one.  Raises UsageError or DamageError."""
    index = directory / INDEX
    if not index.is_file():
        if not (found := sorted(directory.glob("*.safetensors"))):
            remedy = "convert the weights: only safetensors is read"
            raise UsageError("no safetensors file", where=str(directory), remedy=remedy)
        return found
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(
            f"not a weight index: {in_words(error)}", where=str(index), remedy="restore the file"
        ) from None
    if missing := [name for name in names if not (directory / name).is_file()]:
        what = f"{len(missing)} of {len(names)} weight files missing, first {missing[0]}"
        raise DamageError(what, where=str(directory), remedy="fetch the model again")
    return [directory / name for name in names]


def llama_tensors(facts: TargetFacts) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Llama-like model's tensors (Hugging Face spelling)."""
    hidden, wide = facts.hidden, facts.intermediate
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    yield "model.embed_tokens.weight", (facts.vocab, hidden)
    for layer in range(facts.layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (hidden,)
        yield name + "self_attn.q_proj.weight", (queries, hidden)
        yield name + "self_attn.k_proj.weight", (keys, hidden)
        yield name + "self_attn.v_proj.weight", (keys, hidden)
        yield name + "self_attn.o_proj.weight", (hidden, queries)
        yield name + "post_attention_layernorm.weight", (hidden,)
        yield name + "mlp.gate_proj.weight", (wide, hidden)
        yield name + "mlp.up_proj.weight", (wide, hidden)
        yield name + "mlp.down_proj.weight", (hidden, wide)
    yield "model.norm.weight", (hidden,)
    if not facts.tied:
        yield "lm_head.weight", (facts.vocab, hidden)


def _check_llama(directory: Path, facts: TargetFacts, tensors: dict[str, TensorInfo]) -> None:
    for name, shape in llama_tensors(facts):
        if name not in tensors:
            raise DamageError(f"tensor {name} is missing", where=str(directory), remedy="fetch the model again")
        if tensors[name].shape != shape:
            what = f"{name} is {list(tensors[name].shape)}, config.json says {list(shape)}"
            raise DamageError(what, where=str(directory), remedy="config.json and weights are of different models")
