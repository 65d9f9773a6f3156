"""A tiny random Llama as llama.cpp would store it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCAB = 64, 4, 2, 96, 2, 267
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<unk>", "<|im_start|>", "<|im_end|>"]


def tokens() -> list[str]:
    """Special tokens, the 256 bytes in GPT-2's spelling, and a few merged tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    alphabet = [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
    return [*SPECIAL, *alphabet, "he", "ll", "hell", "hello", "ĠĠ", "ĠĠĠ", "Ġt", "Ġthe"]


MERGES = ["h e", "l l", "he ll", "hell o", "Ġ Ġ", "ĠĠ Ġ", "Ġ t", "Ġt he"]


def permuted(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The row order llama.cpp gives to query and key matrices."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def weights() -> dict[str, NDArray[np.float32]]:
    """Hugging Face names; every matrix already on the Q8_0 grid, so that quantising loses nothing."""
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> NDArray[np.float32]:
        raw = random.standard_normal(shape, dtype=np.float32)
        stored = gguf.quantize(raw, gguf.GGMLQuantizationType.Q8_0)
        return np.asarray(gguf.dequantize(stored, gguf.GGMLQuantizationType.Q8_0), dtype=np.float32)

    keys = HIDDEN // HEADS * KV_HEADS
    found = {"model.embed_tokens": matrix(VOCAB, HIDDEN), "model.norm": np.ones(HIDDEN, dtype=np.float32) * 1.25}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        shapes = {"q": (HIDDEN, HIDDEN), "k": (keys, HIDDEN), "v": (keys, HIDDEN), "o": (HIDDEN, HIDDEN)}
        found |= {f"{name}self_attn.{letter}_proj": matrix(*shape) for letter, shape in shapes.items()}
        found |= {f"{name}mlp.{kind}_proj": matrix(FFN, HIDDEN) for kind in ("gate", "up")}
        found[f"{name}mlp.down_proj"] = matrix(HIDDEN, FFN)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[name + norm] = random.standard_normal(HIDDEN, dtype=np.float32)
    return found


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (VOCAB - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in weights().items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".") if ".layers." in name else ("", "", name)
        stored = f"blk.{layer}.{NAMES[rest]}.weight" if layer else f"{NAMES[rest]}.weight"
        if weight.ndim == 1:
            writer.add_tensor(stored, weight)
            continue
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(rest)
        kind = gguf.GGMLQuantizationType.Q8_0
        rows = permuted(weight, heads) if heads else weight
        writer.add_tensor(stored, gguf.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
