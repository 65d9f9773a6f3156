"""L40 to L47 and N: remote code, the API's door, known holes, containers, and the environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Verdict
from k25stack.contract.nccl import check_environment
from k25stack.contract.security import check_version

if TYPE_CHECKING:
    from k25stack.contract.launch_line import Launch

SHM = 32 << 30
KEYS = {"vllm": "VLLM_API_KEY"}  # environment variables that hold the key
# Variables that change what is measured, or that nothing reads any more: (engine, name, what, remedy, source).
VARIABLES = (
    ("sglang", "SGLANG_SIMULATE_ACC_LEN", "fakes acceptance", "unset it for anything that is reported",
     "sglang srt/environ.py"),
    ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "lets a draft serve a context that it was not made for",
     "give the draft its real limit", "sglang srt/configs/model_config.py"),
    ("vllm", "VLLM_ATTENTION_BACKEND", "is read no more", "write --attention-backend", "vllm envs.py"),
    ("", "LD_PRELOAD", "puts a library into every rank; one such made NCCL hang", "unset it", "HAMi #2641"),
)  # fmt: skip


def remote_code(launch: Launch) -> Iterator[Check]:
    """L40: code of a hub repository is run as it is on the day, unless a commit is named."""
    from k25stack.model.hub import is_commit

    facts = launch.facts
    model = str(facts.get("model") or "")
    if not facts.get("remote_code") or not model or model.startswith(("/", ".", "~")):
        return
    revision = str(facts.get("revision") or "")
    if is_commit(revision):
        yield launch.finding("L40", Verdict.PASS, "remote code of a pinned commit",
                             {"revision": revision}, "", "")  # fmt: skip
        return
    name = facts.spell("remote_code")
    moves = f" ({revision!r} is no commit)" if revision else ""
    message = f"code of an unpinned model: {name} runs whatever {model} holds on the day{moves}"
    fix = f"add {facts.spell('revision')} COMMIT, or serve a verified local copy"
    yield launch.finding("L40", Verdict.WARN, message, {"model": model}, fix,
                         "CVE-2025-66448, CVE-2026-22807: code in a config's auto_map")  # fmt: skip


def exposed(launch: Launch) -> str:
    """How the API can be reached from other machines; empty when it cannot."""
    container = launch.command.container
    if container is not None and container.network != "host":
        open_ports = [port for port in container.ports if not port.startswith(("127.", "[::1]", "localhost:"))]
        return f"port {open_ports[0]} is published on every interface" if open_ports else ""
    host = launch.facts.get("host")
    if not host:  # left out, or without its value, which L6 tells
        return "it listens on every interface unless told otherwise" if launch.engine == "vllm" else ""
    try:
        address = ipaddress.ip_address(str(host))
    except ValueError:
        return "" if host == "localhost" else f"it listens on {host}"
    if address.is_loopback:
        return ""
    return "it listens on every interface" if address.is_unspecified else f"it listens on {host}"


def door(launch: Launch) -> Iterator[Check]:
    """L41 and L42: an API open to other machines needs a key, and the key does not belong on the command line."""
    facts = launch.facts
    how = exposed(launch)
    variable = KEYS.get(launch.engine, "")
    key, secret = facts.get("api_key"), facts.env.get(variable) if variable else None
    if how and not key and not secret:
        message = f"an API open to every interface: {how}, and there is no key"
        fix = f"{facts.spell('host')} 127.0.0.1 (or publish 127.0.0.1:PORT:PORT), or set a key"
        source = (
            "vLLM's documentation, usage/security"
            if launch.engine == "vllm"
            else "sglang srt/entrypoints/http_server.py"
        )
        yield launch.finding("L41", Verdict.FAIL, message, {"host": facts.get("host")}, fix, source)
    elif how and launch.engine == "sglang" and not facts.get("admin_key"):
        message = f"the administration calls share the users' key: {how}"
        yield launch.finding("L41", Verdict.WARN, message, {"host": facts.get("host")},
                             f"set {facts.spell('admin_key')} too", "sglang #15908")  # fmt: skip
    else:
        yield launch.finding("L41", Verdict.PASS, how or "reached from this machine only",
                             {"host": facts.get("host"), "key": bool(key or secret)}, "", "")  # fmt: skip
    typed = [word.partition("=")[0].replace("_", "-") for word in launch.served[0]]  # not those of a --config file
    shown = [facts.spell(name) for name in ("api_key", "admin_key") if facts.get(name) and facts.spell(name) in typed]
    if shown:
        message = f"a key on the command line: {shown[0]} can be read in ps and docker inspect"
        fix = f"set {variable}" if variable else "put it into a file for --config that only the server can read"
        yield launch.finding("L42", Verdict.WARN, message, {"option": shown[0]}, fix, "visible to every local user")


def holes(launch: Launch) -> Iterator[Check]:
    yield from check_version(launch.engine, launch.version, launch.label)


def entrypoint(launch: Launch) -> Iterator[Check]:
    """L44: what the image's entrypoint has said is not said again."""
    command = launch.command
    said = command.repeated
    if not said and launch.engine == "vllm" and not command.launcher and command.words[:1] == ["serve"]:
        said = ("serve",)
    if said:
        message = f"`{' '.join(said)}` said twice: the image's entrypoint is already vllm serve"
        yield launch.finding("L44", Verdict.FAIL, message, {"command": list(command.words[:3])},
                             "begin the command with the model", "vllm #22072, #37133, #40872")  # fmt: skip
    elif command.container is not None and launch.engine == "sglang" and not command.launcher:
        message = "SGLang's image starts nothing by itself"
        yield launch.finding("L44", Verdict.FAIL, message, {"command": list(command.words[:3])},
                             "begin the command with python3 -m sglang.launch_server",
                             "lmsysorg/sglang images have no entrypoint of their own")  # fmt: skip


def container(launch: Launch) -> Iterator[Check]:
    """L45 and L46: shared memory, and an image that stays what it is."""
    run = launch.command.container
    if run is None:
        return
    several = any((launch.facts.get(f"{kind}_parallel") or 1) != 1 for kind in ("tensor", "pipeline", "data"))
    if several and run.ipc != "host" and (run.shm_bytes or 64 << 20) < SHM:
        given = f"{run.shm_bytes >> 20} MiB" if run.shm_bytes else "docker's 64 MiB"
        message = f"small shared memory: {given} for several ranks"
        yield launch.finding("L45", Verdict.FAIL, message, {"shm_bytes": run.shm_bytes, "ipc": run.ipc},
                             "--shm-size 32g, or --ipc host", "sglang #4259, PR #1986; vllm #1393")  # fmt: skip
    if run.image and "@sha256:" not in run.image:
        message = f"image not pinned by digest: {run.image} may be another one tomorrow"
        yield launch.finding("L46", Verdict.WARN, message, {"image": run.image}, "add @sha256:...",
                             "a tag can be moved, a digest cannot")  # fmt: skip


def environment(launch: Launch) -> Iterator[Check]:
    """L47: variables that change what is measured; N: those of NCCL."""
    env = launch.facts.env
    for engine, name, what, fix, source in VARIABLES:
        if env.get(name) and engine in ("", launch.engine):
            yield launch.finding("L47", Verdict.WARN, f"{name} {what}", {name: env[name]}, fix, source)
    yield from check_environment(env, launch.nccl, launch.label)


RULES = (remote_code, door, holes, entrypoint, container, environment)
