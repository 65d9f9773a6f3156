"""What is served: chosen, proven before anything starts, written down, and found again.

``state/serve/<stack>/`` holds the rendered files (compose file, job files, proxy), ``current.json`` (what is up),
``good.json`` (what has served well, the newest last) and ``pending.json`` while a change is being tried.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.errors import HostError, LeaseError, StackError, UsageError
from k25stack.files import manifest_hash, read_json, write_json, write_text
from k25stack.jobs.composefile import OUR, compose_files, containers, image_name, layout, write_tree
from k25stack.jobs.monitorfile import promise_text
from k25stack.locks import make_shared
from k25stack.pipeline.composectl import Compose, image_id
from k25stack.pipeline.lease import lease_holder, lease_path
from k25stack.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

PROVENANCE = "k25stack.json"
KEEP = 5  # good ones
KEPT = ("target", "package", "control")
MADE = {"own": "package", "random": "control"}  # a draft that a run makes -> its step


@dataclass(frozen=True)
class Choice:
    """One thing to serve.  ``draft`` is empty for a profile without one; paths are those of the host."""

    stack: str
    profile: str
    image: str
    target: str
    draft: str = ""
    port: int = 30000
    image_id: str = ""
    env: str = ""  # hash of the rendered job files: argv, environment, policy
    since: float = 0.0
    monitoring: bool = False  # Prometheus beside it

    def values(self, promise: Path) -> dict[str, str]:
        """Variables of the compose file."""
        chosen = {"COMPOSE_PROFILES": self.profile, "K25_IMAGE": self.image, "K25_TARGET": self.target}
        chosen |= {"K25_PORT": str(self.port), "K25_PROMISE": str(promise), "K25_LEASE_DIR": str(lease_path().parent)}
        return chosen | ({"K25_DRAFT": self.draft} if self.draft else {})

    def told(self) -> str:
        """One line for people."""
        draft = f", draft {self.draft}" if self.draft else ", no draft"
        return f"{self.profile} of {self.stack}: image {self.image}{draft}"


@dataclass(frozen=True)
class Site:
    """The serving directory of one stack."""

    workspace: Workspace
    stack: Stack
    source: str  # the stack file, as typed

    @property
    def directory(self) -> Path:
        return (self.workspace.state / "serve" / self.stack.name).resolve()

    @property
    def promise(self) -> Path:
        return self.directory / "promise.yml"

    def read(self, name: str) -> Any:
        """current, pending (a mapping or None) or good (a list)."""
        try:
            return read_json(self.directory / f"{name}.json")
        except FileNotFoundError:
            return [] if name == "good" else None

    def choice(self, name: str) -> Choice | None:
        found = self.read(name)
        return None if found is None else Choice(**found)

    def note(self, name: str, choice: Choice | None) -> None:
        """Write current or pending, whole or not at all; None removes it."""
        path = self.directory / f"{name}.json"
        if choice is None:
            path.unlink(missing_ok=True)
        else:
            write_json(path, asdict(choice))

    def remember(self, choice: Choice) -> None:
        """Put a choice that has served well at the end of the good ones."""
        others = [one for one in self.read("good") if _same(one) != _same(asdict(choice))]
        write_json(self.directory / "good.json", [*others, asdict(choice)][-KEEP:])

    def render(self, choice: Choice) -> Choice:
        """Write the files that compose reads, and the draft's promise; returns the choice with the hash of its job."""
        files = compose_files(self.stack, self.source)
        write_tree(files, self.directory)
        draft = Path(choice.draft) / PROVENANCE if choice.draft else None
        record = read_json(draft) if draft is not None and draft.is_file() else None
        write_text(self.promise, promise_text(record))
        job = {
            name: text for name, text in files.items() if name.startswith(f"jobs/{self.stack.name}/{choice.profile}/")
        }
        return replace(choice, env=manifest_hash(job))

    def compose(self, choice: Choice) -> Compose:
        where = layout(self.stack)
        return Compose(self.directory, where.file, where.project, choice.values(self.promise), choice.monitoring)


def _same(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("since", "image", "monitoring")}


