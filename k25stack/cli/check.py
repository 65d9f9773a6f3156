"""``k25stack check TARGET ...``: what is wrong with a thing, why, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k25stack.cli.check_host import host
from k25stack.cli.fallback import FallbackGroup
from k25stack.cli.output import command, say
from k25stack.errors import K25Error

if TYPE_CHECKING:
    from k25stack.contract.finding import Result


def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="host, a stack file, a draft or states directory, a URL; a launch line after --.", show_default=False
        ),
    ],
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Engine and version that will load a draft, as sglang@0.5.20; repeat."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Model directory or config.json of the draft's target.", show_default=False)
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of context to be served; the target's if left out.", min=1)
    ] = None,
    layers: Annotated[str, typer.Option(help="Canonical layer ids of the training states, as 2,30,58.")] = "",
    states: Annotated[
        Path | None,
        typer.Option(help="The states that a draft was trained on; another extraction of states.", show_default=False),
    ] = None,
    profile: Annotated[str, typer.Option("--profile", "-p", help="One profile of a stack file.")] = "",
    deep: Annotated[bool, typer.Option("--deep", help="Read and hash contents too, not only headers.")] = False,
    draft: Annotated[
        Path | None, typer.Option(help="The draft that a server serves, or that states are for.", show_default=False)
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Address of the same target served without a draft.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="samples.jsonl whose held-out rows a server is asked.", show_default=False)
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Log file of a server.", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option(help="Speculative rounds to see on a server; 1500.", min=40)] = None,
    seconds: Annotated[float | None, typer.Option(help="Time to spend on a server; 300.", min=1)] = None,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="Ask a server one request of every kind (schema, tools, abort and so on).")
    ] = False,
    gpu: Annotated[
        str, typer.Option("--gpu", help="Card of a stack or a launch line, as sm120; the stack's own if left out.")
    ] = "",
    nccl: Annotated[str, typer.Option("--nccl", help="Version of NCCL; the newest known one if left out.")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what passed as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge each target by its kind; exit 1 when a check fails, 3 when something could not be judged."""
    from k25stack.contract.kinds import DEFAULT_ENGINES, Options, check_target
    from k25stack.contract.launch import check_argv, is_launch

    if is_launch(targets):  # check --engine sglang@0.5.20 -- python3 -m sglang.launch_server ...
        show([check_argv(targets, engine[0] if engine else "", gpu, nccl)], verbose, as_json)
        return
    options = Options(
        engines=tuple(engine or DEFAULT_ENGINES),
        target=target,
        layers=parse_layers(layers),
        context=context,
        states=states,
        profile=profile,
        gpu=gpu,
        nccl=nccl,
        deep=deep,
        draft=draft,
        baseline=baseline,
        samples=samples,
        log=log,
        rounds=rounds,
        seconds=seconds,
        kinds=kinds,
    )
    results, refused = [], None
    for one in targets:
        try:
            results.append(check_target(one, options))
        except K25Error as error:  # the other targets are judged all the same
            refused = refused or error
    if refused is not None:
        show(results, verbose, as_json, end=False)
        raise refused
    show(results, verbose, as_json)


def show(results: list[Result], verbose: bool, as_json: bool, end: bool = True) -> None:
    """Print the results; at the ``end`` also what to do next, and raise Exit with the code of the worst."""
    from k25stack.contract.finding import lines, worst_exit

    if as_json and results:
        shown = [result.as_dict() for result in results]
        say(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2, ensure_ascii=False))
    else:
        for result in results:
            for line in lines(result, verbose):
                say(line)
    if not end:
        return
    say(f"Next: {next_step(results)}", err=True)
    if code := worst_exit(results):
        raise typer.Exit(code)


app = typer.Typer(
    cls=FallbackGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Judge a thing: k25stack check TARGET... | k25stack check host. A stack file, a draft or states directory, "
    "a URL; a launch line after --.",
)
app.command("FALLBACK", hidden=True)(check)
app.command("host")(host)


def parse_layers(text: str) -> tuple[int, ...] | None:
    from k25stack.errors import UsageError

    try:
        return tuple(int(part) for part in text.split(",")) if text else None
    except ValueError:
        raise UsageError(f"{text!r} is no list of layers", where="--layers", remedy="as 2,30,58") from None


def next_step(results: list[Result]) -> str:
    """What to type now: the same again when something is not fine (its options decide), or go on with the first."""
    if any(result.exit_code for result in results):
        return "mend what is named above, then the same command again"
    kind, target = results[0].kind, results[0].target
    return {
        "draft": command("draft", "inspect", target),
        "stack": command("run", target, "-n"),
        "states": command("check", "DRAFT_DIR", "--states", target),
        "url": command("bench", target),
        "launch": "k25stack stack import -n -- and the same words",
    }.get(kind, "k25stack --help")
