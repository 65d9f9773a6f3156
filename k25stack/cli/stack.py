"""``k25stack stack``: look at a stack file, start or import one, print an engine's command line, plan its memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k25stack.cli.images import register
from k25stack.cli.output import command, say

if TYPE_CHECKING:
    from k25stack.engines.catalogue import Finding
    from k25stack.stack.serving import Profile

app = typer.Typer(no_args_is_help=True, help="The stack file: one typed YAML file that decides a whole run.")

File = Annotated[Path, typer.Argument(help="A stack file.", show_default=False)]
ProfileName = Annotated[str, typer.Option("--profile", "-p", help="A serving profile; the default one if left out.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def show(file: File, profile: ProfileName = "", as_json: Json = False) -> None:
    """Print the stack, or one profile, with everything inherited and defaulted filled in."""
    from k25stack.stack import load_stack
    from k25stack.stack.dump import dump_stack, to_yaml

    stack = load_stack(file)
    chosen = [stack.profile(profile)] if profile else list(stack.serving.profiles.values())
    if as_json:
        part = chosen[0] if profile else stack
        say(json.dumps(part.model_dump(mode="json"), indent=2, ensure_ascii=False))
    elif profile:
        say(to_yaml({profile: chosen[0].model_dump(mode="json")}), end="")
    else:
        say(dump_stack(stack), end="")
    for finding in [finding for item in chosen for finding in _findings(item)]:
        _say(finding)
    say(f"Next: {command('run', file, '-n')}", err=True)


@app.command()
def new(
    file: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    base: Annotated[str, typer.Option("--from", help="A stack file, or the name of a shipped one.")] = "smollm2-cpu",
    name: Annotated[str, typer.Option(help="Name of the stack; the file's own if left out.")] = "",
    whole: Annotated[bool, typer.Option("--whole", help="Copy all of it instead of extending it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would be written.")] = False,
) -> None:
    """Start a stack file: a short one that extends another, or a whole commented copy."""
    from k25stack.files import write_text
    from k25stack.stack.create import new_stack

    text = new_stack(file, base, name or file.stem, whole)
    if dry_run:
        say(text, end="")
        return
    write_text(file, text)
    say(f"Next: {command('stack', 'show', file)}", err=True)


@app.command()
def render(
    file: File,
    profile: ProfileName = "",
    step: Annotated[str, typer.Option(help="A step of the loop instead of a profile.")] = "",
    to: Annotated[str, typer.Option(help="argv, script, compose, sbatch or policy.")] = "argv",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it there; stdout if left out.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Compare with this file; exit 4 and the difference on drift.")
    ] = None,
    model: Annotated[str, typer.Option(help="Directory of the target, where a run makes it or a node has it.")] = "",
    draft: Annotated[str, typer.Option(help="Directory of the draft, where a run makes it or a node has it.")] = "",
    port: Annotated[int, typer.Option(help="Port; the stack's if left out.", min=0, max=65535)] = 0,
    image: Annotated[
        str, typer.Option(help="Image instead of the stack's: by digest, or one that was built here.")
    ] = "",
    gpus: Annotated[str, typer.Option(help="How a container asks for cards: nvidia or cdi.")] = "nvidia",
    job_dir: Annotated[str, typer.Option(help="Directory of script and policy on the host.")] = "./job",
    as_json: Json = False,
) -> None:
    """Print what starts a profile's engine, or a step's program: command line, script, service or batch file."""
    from k25stack.cli.render import Asked, deliver, render_command, render_compose, render_job, without_collection

    asked = Asked(file, profile, step, to, model, draft, port, image, gpus, job_dir)
    with without_collection():
        if to == "compose" and not profile and not step:
            render_compose(asked, out, check)
            return
        text, findings = render_command(asked, as_json) if to == "argv" and not step else render_job(asked)
        deliver(asked, text, out, check)
    for finding in findings:
        _say(finding)
    if any(_fatal(finding) for finding in findings):
        raise typer.Exit(1)


@app.command("import")
def import_(
    source: Annotated[
        list[str],
        typer.Argument(help="A launch line after --, a shell script, docker inspect output, or -.", show_default=False),
    ],
    engine: Annotated[str, typer.Option("--engine", help="As sglang@0.5.20, where the line does not tell it.")] = "",
    base: Annotated[
        str, typer.Option("--from", help="The stack that the profile joins: a file, or the name of a shipped one.")
    ] = "kimi-k2.5-8x-rtx-pro-6000",
    profile: Annotated[str, typer.Option("--profile", "-p", help="Name of the new profile.")] = "imported",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write; stdout if left out.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would be written.")] = False,
) -> None:
    """Turn a launch line, script or container into a profile, and list what has no place in one."""
    from k25stack.engines.importtext import import_launch
    from k25stack.errors import UsageError
    from k25stack.files import write_text

    if out is not None and out.exists() and not dry_run:
        raise UsageError("the file exists", where=str(out), remedy="choose another name; nothing is overwritten")
    text, notes = import_launch(source, engine, base, profile, out)
    if out is None or dry_run:
        say(text, end="")
    else:
        write_text(out, text)
    for title, line in notes:
        say(f"{title}: {line}", err=True)
    say(f"Next: {command('check', out or 'FILE', '-p', profile)}", err=True)


@app.command()
def plan(
    file: File,
    memory: Annotated[bool, typer.Option("--memory", help="Weights, caches and graphs on each card.")] = False,
    profile: ProfileName = "",
    ram: Annotated[float, typer.Option(help="Memory of the host in GiB, to judge loading.", min=0)] = 0.0,
    files: Annotated[int, typer.Option(help="Files that the weights are divided into.", min=1)] = 64,
    as_json: Json = False,
) -> None:
    """What a profile asks of its cards and its host; exit 1 when it does not fit."""
    from k25stack.contract.finding import lines
    from k25stack.contract.memory import check_memory, describe, table
    from k25stack.errors import UsageError
    from k25stack.stack import load_stack

    if not memory:
        raise UsageError("what is to be planned?", where="stack plan", remedy="add --memory")
    stack = load_stack(file)
    found, result = check_memory(stack, profile or stack.serving.default, ram, files)
    if as_json:
        say(json.dumps({"plan": describe(found), **result.as_dict()}, indent=2, ensure_ascii=False))
    else:
        for line in (*table(found), *lines(result)):
            say(line)
    say(f"Next: {command('check', file)}", err=True)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _findings(profile: Profile) -> list[Finding]:
    from k25stack.engines.catalogue import findings

    return findings(profile.engine, profile.version, profile.argv)


def _fatal(finding: Finding) -> bool:
    from k25stack.engines.catalogue import FATAL

    return finding.problem in FATAL


def _say(finding: Finding) -> None:
    kind = "error" if _fatal(finding) else "warning"
    remedy = f" ({finding.remedy})" if finding.remedy else ""
    say(f"{kind}: --{finding.option}: {finding.message}{remedy}", err=True)


register(app)
