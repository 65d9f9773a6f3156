"""A Llama-like GGUF file as a Hugging Face directory: bf16 safetensors, config, tokenizer, chat template.

Tensors are dequantised and written one by one (rows in blocks), so memory stays near one block and no model object is
built: nothing is left on it that refuses to be saved.  llama.cpp stores the rows of each query and key head with
rotary pairs interleaved; Hugging Face wants the two halves one after the other (llama.cpp, ``convert_hf_to_gguf.py``,
``permute``).  The result is bit-equal to transformers' own reading of the file, in a twentieth of its time, but for the
tokenizer: transformers leaves out the splitting of digits that ``tokenizer.ggml.pre`` asks for (llama.cpp,
``llama-vocab.cpp``), and then divides white space before digits in another way than the model was trained with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.errors import DamageError, HostError, UsageError
from k25stack.files import write_json, write_text
from k25stack.model.tensorfile import Part, write_tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS_AT_ONCE = 4096
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Which splits of the text llama.cpp means by tokenizer.ggml.pre; the byte-level regular expression follows.
PRE_TOKENIZERS = {"smollm": "digits", "gpt-2": "", "default": ""}
CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def convert(gguf: Path, out: Path, revision: str) -> None:
    """Write config, weights, tokenizer and chat template of ``gguf`` into ``out``.

    Raises UsageError for an architecture, tokenizer or tensor this converter does not know, DamageError for a file
    that is no GGUF, HostError when the ``gguf`` package is missing.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise HostError("the gguf package is not installed", remedy="pip install 'k25stack[demo]'") from None
    try:
        reader = GGUFReader(gguf)
    except (ValueError, OSError, IndexError) as error:
        raise DamageError(f"not a GGUF file: {error}", where=str(gguf), remedy="fetch it again") from None
    facts = _Facts(reader, gguf)
    config = _config(facts, {tensor.name for tensor in reader.tensors})
    out.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(facts, out)
    write_json(out / "config.json", config)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(out / "generation_config.json", {"_from_model_config": True, **special})
    parts = sorted((_part(tensor, config, gguf) for tensor in reader.tensors), key=lambda part: part.name)
    write_tensors(out / "model.safetensors", parts, {"format": "pt", "revision": revision})


class _Facts:
    """The GGUF key-value store with errors that name the key."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._fields = reader.fields
        self.path = path

    def get(self, key: str, default: Any = None) -> Any:
        return self._fields[key].contents() if key in self._fields else default

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise UsageError(f"the GGUF file lacks {key}", where=str(self.path), remedy="use a Llama-like model")
        return self._fields[key].contents()


def _config(facts: _Facts, tensors: set[str]) -> dict[str, Any]:
    family = facts["general.architecture"]
    if family != "llama":
        raise UsageError(f"architecture {family!r} cannot be converted", where=str(facts.path), remedy="llama can")
    if "rope_freqs.weight" in tensors or "llama.rope.scaling.type" in facts._fields:
        raise UsageError("scaled rotary positions cannot be converted", where=str(facts.path), remedy="use kind dir")
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("llama.attention.head_count_kv", heads),
        "head_dim": facts.get("llama.rope.dimension_count", facts["llama.embedding_length"] // heads),
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "max_position_embeddings": facts["llama.context_length"],
        "rope_theta": _short(facts.get("llama.rope.freq_base", 10000.0)),
        "rms_norm_eps": _short(facts["llama.attention.layer_norm_rms_epsilon"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def _short(value: float) -> float:
    """The shortest decimal of a float32: GGUF's 9.999999747378752e-06 was written as 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))


def _name(name: str, path: Path) -> str:
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if found is None or found[2] not in BLOCK_NAMES:
        raise UsageError(f"unknown tensor {name}", where=str(path), remedy="use a plain Llama-like model")
    return f"model.layers.{found[1]}.{BLOCK_NAMES[found[2]]}.weight"


def _part(tensor: Any, config: dict[str, Any], path: Path) -> Part:
    """One tensor, to be read and dequantised only when it is written."""
    shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF lists the fastest dimension first
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    kind = tensor.name.split(".")[-2]
    return Part(_name(tensor.name, path), "BF16", shape, _pieces(tensor, heads.get(kind)))


def _pieces(tensor: Any, heads: int | None) -> Iterator[memoryview]:
    import numpy as np
    from gguf import dequantize

    stored = tensor.data  # [rows, bytes per row] when quantised: a row holds whole blocks, so rows can be reordered
    if heads is not None:
        order = np.arange(len(stored)).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        stored = stored[order]
    for begin in range(0, len(stored), ROWS_AT_ONCE):
        rows = np.ascontiguousarray(stored[begin : begin + ROWS_AT_ONCE])
        values: Any = _to_bf16(np.ascontiguousarray(dequantize(rows, tensor.tensor_type), dtype=np.float32))
        yield memoryview(values)


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; weights are finite, so no NaN needs care."""
    import numpy as np

    bits = values.view(np.uint32)
    odd = (bits >> 16) & 1
    return ((bits + (odd + 0x7FFF)) >> 16).astype(np.uint16)


def _write_tokenizer(facts: _Facts, out: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = facts["tokenizer.ggml.model"], facts.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        remedy = f"byte-level BPE with one of {', '.join(PRE_TOKENIZERS)} can"
        raise UsageError(f"tokenizer {kind}/{pre} cannot be converted", where=str(facts.path), remedy=remedy)
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if PRE_TOKENIZERS[pre] == "digits" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    types = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    write_text(out / "tokenizer.json", tokenizer.to_str())
    ids = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    ids["unk_token"] = "unknown_token_id"
    found = {name: facts.get(f"tokenizer.ggml.{key}") for name, key in ids.items()}
    spelt = {name: tokens[token] for name, token in found.items() if token is not None}
    limit = facts["llama.context_length"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": limit,
        "clean_up_tokenization_spaces": False,
    }
    template = facts.get("tokenizer.chat_template")
    if template:
        # Kept in both places: newer engines read the file, older ones the config.
        write_text(out / "chat_template.jinja", template)
        config["chat_template"] = template
    write_json(out / "tokenizer_config.json", {**config, **spelt})
