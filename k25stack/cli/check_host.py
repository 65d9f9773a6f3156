"""``k25stack check host``: what is wrong with a machine, and how to mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.host.collect import Target
    from k25stack.host.fleet import Outcome


def host(
    address: Annotated[str, typer.Option("--host", help="[user@]host over SSH, or local.")] = "local",
    inventory: Annotated[
        Path | None, typer.Option("--inventory", "-i", help="All hosts of an Ansible inventory.", show_default=False)
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", "-p", help="What the host is meant to be; told by its cards if left out.")
    ] = "",
    source: Annotated[
        Path | None, typer.Option("--from", help="Judge a recording instead of a host.", show_default=False)
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Write what was read, masked, to a new directory.")
    ] = None,
    fix: Annotated[str, typer.Option("--fix", help="Mend this check where a harmless command can.")] = "",
    live: Annotated[
        bool,
        typer.Option("--live", help="Measure this machine too: all-reduce, peer copies, disk; takes the GPU lease."),
    ] = False,
    soak: Annotated[str, typer.Option(help="With --live: load all cards for so long (60m) and watch them.")] = "",
    python: Annotated[str, typer.Option(help="With --live: a Python that has torch; this one if left out.")] = "",
    image: Annotated[str, typer.Option(help="With --live: measure in this image, which must be here.")] = "",
    model_dir: Annotated[
        str, typer.Option("--model-dir", help="With --live: read this directory, not the profile's.")
    ] = "",
    limit: Annotated[float, typer.Option(help="With --live: seconds of one all-reduce test.", min=5)] = 120,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="With --fix or --live: show what would be done.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what passed as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge a host; exit 1 when a check fails, 3 when a host or a check could not be judged."""
    from k25stack.cli.check_live import check_live, wanted_of
    from k25stack.errors import UsageError
    from k25stack.host import fleet, text
    from k25stack.host.collect import target_of
    from k25stack.host.inventory import read_inventory
    from k25stack.host.profile import load_profile

    _sensible(address, inventory, source, record, fix, live)
    if not live and (soak or python or image or model_dir):
        raise UsageError(
            "--soak, --python, --image and --model-dir belong to --live", where="check host", remedy="add it"
        )
    expected = load_profile(profile) if profile else None
    if inventory is not None:
        outcomes = fleet.check_many(read_inventory(inventory), expected, record=record, done=_told)
        shown = text.table(outcomes, verbose)
    elif source is not None:
        outcomes = [fleet.check_recording(source, expected)]
        shown = text.lines(outcomes[0], verbose)
    elif live:
        wanted = wanted_of(soak, python, image, model_dir, limit)
        found = check_live(expected, wanted, record, dry_run)
        if found is None:
            return
        outcomes = [found]
        shown = text.lines(found, verbose)
    else:
        outcomes = [fleet.check_one(target_of(address), expected, record=record)]
        shown = text.lines(outcomes[0], verbose)
    if fix:
        _mend(fix, outcomes[0], fleet.with_password(target_of(address)), dry_run or source is not None, yes)
        return
    if as_json:
        results = [outcome.result for outcome in outcomes]
        say(json.dumps(results if inventory is not None else results[0], indent=2, ensure_ascii=False))
    else:
        for line in shown:
            say(line)
    if not profile and inventory is None and (guessed := outcomes[0].profile) is not None:
        why = "which fits its cards" if guessed.gpus else "as it has no NVIDIA card"
        say(f"judged as {guessed.name}, {why} (another: --profile NAME)", err=True)
    say(f"Next: {_next(outcomes, source)}", err=True)
    if code := fleet.exit_code(outcomes):
        raise typer.Exit(code)


def _sensible(
    address: str, inventory: Path | None, source: Path | None, record: Path | None, fix: str, live: bool
) -> None:
    """Raises UsageError for options that contradict each other."""
    from k25stack.errors import UsageError

    ways = [
        name
        for name, given in (("--host", address != "local"), ("--inventory", inventory), ("--from", source))
        if given
    ]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} exclude each other", where="check host", remedy="give one")
    if live and ways:
        raise UsageError(
            f"--live measures this machine, not {ways[0]}", where="check host", remedy="run it on that host"
        )
    if live and fix:
        raise UsageError("--live and --fix exclude each other", where="check host", remedy="mend first, then measure")
    if source is not None and record is not None:
        raise UsageError("--record of a recording", where="check host", remedy="copy the directory")
    if fix and inventory is not None:
        raise UsageError("--fix mends one host at a time", where="check host", remedy="give --host")


def _told(outcome: Outcome) -> None:
    """Progress: hosts as they come in."""
    say(f"{outcome.result['target']}: {outcome.result['verdict']}", err=True)


def _mend(id: str, outcome: Outcome, target: Target, dry_run: bool, yes: bool) -> None:
    """Show the commands that mend a check, ask, run them, and judge the check again."""
    from k25stack.host.fix import apply_repair, check_again, plan_repair

    if outcome.error is not None:
        raise outcome.error
    assert outcome.seen is not None and outcome.profile is not None  # as for every host that was read
    repair = plan_repair(id, outcome.seen, outcome.profile)
    for line in repair.lines():
        say(line)
    if dry_run:
        say(f"Next: k25stack check host --fix {id}", err=True)
        return
    if not yes and not typer.confirm(f"Run this on {target.name} as root?", err=True):
        say("nothing was done", err=True)
        raise typer.Exit(1)
    apply_repair(repair, target)
    judged = check_again(repair, target, outcome.profile)
    say(f"{str(judged['verdict']).upper():7} {judged['id']}: {judged['message']}")
    say("Next: k25stack check host", err=True)
    if judged["verdict"] != "pass":
        raise typer.Exit(1)


def _next(outcomes: list[Outcome], source: Path | None) -> str:
    """The first failure that a command mends, else what to do by hand, else the next journey."""
    from k25stack.host.checks import check_named

    failed = [
        check for outcome in outcomes for check in outcome.result["checks"] if check["verdict"] in ("fail", "warn")
    ]
    mendable = [
        one["id"] for one in failed if (check := check_named(one["id"])) is not None and check.repair is not None
    ]
    if any(outcome.error for outcome in outcomes):
        return "mend what keeps the named hosts from being read, then check again"
    if mendable and len(outcomes) == 1 and source is None:
        return f"k25stack check host --fix {mendable[0]} -n"
    if any(one["verdict"] == "fail" for one in failed):
        return "mend the failures named above, then check again"
    return "k25stack check stacks/kimi-k2.5-8x-rtx-pro-6000.yaml"
