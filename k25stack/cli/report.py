"""``k25stack report``: the status document of a run, and notes for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k25stack.cli.fallback import FallbackGroup
from k25stack.cli.output import say

app = typer.Typer(
    cls=FallbackGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Status document: k25stack report RUN | k25stack report note RUN TEXT.",
)

Run = Annotated[str, typer.Argument(help="Name of a run under runs/, or a run directory.", show_default=False)]


@app.command()
def write(
    run: Run,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when documents are stale.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write status.md, report.html and summary.json of a run from its ledger, and print the table."""
    import json

    from k25stack.report import stale, summary, table
    from k25stack.report import write as write_documents

    place = directory_of(run)
    if check:
        names = stale(place)
        for name in names:
            say(f"{place / name}: does not match the ledger (k25stack report {run})")
        if names:
            raise typer.Exit(1)
        say(f"{place}: the documents match the ledger", err=True)
        return
    paths = write_documents(place)
    say(json.dumps(summary(place), indent=2, ensure_ascii=False) if as_json else table(place))
    for path in paths:
        say(str(path), err=True)
    say(f"Next: k25stack report {run} --check", err=True)


@app.command()
def note(
    run: Run,
    text: Annotated[str, typer.Argument(help="What to write down.", show_default=False)],
    kind: Annotated[str, typer.Option(help="note, discovery, decision or assumption.")] = "note",
    evidence: Annotated[str, typer.Option(help="What shows it.")] = "",
    validated_by: Annotated[str, typer.Option(help="The run that showed an assumption to hold.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be written.")] = False,
) -> None:
    """Append a note, discovery, decision or assumption to a run's ledger."""
    from k25stack.report import note as append_note

    place = directory_of(run)
    if dry_run:
        say(f"{kind}: {text}")
        return
    record = append_note(place, text, kind, evidence, validated_by)
    say(f"{record.time} {record.kind}: {record.data['text']}", err=True)
    say(f"Next: k25stack report {run}", err=True)


def directory_of(run: str) -> Path:
    """A run directory, given as such or by its name.  Raises UsageError when there is neither."""
    from k25stack.errors import UsageError

    for place in (Path("runs") / run, Path(run)):
        if (place / "ledger").is_dir():
            return place
    raise UsageError("no such run", where=run, remedy="k25stack status lists the runs here")
