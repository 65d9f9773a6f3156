"""What ``k25stack stack fetch`` gets besides images: the target, and drafts that a hub has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.stack.model import Stack

GIVEN = "K25_DRAFT_GIVEN"  # in compose: the draft's directory is the caller's own; it is looked at, never written


def get(source: Mapping[str, Any], name: str, into: Path | None, verify: bool, full: bool, dry_run: bool) -> Path:
    """Fetch or verify what ``source`` names and say what was found; returns where it lies."""
    from k25stack.model import hub, obtain

    place = into or obtain.place(source)
    if not verify:
        os.environ["HF_HUB_OFFLINE"] = "0"  # our images say 1: nothing but this command fetches

    def tell(line: str) -> None:
        say(line, err=True)

    if dry_run:
        say(f"{'verify' if verify else 'fetch'} {_planned(source, verify)} -> {place}")
        return place
    done = obtain.inspect(source, place, tell, full) if verify else obtain.obtain(source, name, place, tell)
    for file, digest in done.code.items():
        say(f"{digest}  {file}")
    if done.code:
        say(f"{len(done.code)} Python files above are run by the engines (trust-remote-code): read them once", err=True)
    key = source.get("key", hub.TARGET)
    pinned = f"{source['repo']}@{source['revision']}, {key}; " if source["kind"] == "hub" else ""
    say(f"{name}: {done.directory}: {pinned}{done.bytes / 1e9:.1f} GB, {done.how}")
    return place


def _planned(source: Mapping[str, Any], verify: bool) -> str:
    """What would be fetched, in words; for a source of a hub that is not pinned, the commit to pin."""
    from k25stack.model import hub

    named = str(source.get("repo") or source.get("package") or source.get("path") or source["kind"])
    if source["kind"] != "hub" or verify:
        return named
    revision = source["revision"]
    if not hub.is_commit(revision):
        key = str(source.get("key", hub.TARGET)).rpartition(".")[2]
        meant = f"{revision or 'its main branch'} is now {key}: {hub.newest(named, revision)}"
        return f"nothing: {named} is not pinned; {meant}"
    found = hub.listing(named, revision)
    return f"{named}@{found.revision}: {len(found.files)} files, {found.bytes / 1e9:.1f} GB"


def fetch_draft(
    stack: Stack, name: str, into: Path | None, target: Path | None, verify: bool, full: bool, dry_run: bool
) -> None:
    """Get the draft that profile ``name`` takes from a hub, and judge it for the profile's engine.

    A directory that somebody has put there is judged and left as it is when the draft is not pinned, or when it is the
    caller's own (``K25_DRAFT``).  Raises UsageError for a profile without such a draft, or an unpinned one that is
    not there.
    """
    from k25stack.errors import UsageError
    from k25stack.model import obtain
    from k25stack.pipeline.serveproof import prove_draft

    profile = stack.profile(name)
    speculative = profile.speculative
    if speculative is None or not speculative.hub_draft:
        others = {one: other.speculative for one, other in stack.serving.profiles.items()}
        named = ", ".join(one for one, other in others.items() if other and other.hub_draft)
        raise UsageError("its draft comes from no hub", where=f"profile {name}",
                         remedy=f"profiles that take one from there: {named or 'none'}")  # fmt: skip
    source = obtain.hub_draft(speculative.hub_draft, speculative.draft_revision)
    place = into or obtain.place(source)
    there = (place / "config.json").is_file()
    own = bool(os.environ.get(GIVEN))
    if own or (speculative.unpinned and there and not dry_run):
        if not there:
            raise UsageError("no draft there: no config.json", where=str(place), remedy="K25_DRAFT names its directory")
        told = "K25_DRAFT" if own else f"{speculative.unpinned}; {place} is taken as it is"
        say(f"warning: {told}: its files are compared with nothing", err=True)
    else:
        get(source, speculative.hub_draft, into, verify, full, dry_run)
    if not dry_run:
        prove_draft(stack, profile, place, target)
        say(f"{place}: a draft for {profile.engine} {profile.version}")


def fetch_drafts(stack: Stack, verify: bool, full: bool, dry_run: bool) -> None:
    """Every draft that a profile takes from a hub and that is pinned; the others are named."""
    from k25stack.model import obtain
    from k25stack.stack.serving import how_to_pin

    seen: set[tuple[str, str | None]] = set()
    for name, profile in stack.serving.profiles.items():
        speculative = profile.speculative
        if speculative is None or not speculative.hub_draft:
            continue
        wanted = (speculative.hub_draft, speculative.draft_revision)
        if wanted in seen:
            continue
        seen.add(wanted)
        if speculative.unpinned and not dry_run:
            say(f"warning: profile {name}: {speculative.unpinned}, so it is not fetched ({how_to_pin(name)})", err=True)
            continue
        get(obtain.hub_draft(*wanted), speculative.hub_draft, None, verify, full, dry_run)
