"""How fast the reference target generates, extracts, decodes and verifies.  Prints one JSON object.

    python benchmarks/reference_speed.py TARGET                      everything
    python benchmarks/reference_speed.py TARGET --only generate --slots 96
    python benchmarks/reference_speed.py TARGET --only generate --samples samples.jsonl     what a run really answered

``generate`` and ``extract`` use --processes processes of one thread, ``decode`` one of --threads threads.  Texts
are random tokens of the demo's lengths (27 shared, then two prompts of 13 to 35 tokens for each of 60 to 230, answers
of 40 to 160), since speed does not depend on what the tokens are; answers end by length.  With --samples, the file that
the regenerate step leaves, generation has the prompts and the lengths of its answers, all of them in each repeat, every
turn on its own.  Loading is not counted.
Medians of --repeats.  Run it on an idle machine: `load` says how idle it was.

``roofline``: what the same processes reach when they do nothing but the matrix products of the layers and the head,
on packs of --packed-tokens rows; the tokens per second that `extract` and `generate` would then make of their texts,
and the share of that which they reach.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from k25stack.reference.answer import Ask, answer
from k25stack.reference.exact import shape_exact
from k25stack.reference.linear import prepacks
from k25stack.reference.pool import Factory, Work, run_tasks
from k25stack.reference.target import Target, common_prefix
from k25stack.train.memory import keep_freed_memory

LAYERS = (10, 20, 29)
SHARED = 27  # tokens of the system turn
PRODUCT_PACKS, HEAD_ROWS = 6, 256


class Setup(NamedTuple):
    """What a child needs."""

    target: str
    slots: int
    record: bool
    packed_tokens: int
    samples: str = ""  # a file of a run
    processes: int = 1


class Timed(NamedTuple):
    """Tokens of one task, the operations in its matrix products, and when it ran (seconds, one clock for all)."""

    tokens: int
    operations: float
    begin: float
    end: float


def operations(target: Target, rows: int, heads: int) -> float:
    """Of the products of ``rows`` rows in all layers and ``heads`` rows in the head."""
    config = target.config
    wide = (config.heads + 2 * config.kv_heads) * config.head_dim + config.heads * config.head_dim
    return 2.0 * config.hidden * (rows * config.layers * (wide + 3 * config.intermediate) + heads * config.vocab)


def texts(count: int, seed: int, vocab: int) -> list[tuple[tuple[int, ...], int]]:
    """Prompts and the number of tokens that answer each, longest prompt first."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(4, vocab, (SHARED,), generator=torch.Generator().manual_seed(0)).tolist()
    found = []
    for number in range(count):
        spans = ((13, 36) if number % 3 else (60, 231), (40, 161))
        tail, response = (int(torch.randint(*span, (1,), generator=generator)) for span in spans)
        found.append(((*start, *torch.randint(4, vocab, (tail,), generator=generator).tolist()), response))
    return sorted(found, key=lambda text: -len(text[0]))


def recorded(setup: Setup, number: int) -> list[tuple[tuple[int, ...], int]]:
    """One process' share of a run's prompts and the length of each answer, longest prompt first."""
    lines = Path(setup.samples).read_text(encoding="utf-8").splitlines()[number % setup.processes :: setup.processes]
    rows = [json.loads(line) for line in lines]
    found = [(tuple(row["prompt_ids"]), len(row["response_ids"])) for row in rows]
    return sorted(found, key=lambda text: -len(text[0]))


def make_generator(setup: Setup) -> Work:
    """A task is (seed, documents): answer them in one batch of slots."""
    torch.set_num_threads(1)
    keep_freed_memory()
    target = Target.load(Path(setup.target))

    def work(task: tuple[int, int], progress: Any) -> Timed:
        seed, count = task
        wanted = recorded(setup, seed) if setup.samples else texts(count, seed, target.config.vocab)
        asks = [Ask(prompt, response) for prompt, response in wanted]
        begin = time.monotonic()
        layers = LAYERS if setup.record else None
        answers = answer(target, asks, slots=setup.slots, stop_ids=(), layers=layers)
        made = sum(len(reply.tokens) for reply in answers)
        shared = common_prefix([ask.prompt for ask in asks])
        rows = made + sum(len(ask.prompt) - shared for ask in asks)
        return Timed(made, operations(target, rows, made), begin, time.monotonic())

    return work


def make_extractor(setup: Setup) -> Work:
    """A task is (seed, documents): states of every token, the head where an answer's token is predicted."""
    torch.set_num_threads(1)
    keep_freed_memory()
    target = Target.load(Path(setup.target))

    def work(task: tuple[int, int], progress: Any) -> Timed:
        seed, count = task
        vocab = target.config.vocab
        documents = [(len(prompt), [*prompt, *[7] * response]) for prompt, response in texts(count, seed, vocab)]
        begin = time.monotonic()
        prefix = target.prefix(torch.tensor(documents[0][1][:SHARED]), LAYERS)
        for pack in packs(documents, setup.packed_tokens):
            lengths = [len(text) - SHARED for _, text in pack]
            offsets = torch.tensor([0, *lengths]).cumsum(0)
            ids = torch.tensor([token for _, text in pack for token in text[SHARED:]])
            out = target.prefill_packed(ids, offsets, LAYERS, prefix=prefix)
            spans = zip(offsets.tolist(), pack, strict=False)
            rows = [torch.arange(at + prompt, at + len(text)) - SHARED - 1 for at, (prompt, text) in spans]
            target.argmax(out.last[torch.cat(rows)])
        tokens = sum(len(text) for _, text in documents)
        answers = tokens - sum(prompt for prompt, _ in documents)
        done = operations(target, tokens - SHARED * count, answers)
        return Timed(tokens, done, begin, time.monotonic())

    return work


