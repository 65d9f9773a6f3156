"""A whole launch line taken apart: environment, container, launcher, the engine's own words (standard library only).

Understood are what people type and what scripts and containers hold::

    NCCL_PROTO=LL python3 -m sglang.launch_server --model-path M --tp-size 8
    sglang serve M --tp-size 8        vllm serve M -tp 8        python -m vllm.entrypoints.openai.api_server --model M
    docker run --gpus all -e A=b --shm-size 32g IMAGE [COMMAND]
    --model-path M --tp-size 8        (the engine is told apart)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
MODULES = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "k25stack.reference.server": "reference",
}
SERVING = {"sglang": "sglang", "vllm": "vllm"}  # programs whose word "serve" starts a server
IMAGES = {"sglang": "sglang", "vllm-openai": "vllm", "vllm": "vllm"}  # last part of an image's name
ENTRYPOINTS = {"vllm": ("vllm", "serve")}  # what an engine's image puts before the command; SGLang's puts nothing
TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:\.post\d+)?)")
DOCKER_FLAGS = (  # they take no value; every other option takes one
    *("-d", "--detach", "-i", "-t", "-it", "-ti", "--interactive", "--tty", "--rm", "--privileged", "--init"),
    *("--read-only", "-P", "--publish-all", "--no-healthcheck", "--oom-kill-disable"),
)


@dataclass
class Container:
    """What a container run says beside the command."""

    image: str = ""
    entrypoint: tuple[str, ...] | None = None  # given by the run; None: the image's own
    shm_bytes: int | None = None
    ipc: str = ""
    ports: list[str] = field(default_factory=list)  # as docker writes them: 127.0.0.1:30000:30000
    network: str = ""
    privileged: bool = False
    other: list[str] = field(default_factory=list)  # options that say nothing of the engine


@dataclass
class Command:
    """A launch line.  ``words`` are the engine's own, after its launcher."""

    engine: str = ""  # empty: not told by the line
    version: str = ""
    env: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    launcher: tuple[str, ...] = ()
    container: Container | None = None
    repeated: tuple[str, ...] = ()  # launcher words that the image's entrypoint has said already
    leading: list[str] = field(default_factory=list)  # other programs before the launcher: nohup, numactl ...


def read_command(words: Sequence[str]) -> Command:
    """Take a launch line apart.  Never fails: what is no launcher leaves ``engine`` empty."""
    rest = list(words)
    env: dict[str, str] = {}
    while rest and (ASSIGNMENT.fullmatch(rest[0]) or rest[0] in ("env", "exec", "export")):
        word = rest.pop(0)
        if "=" in word:
            name, _, value = word.partition("=")
            env[name] = value
    if rest[:2] in (["docker", "run"], ["podman", "run"], ["nerdctl", "run"]):
        command = _docker(rest[2:])
    else:
        command = find_launcher(rest)
    command.env = {**env, **command.env}
    return command


def find_launcher(words: Sequence[str]) -> Command:
    """The engine's launcher anywhere in the line; all words are the engine's own when there is none."""
    words = list(words)
    for index, word in enumerate(words):
        module = words[index + 1] if word == "-m" and index + 1 < len(words) else ""
        if module in MODULES:
            python = index - 1 if index and PurePosixPath(words[index - 1]).name.startswith("python") else index
            return _launched(MODULES[module], words, python, index + 2)
        name = PurePosixPath(word).name
        if name in SERVING and words[index + 1 : index + 2] == ["serve"]:
            return _launched(SERVING[name], words, index, index + 2)
    return Command(words=list(words))


def _launched(engine: str, words: Sequence[str], start: int, end: int) -> Command:
    rest = list(words[end:])
    command = Command(engine, words=rest, launcher=tuple(words[start:end]), leading=list(words[:start]))
    if engine == "sglang" and command.launcher[-1] == "serve" and rest and not rest[0].startswith("-"):
        command.words = ["--model-path", *rest]
    if engine == "vllm" and rest[:1] == ["serve"]:
        command.words, command.repeated = rest[1:], ("serve",)
    return command


def in_container(image: str, entrypoint: Sequence[str] | None, words: Sequence[str]) -> Command:
    """The command of a container of this image; the image's own entrypoint counts when the run gives none."""
    engine, version = image_engine(image)
    own = ENTRYPOINTS.get(engine, ()) if entrypoint is None else tuple(entrypoint)
    command = find_launcher([*own, *words])
    said = find_launcher(words) if own and find_launcher(own).engine else Command()
    if said.engine:  # the image starts the server, and the command says so again
        command = said
        command.repeated = said.launcher
    command.engine = command.engine or engine
    command.version = version
    return command


def image_engine(image: str) -> tuple[str, str]:
    """(engine, version) that an image's name and tag tell; empty where they tell nothing."""
    name, _, _ = image.partition("@")
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        path, tag = name, ""
    engine = IMAGES.get(path.rsplit("/", 1)[-1], "")
    found = TAG.match(tag)
    return engine, found.group(1) if found and engine else ""


def _docker(words: Sequence[str]) -> Command:
    """``docker run``: its options, the image, and the command after it."""
    container, env = Container(), {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in DOCKER_FLAGS:
            container.privileged |= option == "--privileged"
            continue
        if not equals:
            value = rest.pop(0) if rest else ""
        if option in ("-e", "--env"):
            name, _, content = value.partition("=")
            env[name] = content
        else:
            _docker_option(container, option, value)
    container.image = rest.pop(0) if rest else ""
    command = in_container(container.image, container.entrypoint, rest)
    command.container, command.env = container, env
    return command


def _docker_option(container: Container, option: str, value: str) -> None:
    if option == "--entrypoint":
        container.entrypoint = (value,) if value else ()
    elif option == "--shm-size":
        container.shm_bytes = docker_bytes(value)
    elif option == "--ipc":
        container.ipc = value
    elif option in ("-p", "--publish"):
        container.ports.append(value)
    elif option in ("--network", "--net"):
        container.network = value
    else:
        container.other.append(f"{option} {value}")


def docker_bytes(text: str) -> int | None:
    """``32g`` in bytes as docker counts them (binary); None when it is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([bkmgt]?)b?", text.lower())
    if found is None:
        return None
    return int(float(found.group(1)) * 1024 ** " kmgt".replace(" ", "b").index(found.group(2) or "b"))
