"""``k25stack host nccl``: which settings fit a host, and which are fastest on it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.host.live.session import Place
    from k25stack.host.seen import Seen

FILE = Path("/etc/k25stack/nccl.env")
app = typer.Typer(no_args_is_help=True, help="NCCL's settings: advice from the topology, and a measured choice.")


@app.command()
def advise(
    address: Annotated[str, typer.Option("--host", help="[user@]host over SSH, or local.")] = "local",
    source: Annotated[
        Path | None, typer.Option("--from", help="Read a recording instead of a host.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which NCCL_P2P_LEVEL fits topology, peer access, IOMMU and ACS, and why; nothing is measured."""
    from k25stack.host.advise import SOURCES
    from k25stack.host.advise import advise as advice_for
    from k25stack.host.collect import collect, target_of
    from k25stack.host.fleet import with_password
    from k25stack.host.recording import read_recording

    seen = read_recording(source, SOURCES) if source else collect(with_password(target_of(address)), SOURCES)
    advice = advice_for(seen)
    if as_json:
        say(json.dumps(advice.as_dict(), indent=2, ensure_ascii=False))
    else:
        for reason in advice.why:
            say(f"# {reason}")
        for name, value in sorted(advice.env.items()):
            say(f"{name}={value}")
    mend = f"mend {', '.join(advice.mend)} (k25stack check host), then ask again" if advice.mend else ""
    say(f"Next: {mend or 'k25stack host nccl sweep'}", err=True)


@app.command()
def sweep(
    budget: Annotated[str, typer.Option(help="Time to spend: 60s, 10m.")] = "10m",
    workload: Annotated[str, typer.Option(help="latency (few streams), throughput (many), or both.")] = "both",
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; - prints it.")] = FILE,
    python: Annotated[str, typer.Option(help="A Python that has torch; this one if left out.")] = "",
    image: Annotated[str, typer.Option(help="Measure in this image, which must be here.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be measured and written.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before replacing the file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all measurements as JSON.")] = False,
) -> None:
    """Measure protocol x algorithm x channels on this machine and write the fastest with its evidence."""
    from k25stack.host.live.session import Place
    from k25stack.host.soak import seconds_of
    from k25stack.host.sweep import first_round, sizes_of

    budget_s, sizes = seconds_of(budget), sizes_of(workload)
    place = Place(python or sys.executable, image)
    seen = _read_here()
    cards, nvlink, base = _ground(seen)
    if dry_run:
        for name, value in sorted(base.items()):
            say(f"# in all: {name}={value}")
        for combination in first_round([], nvlink):
            say(" ".join(f"{name}={value}" for name, value in combination.env(True).items()))
        say("# then the best two with 4, 8, 16 and 32 channels")
        say(f"within {budget_s:.0f} s, {len(sizes)} sizes each, with {place.told()}; then write {out}", err=True)
        say("Next: k25stack host nccl sweep", err=True)
        return
    if str(out) != "-":
        _may_write(out, yes)
    found = _measure(place, cards, nvlink, base, budget_s, workload)
    text = found.pop("file")
    if as_json:
        say(json.dumps(found, indent=2, ensure_ascii=False))
    if str(out) != "-":
        from k25stack.files import write_text

        write_text(out, text)
        say(f"{out}: {found['winner']}, {found['gain']:.2f} times NCCL's own choice", err=True)
    elif not as_json:
        say(text, end="")
    say("Next: k25stack check host --live", err=True)


def _read_here() -> Seen:
    from k25stack.host.advise import SOURCES
    from k25stack.host.collect import Target, collect

    return collect(Target("local"), SOURCES)


def _ground(seen: Seen) -> tuple[int, bool, dict[str, str]]:
    """Number of cards, whether NVLink joins all of them, and what is set in all measurements."""
    from k25stack.host.advise import advise as advice_for
    from k25stack.host.measure import file_env
    from k25stack.host.parse.topo import parse_links
    from k25stack.host.places import TOPO
    from k25stack.host.sweep import base_env

    text = seen.text(TOPO)
    links = parse_links(text) if text is not None else None
    nvlink = links is not None and set(links.classes()) == {"NV"}
    return links.count if links else 0, nvlink, base_env(file_env(seen), advice_for(seen).env)


def _may_write(out: Path, yes: bool) -> None:
    """Before minutes are spent: the file can be written and may be replaced.  Raises HostError."""
    import os

    from k25stack.errors import HostError

    place = next(parent for parent in (out.parent, *out.absolute().parents) if parent.exists())
    if not os.access(place, os.W_OK):
        raise HostError("it cannot be written", where=str(out), remedy="run as root, or give -o FILE")
    if out.exists() and not yes and not typer.confirm(f"Replace {out}?", err=True):
        say("nothing was done", err=True)
        raise typer.Exit(1)


def _measure(
    place: Place, known: int, nvlink: bool, base: dict[str, str], budget_s: float, workload: str
) -> dict[str, Any]:
    """Everything that was measured, and the text of the file."""
    from k25stack.cli.check_live import lease
    from k25stack.errors import HostError
    from k25stack.host.live.session import Session
    from k25stack.host.sweep import as_dict, is_scoped, nccl_file, sizes_of
    from k25stack.host.sweep import sweep as measure

    sizes = list(sizes_of(workload))
    with (
        lease("host nccl sweep", f"NCCL sweep, {budget_s:.0f} s", known) as held,
        Session(place, held.descriptors) as session,
    ):
        probe = session.ask("probe", 60)
        facts: dict[str, Any] = next((json.loads(line) for line in probe.lines if line.startswith("{")), {})
        cards = int(facts.get("cards", 0))
        if cards < 2:
            raise HostError(
                f"{place.told()} sees {cards} cards" if facts else probe.why(),
                where="sweep",
                remedy="it takes two cards or more: give --python or --image with torch that sees them",
            )

        def told(line: str) -> None:
            held.note(line)
            say(line, err=True)

        swept = measure(
            lambda env, limit_s: session.ask(
                "allreduce", limit_s, cards=list(range(cards)), sizes=sizes, env=dict(env)
            ),
            base,
            nvlink=nvlink,
            scoped=is_scoped(facts["nccl"]),
            budget_s=budget_s,
            told=told,
        )
    scoped = is_scoped(facts["nccl"])
    about = f"{cards}x {facts['names'][0]}, NCCL {facts['nccl']}"
    text = nccl_file(swept, scoped, about, workload, time.strftime("%Y-%m-%d"))
    return {**as_dict(swept, scoped, about, workload), "file": text}
