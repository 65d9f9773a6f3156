"""What is served: chosen, proven before anything starts, written down, and found again.

``state/serve/<stack>/`` holds the rendered files (compose file, job files, proxy), ``current.json`` (what is up),
``good.json`` (what has served well, the newest last) and ``pending.json`` while a change is being tried.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.errors import DamageError, HostError, LeaseError, StackError, UsageError
from k25stack.files import manifest_hash, read_json, sha256_text, write_json, write_text
from k25stack.jobs.composefile import OUR, compose_files, containers, draft_default, image_name, layout, write_tree
from k25stack.jobs.monitorfile import promise_text
from k25stack.locks import NamedLock, describe, make_shared, me
from k25stack.pipeline.composectl import Compose, image_id
from k25stack.pipeline.lease import lease_holder, lease_path
from k25stack.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

PROVENANCE = "k25stack.json"
KEEP = 5  # good ones
STACKS = "stacks"  # below the site: what choices that may come back were rendered from
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
    hub_draft: bool = False  # `prepare` gets the draft where it is not there yet
    made_from: str = ""  # hash of the stack that its files were rendered from, kept in stacks/

    def values(self, promise: Path) -> dict[str, str]:
        """Variables of the compose file."""
        chosen = {"COMPOSE_PROFILES": self.profile, "K25_IMAGE": self.image, "K25_TARGET": self.target}
        chosen |= {"K25_PORT": str(self.port), "K25_PROMISE": str(promise), "K25_LEASE_DIR": str(lease_path().parent)}
        return chosen | {"K25_DRAFT": "" if self.hub_draft else self.draft}  # of a hub: the compose file's own place

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
        path = self.directory / f"{name}.json"
        try:
            found = read_json(path)
            for one in found if name == "good" else [found]:
                Choice(**one)
        except FileNotFoundError:
            return [] if name == "good" else None
        except (ValueError, TypeError) as error:
            remedy = f"move it away; k25stack stop server {self.source} ends what runs"
            raise DamageError(f"not what this version writes: {error}", where=str(path), remedy=remedy) from None
        return found

    def choice(self, name: str) -> Choice | None:
        found = self.read(name)
        return None if found is None else Choice(**found)

    @contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Hold the site while something of it is changed.  Raises LeaseError that names who changes it already."""
        lock = NamedLock(self.directory / "lock")
        if (other := lock.acquire({**me(), "who": what})) is not None:
            raise LeaseError(f"{other.get('who', 'another command')} ({describe(other)}) is changing what is served",
                             where=self.stack.name, remedy="wait for it, or end it")  # fmt: skip
        try:
            yield
        finally:
            lock.release()

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
        good = [*others, asdict(choice)][-KEEP:]
        write_json(self.directory / "good.json", good)
        noted = [one for name in ("current", "pending") if (one := self.read(name))]
        needed = {f"{one.get('made_from')}.yaml" for one in (*good, *noted)}
        for path in (self.directory / STACKS).glob("*.yaml"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def as_of(self, choice: Choice) -> Site:
        """This site with the stack of then: somebody may have changed the file since."""
        from k25stack.stack import load_stack

        kept = self.directory / STACKS / f"{choice.made_from}.yaml"
        return replace(self, stack=load_stack(kept)) if choice.made_from and kept.is_file() else self

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
        text = files[f"jobs/{self.stack.name}/stack.yaml"]
        made_from = sha256_text(text)[:16]
        write_text(self.directory / STACKS / f"{made_from}.yaml", text)
        return replace(choice, env=manifest_hash(job), made_from=made_from)

    def compose(self, choice: Choice) -> Compose:
        where = layout(self.stack)
        return Compose(self.directory, where.file, where.project, choice.values(self.promise), choice.monitoring)


def _same(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("since", "image", "monitoring", "made_from")}


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
    made = (None if target and (draft or not speculative) else made_by_run(site, *needed)) or {}
    hub_draft = bool(speculative and speculative.hub_draft and not draft)
    return Choice(
        stack=stack.name,
        profile=name,
        image=image or OUR.format(image_name(stack, profile)),
        target=_target(site, target, made),
        draft=_hub_draft(stack, name, profile) if hub_draft else _draft(profile, draft, made) if speculative else "",
        port=port or stack.serving.port,
        monitoring=monitoring,
        hub_draft=hub_draft,
    )


def _target(site: Site, given: str, made: Mapping[str, Path]) -> str:
    source = site.stack.target.source
    if source.kind == "hub" and not given:
        return layout(site.stack).target  # `prepare` gets it where it is not there yet
    place = given or (source.path if source.kind == "dir" else str(made.get("target", "")))
    return _directory(place, "the target", "--target DIRECTORY")


def _draft(profile: Profile, given: str, made: Mapping[str, Path]) -> str:
    from k25stack.engines.launch import draft_name

    named = profile.speculative.draft if profile.speculative else ""
    place = given or draft_name(profile) or str(made.get(MADE.get(named, ""), ""))
    return _directory(place, "the draft", "--draft DIRECTORY")


def _hub_draft(stack: Stack, name: str, profile: Profile) -> str:
    """Where a hub's draft is kept.  Raises UsageError when it is not there and nothing says which one to fetch."""
    from k25stack.stack.serving import how_to_pin

    place = draft_default(profile, layout(stack))
    speculative = profile.speculative
    if speculative and speculative.unpinned and not (Path(place) / "config.json").is_file():
        what = f"{speculative.unpinned}, and {place} does not hold it"
        raise UsageError(what, where=f"profile {name}", remedy=f"{how_to_pin(name)}; or give --draft DIRECTORY")
    return place


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
    from k25stack.pipeline.serveproof import prove_files, require_fillable

    found = replace(choice, image_id=image_id(choice.image))
    image_id(os.environ.get("K25_PROXY_IMAGE") or OUR.format("proxy"))
    draft = Path(found.draft) if found.draft else None
    prove_files(site.stack, found.profile, Path(found.target), draft, found.hub_draft)
    hub_target = site.stack.target.source.kind == "hub"
    for place in (*([found.target] if hub_target else []), *([found.draft] if found.hub_draft else [])):
        require_fillable(Path(place))
    make_shared(lease_path())
    running = services(site, found)
    if not any(name in running for name in containers(site.stack)):
        _lease_is_free()
    if "proxy" not in running or (site.choice("current") or found).port != found.port:
        _port_is_free(found.port, "serve", "give --port")
    if found.monitoring and "prometheus" not in running:
        _port_is_free(int(os.environ.get("K25_PROMETHEUS_PORT") or 9090), "prometheus", "set K25_PROMETHEUS_PORT")
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


def _port_is_free(port: int, who: str, other: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            remedy = f"end who listens there (ss -ltnp 'sport = :{port}'), or {other}"
            raise HostError(f"port {port} of 127.0.0.1 is in use", where=who, remedy=remedy) from None
