"""``k25stack draft``: look at a draft directory, convert it, score it on held-out responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from k25stack.cli.output import command, say

READERS = {"sglang": "sglang", "specforge": "sglang", "vllm": "vllm", "speculators": "vllm"}  # of a format

app = typer.Typer(no_args_is_help=True, help="Draft models: inspect, convert, score.")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def draft() -> None:
    """Draft models."""


@app.command()
def inspect(
    directory: Annotated[Path, typer.Argument(help="A draft directory.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Tensor table, parameters with and without the embedding, cache bytes per token, origin."""
    from k25stack.draft.inspect import inspect_draft, table

    found = inspect_draft(directory)
    show(found, table, as_json, check_of(directory, found["format"]))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A draft directory of any known format.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="portable, sglang, vllm, speculators or specforge.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to make.", show_default=False)],
    form: Annotated[
        str, typer.Option("--from", help="Format of the source, where it does not say; modelopt too.")
    ] = "",
    target: Annotated[
        Path | None, typer.Option(help="Model directory or config.json of the draft's target.", show_default=False)
    ] = None,
    layers: Annotated[str, typer.Option(help="Canonical layer ids of the training states, as 2,30,58.")] = "",
    window: Annotated[
        int | None, typer.Option(help="Sliding window that the server will be given, in tokens.", min=1)
    ] = None,
    pickle: Annotated[bool, typer.Option("--pickle", help="Read *.bin and *.pt (tensors only, no code).")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", "-n", help="Check and tell; write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace an earlier draft at OUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a draft in another format, bit by bit; what would change its mathematics is refused with the reason."""
    from k25stack.cli.check import parse_layers
    from k25stack.draft.convert import Request, convert

    request = Request(to, form or None, target, parse_layers(layers), window, pickle, yes)

    def table(done: Mapping[str, Any]) -> Iterator[str]:
        verb = "would write" if dry else "wrote"
        size = f"{done['tensors']} tensors, {done['bytes']:,} B"
        yield f"{verb} {out}: {done['from']} to {to}, {size}, layers {done['layers']}"
        yield from (f"note: {note}" for note in done["notes"])

    done = convert(source, out, request, dry)
    given = ("--target", target) if target else ()
    following = command("check", source, *given) if dry else check_of(out, to, *given)
    show(done, table, as_json, following)


@app.command()
def score(
    directory: Annotated[Path, typer.Argument(help="A draft directory.", show_default=False)],
    states: Annotated[Path, typer.Option("--states", help="Directory of hidden-state shards.", show_default=False)],
    split: Annotated[str, typer.Option(help="held_out, validation or train.")] = "held_out",
    k: Annotated[int | None, typer.Option(help="Draft tokens per round; the record's, else 3.", min=1)] = None,
    target: Annotated[
        Path | None, typer.Option(help="Model directory; only its embedding is read, if at all.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep the record of every document there.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Accept length that serving will measure: the greedy walk over responses whose states are in shards."""
    from k25stack.train.score import Score, lines, score_draft

    found = score_draft(Score(directory, states, split, k, target, out))
    show(found, lines, as_json, command("check", "URL", "--draft", directory))


def check_of(directory: Path, form: str, *given: object) -> str:
    """The check of a draft by the engine that its format is for; another one would rightly refuse it."""
    engine = ("--engine", READERS[form]) if form in READERS else ()
    return command("check", directory, *engine, *given)


def show(
    report: dict[str, Any], table: Callable[[dict[str, Any]], Iterable[str]], as_json: bool, following: str
) -> None:
    """A report as JSON or line by line, and the next command on stderr."""
    from k25stack.contract.finding import one_line, plain

    if as_json:
        say(json.dumps(plain(report), indent=2, ensure_ascii=False))
    else:
        for line in table(report):
            say(one_line(line))
    say(f"Next: {following}", err=True)
