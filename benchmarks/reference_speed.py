"""How fast the reference target generates, extracts, decodes and verifies.  Prints one JSON object.

    python benchmarks/reference_speed.py TARGET                      everything
    python benchmarks/reference_speed.py TARGET --only generate --slots 96

``generate`` and ``extract`` use --processes processes of one thread, ``decode`` one of --threads threads.  Texts
are random tokens of the demo's lengths (prompts of 40 to 250 tokens after a shared beginning of 27, answers of 40 to
160), since speed does not depend on what the tokens are; answers end by length.  Loading is not counted.  Medians of
--repeats.  Run it on an idle machine: `load` says how idle it was.
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
from k25stack.reference.target import Target

LAYERS = (10, 20, 29)
SHARED = 27  # tokens of the system turn


class Setup(NamedTuple):
    """What a child needs."""

    target: str
    slots: int
    record: bool
    packed_tokens: int


class Timed(NamedTuple):
    """Tokens of one task, and when it ran (seconds, one clock for all processes)."""

    tokens: int
    begin: float
    end: float


def texts(count: int, seed: int, vocab: int) -> list[tuple[tuple[int, ...], int]]:
    """Prompts and the number of tokens that answer each, longest prompt first."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(4, vocab, (SHARED,), generator=torch.Generator().manual_seed(0)).tolist()
    found = []
    for _ in range(count):
        tail, response = (int(torch.randint(*span, (1,), generator=generator)) for span in ((13, 223), (40, 161)))
        found.append(((*start, *torch.randint(4, vocab, (tail,), generator=generator).tolist()), response))
    return sorted(found, key=lambda text: -len(text[0]))


def make_generator(setup: Setup) -> Work:
    """A task is (seed, documents): answer them in one batch of slots."""
    torch.set_num_threads(1)
    target = Target.load(Path(setup.target))

    def work(task: tuple[int, int], progress: Any) -> Timed:
        seed, count = task
        asks = [Ask(prompt, response) for prompt, response in texts(count, seed, target.config.vocab)]
        begin = time.monotonic()
        layers = LAYERS if setup.record else None
        answers = answer(target, asks, slots=setup.slots, stop_ids=(), layers=layers)
        return Timed(sum(len(reply.tokens) for reply in answers), begin, time.monotonic())

    return work


def make_extractor(setup: Setup) -> Work:
    """A task is (seed, documents): states of every token, the head where an answer's token is predicted."""
    torch.set_num_threads(1)
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
        return Timed(sum(len(text) for _, text in documents), begin, time.monotonic())

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


def rates(function: str, setup: Setup, options: argparse.Namespace) -> list[float]:
    """Tokens per second of all processes together, once per repeat; the first round warms up and is left out."""
    size = options.processes
    tasks = [(number, options.documents) for number in range(size * (options.repeats + 1))]
    times: dict[int, Timed] = {}

    def then(task: tuple[int, int], result: Timed) -> list[Any]:
        times[task[0]] = result
        return []

    run_tasks(Factory("reference_speed", function, setup), tasks, processes=size, then=then)
    rounds = [[times[number * size + child] for child in range(size)] for number in range(1, options.repeats + 1)]
    return [sum(t.tokens for t in r) / (max(t.end for t in r) - min(t.begin for t in r)) for r in rounds]


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
    parser.add_argument("--packed-tokens", type=int, default=1024)
    parser.add_argument("--no-record", action="store_true", help="generate without keeping states")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    setup = Setup(options.target, options.slots, not options.no_record, options.packed_tokens)
    report: dict[str, Any] = {"command": shlex.join(sys.argv), "machine": machine()}
    for name, function in (("generate", "make_generator"), ("extract", "make_extractor")):
        if options.only in (None, name):
            found = rates(function, setup, options)
            report[f"{name}_tok_s"] = round(statistics.median(found))
            report[f"{name}_all"] = [round(value) for value in found]
    if options.only in (None, "decode"):
        report["step_ms"] = step_times(options)
        target = Target.load(Path(options.target))
        report["kernels"] = {"reordered_weights": prepacks(), "shape_exact": shape_exact(target)}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
