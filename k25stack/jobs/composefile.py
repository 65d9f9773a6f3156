"""The whole of ``compose/`` for one stack: the compose file and every file that it mounts.

Engine services come from `jobs.render.service`, one per profile that runs in a container; the proxy, the preparation
of the host and the model, networks and volumes from ``templates/compose.yaml.j2``.  Everything is text in, text out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.errors import UsageError
from k25stack.jobs.monitorfile import monitoring_files
from k25stack.jobs.proxyfile import Door, proxy_config
from k25stack.jobs.render import READY_PORT, job_files, service
from k25stack.jobs.serving import DRAFT, LEASE_DIR, MODEL, Places, serving_job
from k25stack.jobs.templates import directory, fill

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

MODELS = "/srv/k25stack/models"  # of a host with cards; it is made and given to uid 10001 when the host is brought up
MADE = "../state/serve"  # of a host without: links to what a run has made
OUR = "k25stack/{}:local"
ALIAS = "engine"  # the one name under which proxy and Prometheus find whichever engine is up
DRAIN_S = 90
FETCH = ("k25stack", "stack", "fetch", "/etc/k25stack/stack/stack.yaml")
PREPARE = (*FETCH, "--into", MODEL)
PROJECT = "k25stack"


@dataclass(frozen=True)
class Layout:
    """Names that depend on whether the host has cards."""

    file: str  # of the compose file
    env_file: str
    target: str  # default of K25_TARGET
    draft: str  # default of K25_DRAFT where the draft has no name of its own
    project: str

    @property
    def option(self) -> str:
        """What `docker compose` needs to be told; nothing for its own default names."""
        return "" if self.file == "compose.yaml" else f"-f {self.file} --env-file {self.env_file} "


def layout(stack: Stack) -> Layout:
    """compose.yaml and .env for a stack with cards, compose.cpu.yaml and cpu.env for one without."""
    kept = f"{MODELS}/{stack.target.name.replace('/', '--')}"
    if stack.host.gpus:
        return Layout("compose.yaml", ".env", kept, f"{MODELS}/{stack.draft.name}", PROJECT)
    target = kept if stack.target.source.kind == "hub" else f"{MADE}/target"
    return Layout("compose.cpu.yaml", "cpu.env", target, f"{MADE}/draft", f"{PROJECT}-cpu")


def containers(stack: Stack) -> dict[str, Profile]:
    """The profiles that run in a container.  Raises UsageError when the default one does not."""
    found = {name: profile for name, profile in stack.serving.profiles.items() if profile.engine != "reference"}
    if stack.serving.default not in found:
        raise UsageError(f"the default profile {stack.serving.default!r} runs in this package, not in a container",
                         where=f"{stack.name}: serving.default", remedy="name one of SGLang or vLLM")  # fmt: skip
    return found


def image_name(stack: Stack, profile: Profile) -> str:
    """Which of our images serves a profile."""
    return profile.engine if stack.host.gpus else "cpu"


def compose_files(stack: Stack, source: str) -> dict[str, str]:
    """Path below ``compose/`` -> text.  ``source`` is the stack file, as the head of the compose file names it.

    Raises UsageError for a stack whose default profile is no container or whose images have no digest.
    """
    from k25stack.stack.dump import dump_stack

    where, profiles = layout(stack), containers(stack)
    files: dict[str, str] = {}
    engines: dict[str, Any] = {}
    for name, profile in profiles.items():
        place = f"jobs/{stack.name}/{name}"
        job = serving_job(stack, name, _places(stack, profile, where, f"./{place}"))
        files |= {f"{place}/{file}": text for file, text in job_files(job).items()}
        engines[name] = _engine(stack, service(job), name, profile)
    files[f"jobs/{stack.name}/stack.yaml"] = dump_stack(stack)
    files[where.file] = _whole(stack, source, where, profiles, engines)
    files[where.env_file] = _env_file(stack, where)
    files["proxy/nginx.conf"] = proxy_config(Door(engine_port=stack.serving.port, ready_port=READY_PORT))
    for name in ("start.sh", "ground.sh"):
        files[f"proxy/{name}"] = (directory() / f"proxy.{name}").read_text(encoding="utf-8")
    return files | monitoring_files(stack.serving.port, READY_PORT, {})


def _places(stack: Stack, profile: Profile, where: Layout, job: str) -> Places:
    draft = ""
    if profile.speculative:
        draft = f"${{K25_DRAFT:-{draft_default(profile, where)}}}"
    nccl = "${K25_NCCL_ENV:-/etc/k25stack/nccl.env}"
    image = OUR.format(image_name(stack, profile))
    return Places(f"${{K25_TARGET:-{where.target}}}", draft, job=job, nccl=nccl, lease=_lease(), image=image)


def draft_default(profile: Profile, where: Layout) -> str:
    """A hub draft has a directory of its own name beside the target; ours is where `serve` or the host keeps it."""
    from k25stack.engines.launch import draft_name

    named = draft_name(profile)
    if named is None or named.startswith(("/", ".")):
        return named or where.draft
    return f"{MODELS}/{named.replace('/', '--')}"


def draft_service(name: str, profile: Profile) -> str:
    """The service that prepares the draft of a profile; empty when no hub has it."""
    return f"prepare-{name}" if profile.speculative and profile.speculative.hub_draft else ""


def _lease() -> str:
    return f"${{K25_LEASE_DIR:-{LEASE_DIR}}}"


def _engine(stack: Stack, mapping: dict[str, Any], name: str, profile: Profile) -> dict[str, Any]:
    """What a service gets in this file beside what its job says.

    Docker refuses to create a container for a directory that is not there, before `ground` has opened it or `prepare`
    has filled it (or said why it cannot).
    """
    made = {LEASE_DIR}
    made |= {MODEL} if stack.target.source.kind == "hub" else set()
    made |= {DRAFT} if draft_service(name, profile) else set()
    for volume in mapping["volumes"]:
        if volume["target"] in made:
            volume["bind"] = {"create_host_path": True}
    before = filter(None, ("ground", "prepare", draft_service(name, profile)))
    image = f"${{K25_IMAGE:-{mapping['image']}}}"
    return {
        "profiles": [name],
        **mapping,
        "image": image,
        "pull_policy": "missing",
        "networks": {"engine": {"aliases": [ALIAS]}},
        # the proxy too: where its port is taken, no engine starts for nobody
        "depends_on": {
            "proxy": {"condition": "service_started"},
            **{service: {"condition": "service_completed_successfully"} for service in before},
        },
    }


def _whole(
    stack: Stack, source: str, where: Layout, profiles: Mapping[str, Profile], engines: Mapping[str, Any]
) -> str:
    import yaml

    default = image_name(stack, stack.profile())
    fetches = stack.target.source.kind == "hub"
    blocks = []
    for name, mapping in engines.items():
        text = yaml.safe_dump({name: mapping}, sort_keys=False, allow_unicode=True, width=100_000)
        blocks.append("".join(f"  {line}" for line in text.splitlines(keepends=True)))
    return fill(
        "compose.yaml.j2",
        stack=stack,
        source=source,
        file_option=where.option,
        env_file=where.env_file,
        project=where.project,
        profiles=list(profiles),
        drain_s=DRAIN_S,
        lease=_lease(),
        proxy_image="${K25_PROXY_IMAGE:-" + OUR.format("proxy") + "}",
        default_image="${K25_IMAGE:-" + OUR.format(default) + "}",
        fetches=fetches,
        prepare=PREPARE if fetches else (*PREPARE, "--verify"),
        prepare_volumes=_prepare_volumes(stack, where, fetches),
        drafts=[_draft(stack, name, one, where) for name, one in profiles.items() if draft_service(name, one)],
        engines="\n".join(blocks),
    )


def _prepare_volumes(stack: Stack, where: Layout, fetches: bool) -> list[str]:
    target = f"${{K25_TARGET:-{where.target}}}:/models/target"
    return [f"./jobs/{stack.name}:/etc/k25stack/stack:ro", target if fetches else f"{target}:ro"]


def _draft(stack: Stack, name: str, profile: Profile, where: Layout) -> dict[str, Any]:
    """What the service that prepares the draft of a profile is filled in with."""
    stack_file, target = _prepare_volumes(stack, where, fetches=False)
    return {
        "service": draft_service(name, profile),
        "profile": name,
        "entrypoint": (*FETCH, "--draft", name, "--into", DRAFT, "--target", MODEL),
        "volumes": [stack_file, target, f"${{K25_DRAFT:-{draft_default(profile, where)}}}:{DRAFT}"],
    }


def _env_file(stack: Stack, where: Layout) -> str:
    lines = [
        f"# What `docker compose` in this directory reads.  Rendered from the stack {stack.name}.  `k25stack serve`",
        "# keeps what it chose in state/serve/ and leaves this file alone.  docs/compose.md explains every variable.",
        f"COMPOSE_PROFILES={stack.serving.default}",
        "K25_BIND=127.0.0.1",
        f"K25_PORT={stack.serving.port}",
    ]
    return "\n".join(lines) + "\n"


def differences(files: Mapping[str, str], place: Path) -> list[str]:
    """Names of the files of ``compose/`` that are missing or not what was rendered."""

    def there(name: str) -> str | None:
        path = place / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return [name for name, text in files.items() if there(name) != text]


def write_tree(files: Mapping[str, str], place: Path) -> list[str]:
    """Write what differs, each file whole or not at all; returns the names."""
    from k25stack.files import write_text

    changed = differences(files, place)
    for name in changed:
        write_text(place / name, files[name])
    return changed
