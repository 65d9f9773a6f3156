"""A target whose text is known beforehand, and a draft that foresees all of it: a control for wiring tests.

A random draft accepts nothing whether it is wired rightly or wrongly.  Here every token is followed by the next one of
a cycle, so a draft that gets the right states is accepted whole (accept length k + 1) and one that does not is accepted
never (1.0).

* The embedding of the token at place p of the cycle is one random vector e, turned by p channels: ``turn(e, p)``.  All
  other tokens are copies, so that every prompt leads into the cycle.
* The target's layers add a few per cent to the stream; its head holds ``signs * turn(e, p - 1)`` for place p.  The
  random ``signs`` are the final norm's weight, so states after the norm are of no use to the draft.
* The draft's fc takes the middle captured state turned by ``FC_TURN``, its MLP turns the stream by one channel more
  (``turn - identity``, added to the stream), and its head is turned to match.  Without fc, without the MLP or with the
  target's head it predicts other places.

The last channel holds a constant, which makes the MLP's gates constant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CONSTANT = 8.0  # of the last channel; the others have unit variance
FC_TURN = 5
STIR = 0.03  # of the stream's size, added by each projection that writes to it
LOGIT = 20.0  # of the right token; the others lie near 0
FIRST = 8  # id of the cycle's first token; bos and eos are below


@dataclass(frozen=True)
class Clock:
    """The cycle: token id t stands at place (t - FIRST) % places."""

    hidden: int
    vocab: int
    seed: int = 0

    @property
    def places(self) -> int:
        """As many as there are channels to turn, so that the end of the cycle meets its beginning."""
        return self.hidden - 1

    def vector(self) -> Tensor:
        """e, float32 [H - 1]: unit variance."""
        vector = torch.randn(self.hidden - 1, generator=torch.Generator().manual_seed(self.seed))
        return (vector - vector.mean()) / vector.std(correction=0)

    def signs(self) -> Tensor:
        """The final norm's weight [H]."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randint(0, 2, (self.hidden,), generator=generator).float() * 2 - 1

    def rms(self) -> float:
        return math.sqrt((self.hidden - 1 + CONSTANT**2) / self.hidden)

    def turned(self, places: Tensor, by: int) -> Tensor:
        """Rows ``turn(e, p + by)`` [n, H - 1]."""
        index = (torch.arange(self.hidden - 1) - places[:, None] - by) % (self.hidden - 1)
        return self.vector()[index]

    def embedding(self) -> Tensor:
        """[V, H] bfloat16."""
        rows = self.turned(torch.arange(self.places), 0).to(torch.bfloat16)
        rows = torch.cat([rows, torch.full((self.places, 1), CONSTANT, dtype=torch.bfloat16)], 1)
        return rows[(torch.arange(self.vocab) - FIRST) % self.places]

    def head(self, ids: Tensor, by: int, signs: Tensor | None = None) -> Tensor:
        """[n, H] bfloat16: ``LOGIT`` for the tokens of the cycle proper, 0 for their copies."""
        rows = torch.zeros(len(ids), self.hidden, dtype=torch.bfloat16)
        own = ((ids >= FIRST) & (ids < FIRST + self.places)).nonzero().flatten()
        values = self.turned(ids[own] - FIRST, by) * (LOGIT * self.rms() / (self.hidden - 1))
        values = torch.cat([values, torch.zeros(len(own), 1)], 1)
        rows[own] = (values if signs is None else values * signs).to(torch.bfloat16)
        return rows


