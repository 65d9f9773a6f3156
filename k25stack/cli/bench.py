"""``k25stack bench``: measure a running server, compare measurements."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from k25stack.cli.fallback import FallbackGroup
from k25stack.cli.output import say

app = typer.Typer(
    cls=FallbackGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Measure: k25stack bench URL | k25stack bench compare A B.",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def measure(
    url: Annotated[str, typer.Argument(help="http://host:port of a running engine.", show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="One repeat, short replies: a look, no result.")] = False,
    engine: Annotated[str, typer.Option(help="reference, sglang or vllm; told by its metrics if left out.")] = "",
    samples: Annotated[Path | None, typer.Option(help="Recorded held-out rows to replay (samples.jsonl).")] = None,
    concurrency: Annotated[list[int] | None, typer.Option("--concurrency", "-c", help="Open requests; repeat.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Repeats on the same server.", min=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of one reply at most.", min=1)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Directory for rows.json and raw requests.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a running server: single stream, throughput, latency, accept length from raw counters."""
    from k25stack.bench import ondemand
    from k25stack.bench.main import describe
    from k25stack.errors import UsageError
    from k25stack.files import write_json

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no URL", where="bench", remedy="give http://host:port of a running engine")
    name = engine or ondemand.detect(url)
    protocol = ondemand.protocol_for(name, quick, concurrency or (), repeats, max_tokens, samples is not None)
    rows = ondemand.measure_url(url, protocol, ondemand.prompts_for(samples), _say, out)
    if out is not None:
        write_json(out / "rows.json", {"rows": rows})
    if as_json:
        say(json.dumps({"rows": rows}, indent=2, ensure_ascii=False))
    else:
        for row in rows:
            say(describe(row))
    kept = f"k25stack bench compare {out} OTHER" if out is not None else f"k25stack bench {url} --out DIR"
    say(f"Next: {kept}", err=True)
    if not all(row["accepted"] for row in rows):
        raise typer.Exit(1)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="rows.json, or a run directory.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="rows.json, or a run directory.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Two measurements side by side; exit 1 when nothing between them is comparable."""
    from k25stack.bench.compare import as_text, load_rows
    from k25stack.bench.compare import compare as pair_up

    pairs = pair_up(load_rows(a), load_rows(b))
    say(json.dumps([asdict(pair) for pair in pairs], indent=2) if as_json else as_text(pairs))
    if all(pair.obstacles for pair in pairs):
        say("Next: measure both with the same prompts, decode mode and definitions", err=True)
        raise typer.Exit(1)
    say("Next: k25stack report RUN", err=True)


def _say(phase: str, done: float, total: float, unit: str) -> None:
    """Progress: a line that is rewritten on a terminal; elsewhere one line per finished phase."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{phase}: {done:.0f}/{total:.0f} {unit}" + ("\n" if done >= total else ""))
        sys.stderr.flush()
    elif done >= total:
        say(f"{phase}: {done:.0f} {unit}", err=True)
