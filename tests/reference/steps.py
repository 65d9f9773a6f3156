"""Run the step programs of this room on the tiny target, in this process or in one that can be killed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from k25stack.files import write_json
from k25stack.reference.extract import extract
from k25stack.reference.generate import regenerate
from k25stack.train.samples import Prompt, Split, write_records
from k25stack.worker import Spec

LAYERS = [2, 3, 5]
SPLITS: Sequence[Split] = ("train", "train", "train", "validation", "held_out")


def write_prompts(path: Path, count: int = 20) -> list[Prompt]:
    """Prompts of many lengths, every fifth with two turns, over all splits."""
    prompts = [
        Prompt(
            doc_id=f"{index:016x}",
            question_id=f"q{index}",
            domain="odd" if index % 2 else "even",
            split=SPLITS[index * 7 % 5],
            turns=("Say " + "more " * (index % 7) + str(index), "And then?")[: 2 if index % 5 == 0 else 1],
            framing="{question}",
        )
        for index in range(count)
    ]
    write_records(path, prompts)
    return prompts


def generate_spec(target: Path, out: Path, *, prompts: int = 20, **changes: Any) -> Spec:
    """A regeneration of small chunks; ``changes`` replace params."""
    file = out.parent / f"prompts-{prompts}.jsonl"
    if not file.exists():
        write_prompts(file, prompts)
    params = {
        "decode": {"temperature": 0.0, "max_new_tokens": 12},
        "sampled": {"share": 0.4, "temperature": 1.0, "top_p": 0.9},
        "seed": 3,
        "slots": 4,
        "processes": 1,
        "chunk_docs": 6,
        "record": {"layers": LAYERS},
    }
    return Spec({**params, **changes}, {"target": target, "prompts": file}, out, 1)


def extract_spec(target: Path, samples: Path, out: Path, *, threads: int = 1, **changes: Any) -> Spec:
    params = {
        "layers": LAYERS,
        "dtype": "bfloat16",
        "shard_bytes": 100_000,
        "packed_tokens": 200,
        "mode": "prefill",
    }
    return Spec({**params, **changes}, {"target": target, "samples": samples}, out, threads)


def run(program: Callable[[Spec], dict[str, Any]], spec: Spec) -> dict[str, Any]:
    spec.out.mkdir(parents=True, exist_ok=True)
    return program(spec)


def run_generate(spec: Spec) -> dict[str, Any]:
    return run(regenerate, spec)


def run_extract(spec: Spec) -> dict[str, Any]:
    return run(extract, spec)


def start(module: str, spec: Spec, **options: Any) -> subprocess.Popen[str]:
    """Start a step program as the pipeline does."""
    path = spec.out.parent / f"{spec.out.name}.spec.json"
    inputs = {name: str(value) for name, value in spec.inputs.items()}
    write_json(path, {"params": spec.params, "inputs": inputs, "out": str(spec.out), "threads": spec.threads})
    command = [sys.executable, "-m", f"k25stack.reference.{module}", str(path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)


def contents(directory: Path) -> dict[str, str]:
    """sha256 of every file that is content (result.json holds times)."""
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != "result.json")
    return {p.relative_to(directory).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def flip_byte(path: Path) -> None:
    """Change one bit in the middle of a file."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
