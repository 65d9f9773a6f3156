"""``k25stack serve``: start a profile in containers, try another one in its place, take a change back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k25stack.cli.fallback import FallbackGroup
from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.pipeline.servewait import Door
    from k25stack.pipeline.serving import Choice, Site

File = Annotated[Path, typer.Argument(help="A stack file.", show_default=False)]
Target = Annotated[str, typer.Option(help="Directory of the target; else where the stack or a run has it.")]
Draft = Annotated[str, typer.Option(help="Directory of the draft; else that of the profile.")]
ImageName = Annotated[str, typer.Option(help="Image to run instead of our own build: by digest, or built here.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Dry = Annotated[bool, typer.Option("--dry-run", "-n", help="Prove everything, say what would be done, start nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def serve(
    stack: File,
    profile: Annotated[str, typer.Argument(help="A profile; the default one if left out.", show_default=False)] = "",
    target: Target = "",
    draft: Draft = "",
    image: ImageName = "",
    port: Annotated[
        int, typer.Option(help="Port on the loopback interface; the stack's if left out.", min=0, max=65535)
    ] = 0,
    monitoring: Annotated[bool, typer.Option("--monitoring", help="Prometheus beside it.")] = False,
    yes: Yes = False,
    dry_run: Dry = False,
    as_json: Json = False,
) -> None:
    """Start a profile in containers behind the proxy and wait until it is ready.

    Everything that can be known is proven first: image, files, draft, launch line, lease, port.
    """
    from k25stack.pipeline.serveup import serve as bring_up
    from k25stack.pipeline.serving import choose, prove

    site = _site(stack)
    choice = prove(
        site, choose(site, profile, target=target, draft=draft, image=image, port=port, monitoring=monitoring)
    )
    say(choice.told(), err=True)
    _warn(site, choice)
    if dry_run:
        say(f"Next: k25stack serve {stack} {choice.profile}", err=True)
        return
    _agree(site, choice, yes)
    door = bring_up(site, choice)
    _told(site, choice, door, as_json)


def promote(
    stack: File,
    profile: Annotated[str, typer.Argument(help="The profile to try; that which is served if left out.")] = "",
    target: Target = "",
    draft: Draft = "",
    image: ImageName = "",
    yes: Yes = False,
    dry_run: Dry = False,
    as_json: Json = False,
) -> None:
    """Try a profile, draft or image in place of what is served; keep it when a short bench says that it is not slower.

    Requests that run may end first.  If the candidate does not come up or is slower, what was served before is served
    again (exit 1).
    """
    from k25stack.pipeline.serveup import promote as try_it
    from k25stack.pipeline.serving import choose, prove

    site = _site(stack)
    current = site.choice("current")
    name = profile or (current.profile if current else "")
    port = current.port if current else 0
    watched = current is not None and current.monitoring
    candidate = prove(site, choose(site, name, target=target, draft=draft, image=image, port=port, monitoring=watched))
    _warn(site, candidate)
    if dry_run:
        say(f"would try {candidate.told()}", err=True)
        say(f"Next: k25stack serve promote {stack} {name}", err=True)
        return
    _agree(site, candidate, yes, ask=True)
    verdict = try_it(site, candidate, lambda text: say(text, err=True))
    if as_json:
        say(json.dumps({"before": verdict.before, "after": verdict.after, "against": verdict.against}, indent=2))
    else:
        from k25stack.bench.main import describe

        for name, rows in (("before", verdict.before), ("after", verdict.after)):
            for row in rows:
                say(f"{name:7} {describe(row)}")
        for line in verdict.against:
            say(f"against it: {line}")
    say(f"Next: k25stack serve {'promote' if verdict.against else 'rollback'} {stack}", err=True)
    if verdict.against:
        raise typer.Exit(1)


def rollback(stack: File, yes: Yes = False, dry_run: Dry = False) -> None:
    """Serve the last good image, draft and environment again; what a broken-off promote left comes first."""
    from k25stack.pipeline.serveup import rollback as take_back

    site = _site(stack)
    if dry_run:
        for one in reversed(site.read("good")):
            say(f"{one['profile']}  {one['image']}  {one['draft'] or 'no draft'}")
        say(f"Next: k25stack serve rollback {stack}", err=True)
        return
    current = site.choice("current")
    if current is not None:
        _agree(site, current, yes, ask=True)
    choice, door = take_back(site)
    _told(site, choice, door, False)


def key(
    stack: File,
    role: Annotated[str, typer.Option(help="user or operator.")] = "user",
    certificate: Annotated[bool, typer.Option("--certificate", help="Print the proxy's certificate instead.")] = False,
) -> None:
    """Print a key of the proxy that is up, or its certificate."""
    from k25stack.errors import UsageError
    from k25stack.pipeline.composectl import key_for

    site = _site(stack)
    current = site.choice("current")
    if current is None:
        raise UsageError("nothing is served", where=site.stack.name, remedy=f"k25stack serve {stack}")
    compose = site.compose(current)
    print(
        compose.secret("tls.crt") if certificate else key_for(compose.secret("api-keys"), role),
        end="" if certificate else "\n",
    )


app = typer.Typer(
    cls=FallbackGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Serve: k25stack serve STACK [PROFILE] | serve promote | serve rollback | serve key.  End it: "
    "k25stack stop server STACK.",
)
app.command("FALLBACK", hidden=True)(serve)
app.command("promote")(promote)
app.command("rollback")(rollback)
app.command("key")(key)


def _site(stack: Path) -> Site:
    from k25stack.pipeline.composectl import require_docker
    from k25stack.pipeline.serving import Site
    from k25stack.pipeline.workspace import Workspace
    from k25stack.stack import load_stack

    loaded = load_stack(stack)
    require_docker()
    return Site(Workspace(Path()), loaded, str(stack))


def _warn(site: Site, choice: Choice) -> None:
    """Say plainly that nothing decides which draft of a hub this is."""
    from k25stack.stack.serving import unpinned_drafts

    if choice.hub_draft:
        for line in unpinned_drafts({choice.profile: site.stack.profile(choice.profile)}):
            say(f"warning: {line}", err=True)


def _agree(site: Site, choice: Choice, yes: bool, ask: bool = False) -> None:
    """Nothing that stops a server runs without a prompt or ``-y``."""
    from k25stack.pipeline.serving import is_up

    current = site.choice("current")
    if yes or current is None or (not ask and current.profile == choice.profile) or not is_up(site, current):
        return
    if not typer.confirm(f"{current.told()} is served; may it be stopped?", err=True):
        raise typer.Exit(1)


def _told(site: Site, choice: Choice, door: Door, as_json: bool) -> None:
    stack = site.source
    model = site.stack.target.name
    if as_json:
        say(
            json.dumps(
                {"url": door.url, "profile": choice.profile, "model": model, "certificate": str(door.certificate)}
            )
        )
    else:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
        say(f"""curl --cacert {door.certificate} {door.url}/v1/chat/completions \\
  -H "Authorization: Bearer $(k25stack serve key {stack})" -H 'Content-Type: application/json' -d '{body}'""")
    say(f"Next: k25stack stop server {stack}", err=True)
