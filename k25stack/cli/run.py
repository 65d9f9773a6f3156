"""``k25stack run``: the loop of a stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.pipeline.workspace import Workspace


def run(
    stack: Annotated[Path | None, typer.Argument(help="A stack file.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Print the plan with reasons; do nothing.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Steps (commas or repeated) with what they read.")] = None,
    again: Annotated[list[str] | None, typer.Option(help="Steps to make anew though they are there.")] = None,
    name: Annotated[str, typer.Option(help="Name of the run; else the newest of this stack.")] = "",
    new: Annotated[bool, typer.Option("--new", help="Start run <stack>-<n+1>.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every kept file again.")] = False,
    gc: Annotated[bool, typer.Option("--gc", help="Delete results that no run's last plan names.")] = False,
    backend: Annotated[str, typer.Option(help="Who runs the steps: process or docker; else what the stack says.")] = "",
    image: Annotated[str, typer.Option(help="Image of all steps under docker; else the stack's.")] = "",
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan or the summary as JSON.")] = False,
) -> None:
    """Make everything a stack asks for: prompts, answers, states, draft, checks, benchmarks, report.

    What is there already is not made again; `-n` says what would be made and why.  Killed or interrupted, the next
    call goes on.  A gate of the stack that does not hold exits with 1, Ctrl-C with 130.
    """
    from k25stack.errors import UsageError
    from k25stack.pipeline.workspace import Workspace

    workspace = Workspace(Path())
    if gc:
        _collect_garbage(workspace, dry_run, yes, as_json)
        return
    if stack is None:
        raise UsageError("no stack file given", remedy="k25stack run stacks/smollm2-cpu.yaml")
    _run(workspace, stack, dry_run, as_json, name=name or None, new=new, only=_words(only), again=_words(again),
         verify=verify, backend=backend, image=image)  # fmt: skip


def _run(
    workspace: Workspace,
    stack: Path,
    dry_run: bool,
    as_json: bool,
    *,
    name: str | None,
    new: bool,
    only: list[str],
    again: list[str],
    verify: bool,
    backend: str,
    image: str,
) -> None:
    from k25stack.pipeline.ending import finish
    from k25stack.pipeline.loop import request_for
    from k25stack.pipeline.plan import render
    from k25stack.pipeline.runner import Runner

    request = request_for(
        stack, name=name, new=new, only=only, again=again, verify=verify, backend=backend, image=image
    )
    runner = Runner(workspace, request)
    if dry_run:
        decisions = runner.plan()
        plan = {"run": runner.run_.name, "steps": [decision.as_json() for decision in decisions]}
        say(json.dumps(plan, indent=2) if as_json else "\n".join(render(decisions)))
        blocked = [one.step.name for one in decisions if one.step.blocked and one.state != "cached"]
        told = f"{', '.join(blocked)} cannot run: --only takes steps that need none of them"
        say(f"Next: {told if blocked else f'k25stack run {stack}'}", err=True)
        return
    outcome = runner.run()
    ending = finish(outcome, stack)
    say(json.dumps(ending.summary, indent=2, ensure_ascii=False) if as_json else ending.table)
    for path in ending.paths:
        say(str(path), err=as_json)
    for line in ending.failed:
        say(f"gate {line}", err=True)
    chosen = "".join(f" --{option} {word}" for option, word in (("backend", backend), ("image", image)) if word)
    say(f"Next: {ending.next}{chosen if ending.next.startswith('k25stack run ') else ''}", err=True)
    if ending.failed:
        raise typer.Exit(1)


def _collect_garbage(workspace: Workspace, dry_run: bool, yes: bool, as_json: bool) -> None:
    from k25stack.pipeline.gc import collect, garbage

    items = garbage(workspace)
    if as_json:
        say(json.dumps([{"path": str(item.path), "bytes": item.bytes, "why": item.why} for item in items], indent=2))
    else:
        for item in items:
            say(f"{item.bytes / 1e6:10.1f} MB  {item.path}  {item.why}")
    total_mb = sum(item.bytes for item in items) / 1e6
    if not items or dry_run:
        say(f"{len(items)} results, {total_mb:.1f} MB, nobody needs them", err=True)
        return
    if not yes and not typer.confirm(f"delete these {len(items)} results ({total_mb:.1f} MB)?", err=True):
        raise typer.Exit(1)
    say(f"{collect(items) / 1e6:.1f} MB are free now", err=True)
    say("Next: k25stack status", err=True)


def _words(values: list[str] | None) -> list[str]:
    return [word for value in values or [] for word in value.split(",") if word]