def choose(
    site: Site,
    profile_name: str = "",
    *,
    target: str = "",
    draft: str = "",
    image: str = "",
    port: int = 0,
    monitoring: bool = False,
) -> Choice:
    """What to serve: what is given, else what the stack says, else what the newest run of the same draft has made.

    Raises UsageError for an unknown profile, one that is no container, or a directory that is not there.
    """
    stack = site.stack
    name = profile_name or stack.serving.default
    profile = stack.profile(name)
    if name not in containers(stack):
        raise UsageError(f"profile {name!r} runs in this package, not in a container", where=stack.name,
                         remedy=f"one of {', '.join(containers(stack))}")  # fmt: skip
    speculative = profile.speculative
    needed = ["target", MADE[speculative.draft]] if speculative and speculative.draft in MADE else ["target"]
    hub = stack.target.source.kind == "hub" and not target  # `prepare` gets it where it is not there yet
    made = None if target and (draft or not speculative) else made_by_run(site, *needed)
    return Choice(
        stack=stack.name,
        profile=name,
        image=image or OUR.format(image_name(stack, profile)),
        target=layout(stack).target
        if hub
        else _directory(target or _target(site, made), "the target", "--target DIRECTORY"),
        draft=_directory(draft or _draft(site, profile, made), "the draft", "--draft DIRECTORY")
        if profile.speculative
        else "",
        port=port or stack.serving.port,
        monitoring=monitoring,
    )


def _target(site: Site, made: dict[str, Path] | None) -> str:
    source = site.stack.target.source
    if source.kind == "dir":
        return source.path
    return str((made or {}).get("target", ""))


def _draft(site: Site, profile: Profile, made: dict[str, Path] | None) -> str:
    from k25stack.engines.launch import draft_name

    named = profile.speculative.draft if profile.speculative else ""
    if named in MADE:
        return str((made or {}).get(MADE[named], ""))
    if (known := draft_name(profile)) is not None and known.startswith(("/", ".")):
        return known
    return str(Path(layout(site.stack).target).parent / named.replace("/", "--"))


def made_by_run(site: Site, *needed: str) -> dict[str, Path] | None:
    """Step -> its kept result, of the newest run with the same target and draft that has made ``needed``; else None."""
    from k25stack.stack import load_stack

    for run in site.workspace.all_runs():
        resolved = run.directory / "stack.resolved.yaml"
        places = {step: site.workspace.artefacts / key / "out" for step, key in run.keys().items() if step in KEPT}
        there = {step: place.resolve() for step, place in places.items() if (place / "config.json").is_file()}
        if not resolved.is_file() or not set(needed) <= set(there):
            continue
        try:
            found = load_stack(resolved)
        except StackError:  # of another version of this package
            continue
        if found.target.source == site.stack.target.source and found.draft == site.stack.draft:
            return there
    return None


def _directory(text: str, what: str, option: str) -> str:
    if not text:
        raise UsageError(f"{what} is made by a run, and no run here has made it", where="serve",
                         remedy=f"run the loop first (make demo), or give {option}")  # fmt: skip
    place = Path(text).absolute()
    if not (place / "config.json").is_file():
        raise UsageError(f"{what} is not there: no config.json", where=str(place), remedy=option)
    return str(place.resolve())


def prove(site: Site, choice: Choice) -> Choice:
    """Everything that can be known before a container starts; returns the choice with its image's id.

    Raises HostError for a missing image or a port in use, LeaseError when somebody else holds the lease, ContractError
    or DamageError for a target or draft that would not be served.
    """
    from k25stack.pipeline.serveproof import prove_files

    found = replace(choice, image_id=image_id(choice.image))
    image_id(os.environ.get("K25_PROXY_IMAGE") or OUR.format("proxy"))
    prove_files(site.stack, found.profile, Path(found.target), Path(found.draft) if found.draft else None)
    make_shared(lease_path())
    running = services(site, found)
    if not any(name in running for name in containers(site.stack)):
        _lease_is_free()
    if "proxy" not in running or (site.choice("current") or found).port != found.port:
        _port_is_free(found.port)
    return found


def services(site: Site, choice: Choice) -> set[str]:
    """Services of this site that run."""
    if not (site.directory / layout(site.stack).file).is_file():
        return set()
    return {name for name, row in site.compose(choice).containers().items() if row.get("State") == "running"}


def is_up(site: Site, choice: Choice) -> bool:
    """Whether an engine of this site runs."""
    return bool(services(site, choice) & set(containers(site.stack)))


def _lease_is_free() -> None:
    held = lease_holder()
    if held is not None:
        raise LeaseError(f"{held.get('who', 'somebody')} holds the lease of this host", where=str(lease_path()),
                         remedy="wait for it, or end it: k25stack status")  # fmt: skip


def _port_is_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            remedy = f"end who listens there (ss -ltnp 'sport = :{port}'), or give --port"
            raise HostError(f"port {port} of 127.0.0.1 is in use", where="serve", remedy=remedy) from None
