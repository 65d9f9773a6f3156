"""Shared fixtures: one compute thread, and a tiny random Llama-like target in Hugging Face format."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import docker_twin as docker_engine
import pytest
from docker_twin import DockerTwin

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: a test that interrupts one would wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_target(directory: Path, seed: int = 0) -> Path:
    """A random 6-layer Llama of width 64 whose logits are peaked enough for greedy text to be stable."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    hidden, ffn, kv = TINY["hidden_size"], TINY["intermediate_size"], TINY["num_key_value_heads"] * TINY["head_dim"]

    def normal(*shape: int, std: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * std).to(torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": normal(TINY["vocab_size"], hidden, std=1.0),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    for layer in range(TINY["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        tensors[name + "input_layernorm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        tensors[name + "post_attention_layernorm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        tensors[name + "self_attn.q_proj.weight"] = normal(hidden, hidden, std=0.2)
        tensors[name + "self_attn.k_proj.weight"] = normal(kv, hidden, std=0.2)
        tensors[name + "self_attn.v_proj.weight"] = normal(kv, hidden, std=0.2)
        tensors[name + "self_attn.o_proj.weight"] = normal(hidden, hidden, std=0.2)
        tensors[name + "mlp.gate_proj.weight"] = normal(ffn, hidden, std=0.15)
        tensors[name + "mlp.up_proj.weight"] = normal(ffn, hidden, std=0.15)
        tensors[name + "mlp.down_proj.weight"] = normal(hidden, ffn, std=0.15)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(TINY))
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    write_tiny_tokenizer(directory)
    (directory / "target.json").write_text(
        json.dumps({"name": "tiny-llama", "revision": "0" * 64, "dtype": "bfloat16", "family": "llama"})
    )
    return directory


def write_tiny_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer of 512 ids (4 special tokens, 256 bytes, the rest unused filler)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = ["<unk>", "<|im_start|>", "<|im_end|>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index for index, text in enumerate([*special, *alphabet])}
    for index in range(len(vocab), TINY["vocab_size"]):
        vocab[f"<filler{index}>"] = index
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": TINY["max_position_embeddings"],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def tiny_target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    torch.set_num_threads(1)
    return write_tiny_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture
def other_target_dir(tmp_path: Path) -> Path:
    """A target of the same shape with other weights."""
    return write_tiny_target(tmp_path / "other-target", seed=1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The demo goes first: other tests serve the draft that it leaves in this session's directory."""
    items.sort(key=lambda item: item.path.parent.name != "demo")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time that each room's tests took, longest first."""
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                parts = report.nodeid.split("::")[0].split("/")
                room = parts[1] if len(parts) > 2 else "(top)"
                seconds[room] = seconds.get(room, 0.0) + report.duration
    for room, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{spent:7.1f} s  {room}")


@pytest.fixture(scope="session")
def docker_twin() -> Iterator[DockerTwin]:
    """A real Docker Engine with CDI, compose and buildx; one that is already up is used and left as it is."""
    if reason := docker_engine.why_not():
        pytest.skip(f"no Docker Engine can be started here: {reason}")
    twin, ours = docker_engine.up()
    old = {key: os.environ.get(key) for key in twin.env}
    os.environ.update(twin.env)
    yield twin
    for key, value in old.items():
        os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
    if ours:
        docker_engine.down()
