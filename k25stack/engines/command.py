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

from k25stack.engines import shell

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
CONTAINERS = ("docker", "podman", "nerdctl")
STARTERS = (*MODULES, *(f"{name} serve" for name in SERVING))
TALKERS = ("echo", "printf", "pkill", "pgrep", "killall", "grep")  # programs that only name a launch
SHELLS = ("sh", "bash", "dash", "zsh")
SHORT_FLAGS = "ditPq"  # of docker run; every other short option takes a value, attached or not
DOCKER_FLAGS = (  # they take no value; every other option takes one
    *("-d", "--detach", "-i", "-t", "-it", "-ti", "--interactive", "--tty", "--rm", "--privileged", "--init"),
    *(
        "--quiet",
        "-q",
        "--sig-proxy",
        "--use-api-socket",
        "--read-only",
        "-P",
        "--publish-all",
        "--no-healthcheck",
        "--oom-kill-disable",
    ),
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
    leading, options = container_run(rest)
    if options is not None:
        command = _docker(options)
        command.leading = [*leading, *command.leading]
    else:
        command = find_launcher(rest)
    command.env = {**env, **command.env}
    return command


def typed(words: Sequence[str]) -> list[str]:
    """A launch line given as one word, in quotes, as the words that it is; a file's name stays as it is."""
    if len(words) != 1 or not re.search(r"\s", words[0].strip()):
        return list(words)
    return split_line(words[0].strip()) or list(words)


def container_run(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """(words before ``docker run``, words after it); the second is None where no container is started."""
    for index, word in enumerate(words):
        if PurePosixPath(word).name not in CONTAINERS:
            continue
        following = list(words[index + 1 : index + 3])
        count = 1 if following[:1] == ["run"] else 2 if following == ["container", "run"] else 0
        if count and not find_launcher(words[:index]).engine:
            return list(words[:index]), list(words[index + 1 + count :])
    return [], None


def unwrapped(words: Sequence[str]) -> list[str]:
    """The line inside of ``bash -c "..."``, ``tmux new "..."`` and the like, where it starts an engine.

    Else the words themselves.
    """
    for index, word in enumerate(words):
        if re.search(r"\s", word) and not words[0].endswith(TALKERS) and any(name in word for name in STARTERS):
            inner = split_line(word)
            if inner and inner != [word] and find_launcher(inner).engine:
                shells = [i for i in range(index) if PurePosixPath(words[i]).name in SHELLS]
                return [*words[: shells[-1] if shells else index], *inner]
    return list(words)


def split_line(text: str) -> list[str]:
    """Words of the command in a shell text that starts an engine, what it exports in front; else of the first command.

    None where its quotes do not match.
    """
    found = shell.find(text, lambda words: bool(read_command(words).launcher or container_run(words)[1]))
    found = found or shell.find(text, bool)
    if found is None or found.broken:
        return []
    return [*(f"{name}={value}" for name, value in found.exported.items()), *found.words]


def find_launcher(words: Sequence[str]) -> Command:
    """The engine's launcher anywhere in the line; all words are the engine's own when there is none."""
    words = unwrapped(words)
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
    before = [word for word in words[:start] if not ASSIGNMENT.fullmatch(word)]
    env = {name: value for name, _, value in (word.partition("=") for word in words[:start] if word not in before)}
    command = Command(engine, env=env, words=rest, launcher=tuple(words[start:end]), leading=before)
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
        word = rest.pop(0)
        if not word.startswith("--"):  # -itd, -it, -p8000:8000, -eA=b
            while len(word) > 1 and word[1] in SHORT_FLAGS:
                word = f"-{word[2:]}"
            if len(word) < 2:
                continue
            word = word if len(word) == 2 else f"{word[:2]}={word[2:].removeprefix('=')}"
        option, equals, value = word.partition("=")
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
    command.container, command.env = container, {**env, **command.env}
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