def make_products(setup: Setup) -> Work:
    """A task is (seed, repeats): the products of a pack in every layer, and in the head, and nothing else."""
    torch.set_num_threads(1)
    keep_freed_memory()
    target = Target.load(Path(setup.target))
    config, rows = target.config, setup.packed_tokens
    x, wide = torch.randn(rows, config.hidden).bfloat16(), torch.randn(rows, config.intermediate).bfloat16()

    @torch.inference_mode()
    def work(task: tuple[int, int], progress: Any) -> Timed:
        begin = time.monotonic()
        for _ in range(PRODUCT_PACKS):
            for layer in target.layers:
                for product, states in (
                    (layer.qkv, x),
                    (layer.o, x),
                    (layer.gate, x),
                    (layer.up, x),
                    (layer.down, wide),
                ):
                    product(states)
            target.logits(x[:HEAD_ROWS])
        done = PRODUCT_PACKS * operations(target, rows, HEAD_ROWS)
        return Timed(PRODUCT_PACKS * rows, done, begin, time.monotonic())

    return work


def packs(documents: list[tuple[int, list[int]]], size: int) -> Iterable[list[tuple[int, list[int]]]]:
    """Documents in forwards of about ``size`` tokens."""
    pack: list[tuple[int, list[int]]] = []
    for document in documents:
        pack.append(document)
        if sum(len(text) - SHARED for _, text in pack) >= size:
            yield pack
            pack = []
    if pack:
        yield pack


def rates(function: str, setup: Setup, options: argparse.Namespace) -> tuple[list[float], float]:
    """Tokens per second of all processes together, once per repeat, and the median of the operations per second.

    The first round warms up and is left out.
    """
    size = options.processes
    tasks = [(number, options.documents) for number in range(size * (options.repeats + 1))]
    times: dict[int, Timed] = {}

    def then(task: tuple[int, int], result: Timed) -> list[Any]:
        times[task[0]] = result
        return []

    run_tasks(Factory("reference_speed", function, setup), tasks, processes=size, then=then)
    rounds = [[times[number * size + child] for child in range(size)] for number in range(1, options.repeats + 1)]
    seconds = [max(t.end for t in r) - min(t.begin for t in r) for r in rounds]
    done = [sum(t.operations for t in r) / s for r, s in zip(rounds, seconds, strict=True)]
    return [sum(t.tokens for t in r) / s for r, s in zip(rounds, seconds, strict=True)], statistics.median(done)


def step_times(options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of decode and verify steps after 200 tokens, head and argmax included."""
    torch.set_num_threads(options.threads)
    target = Target.load(Path(options.target))
    found: dict[str, float] = {}
    for batch in (1, 8, 64):
        cache, slots = target.new_cache(batch, 256), torch.arange(batch)
        starts = torch.full((batch,), 200)
        for rows in (1, 4):
            ids = torch.randint(4, target.config.vocab, (batch, rows))
            times = []
            for _ in range(10 + 3 * options.repeats):
                begin = time.perf_counter()
                target.argmax(target.forward(ids, cache, slots, starts, LAYERS).last)
                times.append(time.perf_counter() - begin)
            found[f"{batch} x {rows}"] = round(1000 * statistics.median(times[3:]), 2)
    return found


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = next(line for line in info.splitlines() if line.startswith("flags")).split()
    return {
        "cpu": next(line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")),
        "cores": os.cpu_count(),
        "isa": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags],
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="model directory")
    parser.add_argument("--only", choices=("generate", "extract", "decode"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=96)
    parser.add_argument("--documents", type=int, default=96, help="of one process and repeat")
    parser.add_argument("--samples", default="", help="file of a run: its prompts, and as many tokens as it answered")
    parser.add_argument("--packed-tokens", type=int, default=1024)
    parser.add_argument("--no-record", action="store_true", help="generate without keeping states")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    setup = Setup(
        options.target, options.slots, not options.no_record, options.packed_tokens, options.samples, options.processes
    )
    report: dict[str, Any] = {"command": shlex.join(sys.argv), "machine": machine()}
    ceiling = 0.0
    if options.only != "decode":
        _, ceiling = rates("make_products", setup, options)
        report["roofline_gflops"] = round(ceiling / 1e9)
    for name, function in (("generate", "make_generator"), ("extract", "make_extractor")):
        if options.only in (None, name):
            found, done = rates(function, setup, options)
            report[f"{name}_tok_s"] = round(statistics.median(found))
            report[f"{name}_all"] = [round(value) for value in found]
            report[f"{name}_roofline_tok_s"] = round(statistics.median(found) * ceiling / done)
            report[f"{name}_share_of_roofline"] = round(done / ceiling, 3)
    if options.only in (None, "decode"):
        report["step_ms"] = step_times(options)
        target = Target.load(Path(options.target))
        report["kernels"] = {"reordered_weights": prepacks(), "shape_exact": shape_exact(target)}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
