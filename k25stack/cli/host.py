"""``k25stack host``: bring hosts up, undo it, and choose NCCL's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k25stack.cli.host_nccl import app as nccl
from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.host.playbook import Order, Run

app = typer.Typer(no_args_is_help=True, help="Bring hosts up with the playbooks, undo that, choose NCCL's settings.")
app.add_typer(nccl, name="nccl")

Inventory = Annotated[Path, typer.Argument(help="An Ansible inventory file.", show_default=False)]
Limit = Annotated[str, typer.Option(help="Only these hosts or groups, as in Ansible.")]
Tags = Annotated[str, typer.Option(help="Only these roles, as base,nccl_env.")]
Playbook = Annotated[
    Path | None, typer.Option(help="Another playbook than the one of this repository.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Change nothing: show the differences by role.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    inventory: Inventory,
    limit: Limit = "",
    tags: Tags = "",
    playbook: Playbook = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Bring the hosts of an inventory up (playbooks/site.yml); a second time changes nothing."""
    _play("up", playbook, "site.yml", inventory, limit, tags, dry_run, yes, as_json)


@app.command()
def reset(
    inventory: Inventory,
    limit: Limit = "",
    tags: Tags = "",
    playbook: Playbook = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Undo what host up added (playbooks/reset.yml): models, images and runs stay."""
    _play("reset", playbook, "reset.yml", inventory, limit, tags, dry_run, yes, as_json)


def _play(
    verb: str, playbook: Path | None, name: str, inventory: Path, limit: str, tags: str, dry_run: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    import os

    from k25stack.cli.check_live import outlives_terminal
    from k25stack.cli.main import Stopped
    from k25stack.host.playbook import PLAYBOOKS, Order, run_playbook

    password = os.environ.get("K25_BECOME_PASSWORD", "")
    order = Order(playbook or PLAYBOOKS / name, inventory, limit, tags, dry_run, password)
    if not dry_run and not yes:
        _ask(verb, order)
    try:
        with outlives_terminal():
            run = run_playbook(order, lambda line: say(line, err=True))
    except KeyboardInterrupt:
        raise Stopped("interrupted", remedy="what is done stays done: run it again") from None
    if as_json:
        say(json.dumps(_as_dict(run), indent=2, ensure_ascii=False))
    else:
        for line in _lines(run):
            say(line)
    say(f"Next: {_next(verb, run)}", err=True)
    if run.exit_code:
        raise typer.Exit(run.exit_code)


def _ask(verb: str, order: Order) -> None:
    from k25stack.host.parse.values import listed, plural
    from k25stack.host.playbook import hosts_of

    hosts, _ = hosts_of(order.inventory)
    asked = f"{order.limit} of {plural(len(hosts), 'host')}" if order.limit else plural(len(hosts), "host")
    what = "Bring up" if verb == "up" else "Undo what host up added on"
    if not typer.confirm(f"{what} {asked} ({listed(hosts)})? Servers there may stop", err=True):
        say("nothing was done", err=True)
        raise typer.Exit(1)


def _lines(run: Run) -> list[str]:
    from k25stack.host.play import by_role

    shown = list(by_role(list(run.hosts))) if run.order.check else []
    for host in run.hosts:
        shown += [f"{host.name}: {note}" for note in host.notes]
    return [*shown, *(host.summary() for host in run.hosts)]


def _as_dict(run: Run) -> dict[str, object]:
    return {
        "playbook": run.order.playbook.name,
        "inventory": str(run.order.inventory),
        "dry_run": run.order.check,
        "seconds": round(run.seconds, 1),
        "exit_code": run.exit_code,
        "hosts": [host.as_dict() for host in run.hosts],
    }


def _next(verb: str, run: Run) -> str:
    if run.exit_code:
        return "mend what is named above, then again: what is done stays done"
    again = f"k25stack host {verb} {run.order.inventory}"
    if run.order.check:
        return again
    if any("reboot required" in note for host in run.hosts for note in host.notes):
        return f"reboot the hosts that ask for it, then {again}"
    return f"k25stack check host --inventory {run.order.inventory}"
