"""``k25stack status``, ``logs`` and ``stop``: what is going on here, and an end to it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from k25stack.cli.output import say

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every two seconds until Ctrl-C.")] = False,
    bundle: Annotated[
        Path | None, typer.Option(help="Write logs, ledger and plan of a run to FILE.tar.gz.", show_default=False)
    ] = None,
    run: Annotated[str, typer.Option(help="The run of --bundle; the one used last if left out.")] = "",
    as_json: Json = False,
) -> None:
    """Runs of this directory, what they are doing, the GPU lease of this host, disk.  Changes nothing.

    --bundle collects what somebody else needs to see what went wrong; secrets are blacked out, answers stay here.
    """
    from k25stack.pipeline.status import overview, render
    from k25stack.pipeline.workspace import Workspace

    if bundle is not None:
        from k25stack.pipeline.bundle import write_bundle
        from k25stack.pipeline.find import find_run

        workspace = Workspace(Path())
        found = find_run(workspace, run or None)
        names = write_bundle(workspace, found, bundle)
        say(json.dumps({"bundle": str(bundle), "files": names}, indent=2) if as_json else str(bundle))
        say(f"{len(names)} files of {found.name}, {bundle.stat().st_size / 1e6:.1f} MB", err=True)
        say(f"Next: tar -tzf {bundle}", err=True)
        return
    while True:
        view = overview(Workspace(Path()))
        text = json.dumps(view, indent=2) if as_json else "\n".join(render(view))
        if not watch:
            say(text)
            break
        print(f"{text}\n", flush=True)  # ends with its reader
        time.sleep(2.0)
    if not as_json:
        failed = [run["run"] for run in view["runs"] if run["state"] in ("failed", "killed")]
        say(f"Next: k25stack logs {failed[0]}" if failed else "Next: k25stack run STACK -n", err=True)


def logs(
    run: Annotated[str, typer.Argument(help="A run; the one used last if left out.", show_default=False)] = "",
    step: Annotated[str, typer.Argument(help="A step, STEP.server for its server.", show_default=False)] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on printing until the step ends.")] = False,
) -> None:
    """Print the log of a step: of the one that runs, else of the one that ran last."""
    from k25stack.pipeline.find import find_log, find_run, follow_log
    from k25stack.pipeline.workspace import Workspace

    found = find_run(Workspace(Path()), run or None)
    path = find_log(found, step or None)
    say(f"{path}", err=True)
    for text in follow_log(found, path) if follow else [path.read_text(encoding="utf-8", errors="replace")]:
        print(text, end="", flush=True)


app = typer.Typer(no_args_is_help=True, add_completion=False, help="End a run that is going on; finished parts stay.")


@app.callback()
def stop() -> None:
    """End a run that is going on; finished parts stay."""


@app.command("run")
def stop_a_run(
    name: Annotated[str, typer.Argument(help="A run; the one used last if left out.", show_default=False)] = "",
    grace_s: Annotated[float, typer.Option("--grace", help="Seconds to end by itself.", min=0.0)] = 20.0,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Say what would be ended.")] = False,
) -> None:
    """End a run: its command and its steps, also steps that a killed command has left."""
    from k25stack.pipeline.find import find_run
    from k25stack.pipeline.stop import stop_run, what_runs
    from k25stack.pipeline.workspace import Workspace

    run = find_run(Workspace(Path()), name or None)
    running = what_runs(run)
    for what in running:
        say(f"{run.name}: {what}")
    if not running:
        say(f"{run.name}: nothing runs", err=True)
    elif not dry_run:
        if not yes and not typer.confirm(f"end {run.name}?", err=True):
            raise typer.Exit(1)
        stop_run(run, grace_s)
        say(f"{run.name}: ended, finished parts are kept", err=True)
    say("Next: k25stack status", err=True)


@app.command("server")
def stop_a_server(
    stack: Annotated[Path, typer.Argument(help="The stack file that is served.", show_default=False)],
    keep: Annotated[bool, typer.Option("--keep", help="Keep keys, certificate and caches.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Say what would be ended.")] = False,
) -> None:
    """End a server and its proxy; requests that run may end first.  Nothing of it is left unless --keep says so."""
    from k25stack.pipeline.composectl import require_docker
    from k25stack.pipeline.serveup import down
    from k25stack.pipeline.serving import Site
    from k25stack.pipeline.workspace import Workspace
    from k25stack.stack import load_stack

    site = Site(Workspace(Path()), load_stack(stack), str(stack))
    current = site.choice("current")
    say(current.told() if current else f"{site.stack.name}: nothing is served", err=True)
    if not dry_run:
        require_docker()
        if current is not None and not yes and not typer.confirm("end it?", err=True):
            raise typer.Exit(1)
        down(site, volumes=not keep)
    say(f"Next: k25stack serve {stack}", err=True)
