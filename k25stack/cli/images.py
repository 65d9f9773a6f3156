"""``k25stack stack build | fetch | pin``: our images, what a stack needs on this machine, and the pins of both."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.stack.model import Stack

Names = Annotated[
    list[str] | None, typer.Argument(help="Names in images/lock.yaml; all if left out.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would be done.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the three commands to ``k25stack stack``."""
    app.command()(build)
    app.command()(fetch)
    app.command()(pin)


def build(
    names: Names = None,
    base: Annotated[str, typer.Option(help="Build FROM this image instead of the pinned one.")] = "",
    tag: Annotated[str, typer.Option(help="Name of the result; k25stack/NAME:local if left out.")] = "",
    ca_bundle: Annotated[str, typer.Option(help="Certificates for pip, as a build secret; PIP_CERT's file.")] = "",
    pip_conf: Annotated[str, typer.Option(help="pip configuration, as a build secret; PIP_CONFIG_FILE's.")] = "",
    wheels: Annotated[str, typer.Option(help="Directory of wheels that no index has; PIP_FIND_LINKS's.")] = "",
    snapshot: Annotated[str, typer.Option(help="Moment of Debian's archive, as 20261101T000000Z.")] = "",
    archive: Annotated[str, typer.Option(help="Build reproducibly into this OCI archive, then load it.")] = "",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every layer again.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Build our own images FROM the pinned ones, and print the sizes of our layers."""
    from k25stack.errors import UsageError
    from k25stack.stack import build as builds
    from k25stack.stack.images import read_lock

    builds.require_checkout()
    lock = read_lock()
    chosen = names or list(lock.builds)
    if len(chosen) > 1 and (tag or archive):
        raise UsageError("--tag and --archive name one image", where="stack build", remedy="build one at a time")
    given: dict[str, Any] = {"base": base, "tag": tag, "ca_bundle": ca_bundle, "pip_conf": pip_conf, "wheels": wheels}
    given |= {"snapshot": snapshot, "archive": archive}
    wanted = replace(builds.machine(), no_cache=no_cache, **{key: value for key, value in given.items() if value})
    for name in chosen:
        if dry_run:
            key = builds.content_key(lock, name, wanted)
            say(shlex.join(builds.build_argv(lock, name, wanted, builds.source()[0], key=key)))
            continue
        built = builds.build(name, wanted, lambda line: say(line, err=True))
        if as_json:
            say(json.dumps({"name": name, **asdict(built)}))
            continue
        say(f"{built.tag} {built.digest} key {built.key}")
        for size, instruction in built.layers:
            say(f"  {size:>8}  {instruction[:100]}")
    following = f"k25stack stack build {' '.join(names or [])}".rstrip() if dry_run else "k25stack serve PROFILE"
    say(f"Next: {following}", err=True)


def fetch(
    file: Annotated[Path, typer.Argument(help="A stack file.", show_default=False)],
    images: Annotated[bool, typer.Option("--images", help="Images alone.")] = False,
    model: Annotated[bool, typer.Option("--model", help="The target alone.")] = False,
    draft: Annotated[str, typer.Option(help="The draft of this profile alone, which a hub has.")] = "",
    into: Annotated[
        Path | None, typer.Option(help="Directory of the target, which implies --model, or of the draft.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Directory of the target, to judge the draft for it.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Look at what is there; fetch nothing.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Read every file again when verifying.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Get a stack's images by digest, target and drafts at their pinned revisions, and verify every file.

    A draft of a hub that is not pinned is named and left alone; -n asks the hub which commit it would be now.
    """
    from k25stack.cli.fetching import fetch_draft, fetch_drafts
    from k25stack.stack import load_stack

    stack = load_stack(file)
    if draft:
        fetch_draft(stack, draft, into, target, verify, full, dry_run)
    else:
        model = model or into is not None
        if images or not model:
            _images(stack, verify, dry_run)
        if model or not images:
            _model(stack, into, verify, full, dry_run)
        if not model and not images:
            fetch_drafts(stack, verify, full, dry_run)
    say(f"Next: k25stack stack fetch {file}" if dry_run else f"Next: k25stack check {file}", err=True)


def _images(stack: Stack, verify: bool, dry_run: bool) -> None:
    from k25stack.stack import pull

    for name, image in stack.images.items():
        if dry_run:
            say(shlex.join(pull.pull_argv(image)))
            continue
        if verify:
            pull.verify(image)
        else:
            say(f"fetching {image.ref}", err=True)
            pull.pull(image)
        say(f"{name}: {image.ref}@{image.digest} verified")


def _model(stack: Stack, into: Path | None, verify: bool, full: bool, dry_run: bool) -> None:
    from k25stack.cli.fetching import get

    get(stack.target.source.model_dump(mode="json"), stack.target.name, into, verify, full, dry_run)


def pin(
    names: Names = None,
    check: Annotated[bool, typer.Option("--check", help="Compare only; exit 4 when a tag has moved.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Ask the registries what the tags mean now, and write the digests into images/lock.yaml."""
    from k25stack.stack import pins

    answers = pins.ask(tuple(names or ()))
    if as_json:
        say(json.dumps([asdict(answer) for answer in answers], indent=2))
    else:
        for answer in answers:
            say(answer.line())
    if not check and not dry_run:
        changed = pins.write_pins(answers)
        say(f"images/lock.yaml: {', '.join(changed) or 'nothing'} changed", err=True)
    verdicts = {answer.verdict for answer in answers}
    if check and verdicts & {"moved", "new"}:
        say("Next: k25stack stack pin", err=True)
        raise typer.Exit(4)
    if "unresolved" in verdicts:
        say("Next: k25stack stack pin, where the registries can be reached", err=True)
        raise typer.Exit(3)
    say("Next: k25stack stack build", err=True)