def target_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of a Llama or a DeepSeek-V3 checkpoint."""
    return llama_tensors(config) if config["model_type"] == "llama" else deepseek_tensors(config)


def llama_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    table: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        table |= {at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,)}
        for letter, rows in (("q", query), ("k", kv), ("v", kv)):
            table[f"{at}self_attn.{letter}_proj.weight"] = (rows, hidden)
        table[at + "self_attn.o_proj.weight"] = (hidden, query)
        table |= mlp(at + "mlp.", hidden, config["intermediate_size"])
    return {**table, "model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}


def deepseek_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value, query = config["qk_nope_head_dim"], config["v_head_dim"], config["q_lora_rank"]
    table: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        table |= {
            at + "input_layernorm.weight": (hidden,),
            at + "self_attn.q_a_proj.weight": (query, hidden),
            at + "self_attn.q_a_layernorm.weight": (query,),
            at + "self_attn.q_b_proj.weight": (heads * (nope + rope), query),
            at + "self_attn.kv_a_proj_with_mqa.weight": (rank + rope, hidden),
            at + "self_attn.kv_a_layernorm.weight": (rank,),
            at + "self_attn.kv_b_proj.weight": (heads * (nope + value), rank),
            at + "self_attn.o_proj.weight": (hidden, heads * value),
            at + "post_attention_layernorm.weight": (hidden,),
        }
        if layer < config["first_k_dense_replace"]:
            table |= mlp(at + "mlp.", hidden, config["intermediate_size"])
            continue
        table |= {
            at + "mlp.gate.weight": (config["n_routed_experts"], hidden),
            at + "mlp.gate.e_score_correction_bias": (config["n_routed_experts"],),
        }
        inner = config["moe_intermediate_size"]
        for expert in range(config["n_routed_experts"]):
            table |= mlp(f"{at}mlp.experts.{expert}.", hidden, inner)
        table |= mlp(at + "mlp.shared_experts.", hidden, inner * config["n_shared_experts"])
    return {**table, "model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}


def mlp(at: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    wide = {at + f"{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return {**wide, at + "down_proj.weight": (hidden, inner)}


def target_tensor(name: str, shape: tuple[int, ...], clock: Clock, device: str) -> Tensor:
    """The weights of one name."""
    if name == "model.embed_tokens.weight":
        return clock.embedding()
    if name == "model.norm.weight":
        return clock.signs().to(torch.bfloat16)
    if name == "lm_head.weight":
        return clock.head(torch.arange(clock.vocab), -1, clock.signs())
    if name.endswith("e_score_correction_bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return noise(name, shape, STIR if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0, device)


def noise(name: str, shape: tuple[int, ...], size: float, device: str) -> Tensor:
    """Random weights [out, in] whose outputs are ``size`` times as large as their inputs."""
    generator = torch.Generator(device).manual_seed(hash_of(name))
    made = torch.randn(shape, generator=generator, device=device) * (size / math.sqrt(shape[-1]))
    return made.to(torch.bfloat16).cpu()


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "little") % (2**31 - 1)


def write_target(directory: Path, config: Mapping[str, Any], clock: Clock, device: str = "cpu",
                 empty_experts: bool = False) -> Path:  # fmt: skip
    """config.json and model.safetensors.  ``empty_experts``: the routed experts are holes of the file, read as zeros.

    Holes make 10 of the 16 GB of a full-width slice free to write.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(config)))
    table = target_tensors(config)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in table.items():
        wide = 4 if name.endswith("bias") else 2
        end = position + math.prod(shape) * wide
        header[name] = {"dtype": "F32" if wide == 4 else "BF16", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in table.items():
            if empty_experts and ".experts." in name:
                continue
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            tensor = target_tensor(name, shape, clock, device).contiguous()
            file.write(tensor.view(torch.uint8).numpy().data)
        file.truncate(8 + len(text) + position)
    return directory


def write_tokenizer(directory: Path, clock: Clock, context: int) -> None:
    """Words ``w8 w9 ...``, one for each id, so that a server can be asked and can answer in text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {f"<{index}>" if index < FIRST else f"w{index}": index for index in range(clock.vocab)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<3>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##")  # words with spaces between them
    tokenizer.save(str(directory / "tokenizer.json"))
    # Other words are unknown, so the length of a question says where in the cycle its answer begins.
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    template += "w{{ 9 + messages[-1]['content'] | length % 256 }}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<0>", "eos_token": "<1>", "unk_token": "<3>",
              "chat_template": template, "model_max_length": context}  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def draft_tensors(table: Mapping[str, tuple[int, ...]], clock: Clock, ids: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Name -> maker of every weight of the draft that foresees the cycle.

    ``table``: portable names and shapes of a Llama or an MLA draft; ``ids``: target ids of its vocabulary.
    """

    def one(name: str, shape: tuple[int, ...]) -> Callable[[], Tensor]:
        return lambda: draft_tensor(name, shape, clock, ids)

    return {name: one(name, shape) for name, shape in table.items() if name not in ("d2t", "t2d")}


def draft_tensor(name: str, shape: tuple[int, ...], clock: Clock, ids: Tensor) -> Tensor:
    hidden, turning = clock.hidden, clock.hidden - 1
    if len(shape) == 1:
        return torch.ones(shape)
    if name == "lm_head.weight":
        return clock.head(ids, FC_TURN - 1)
    row = torch.arange(turning)
    made = torch.zeros(shape)
    if name == "fc.weight":  # the middle state, turned; its constant as it is
        made[row, hidden + (row - FC_TURN) % turning] = 1.0
        made[turning, hidden + turning] = 1.0
    elif name.endswith("gate_proj.weight"):
        made[:turning, turning] = 1.0
    elif name.endswith("up_proj.weight"):
        made[row, (row - 1) % turning] = 1.0
        made[row, row] -= 1.0
    elif name.endswith("down_proj.weight"):  # the gate is silu(constant / rms), the input was divided by rms
        gate = CONSTANT / clock.rms()
        made[row, row] = clock.rms() / (gate / (1 + math.exp(-gate)))
    else:
        return noise(name, shape, STIR if name.endswith("o_proj.weight") else 1.0, "cpu").float()
    return made


def cycle_ids(clock: Clock, count: int) -> Tensor:
    """``count`` rising target ids for the draft's vocabulary: the whole cycle, and copies spread over the rest."""
    after = FIRST + clock.places
    rest = torch.linspace(after, clock.vocab - 1, count - clock.places).long()
    ids = torch.tensor(sorted({*range(FIRST, after), *rest.tolist()}))
    if len(ids) != count:
        raise ValueError(f"{count} different ids are not to be had from {clock.vocab} with a cycle of {clock.places}")
    return ids


def prompts(clock: Clock, count: int, length: int) -> Iterator[list[int]]:
    """Random token ids, seeded."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        yield torch.randint(FIRST, clock.vocab, (length,), generator=generator).tolist()


def expected(clock: Clock, prompt: list[int], count: int) -> list[int]:
    """What the target says after ``prompt``."""
    return [FIRST + (prompt[-1] - FIRST + step) % clock.places for step in range(1, count + 1)]
