"""Where launch lines are found: typed text, shell scripts, ``docker inspect`` output.  Nothing is executed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from k25stack.engines import shell
from k25stack.engines.command import (
    STARTERS,
    TALKERS,
    Command,
    Container,
    container_run,
    find_launcher,
    in_container,
    read_command,
)
from k25stack.engines.info import clean_text
from k25stack.errors import UsageError

MAX_BYTES = 4 << 20
UNIT = re.compile(r"\s*(?:[#;].*\n\s*)*\[\w+\][ \t]*\r?\n")  # how a systemd unit begins
LAUNCHERS = (*STARTERS, "docker run", "podman run", "nerdctl run")


def read_launch(words: list[str]) -> tuple[Command, list[str], str]:
    """The launch that ``words`` are or name, what could not be understood, and where it came from.

    One word is a script or ``docker inspect`` output (``-``: on stdin), or a whole line in quotes; several are the
    line itself.  Raises UsageError when there is no launch in it.
    """
    if words == ["-"]:
        text = sys.stdin.read(MAX_BYTES)
        return *read_text(text, "stdin"), "stdin"
    if len(words) == 1 and Path(words[0]).exists():
        return *read_source(Path(words[0])), words[0]
    if len(words) == 1:
        words = split(words[0], "import")
    return read_command(words), [], "a launch line"


def read_source(path: Path) -> tuple[Command, list[str]]:
    """The launch of a script or of ``docker inspect`` output, and what of the text could not be understood.

    Raises UsageError when there is no launch in it.
    """
    if path.exists() and not path.is_file():
        raise UsageError("no file", where=str(path), remedy="give the launch script")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"larger than {MAX_BYTES} bytes", where=str(path), remedy="give the launch script")
    text = raw.decode("utf-8", errors="replace")
    return read_text(text, str(path))


def read_text(text: str, where: str) -> tuple[Command, list[str]]:
    """What the text is decides how it is read: a systemd unit, ``docker inspect`` output, else a script."""
    if UNIT.match(text):
        text = "\n".join(unit_lines(text))
    read = read_inspect if text.lstrip()[:1] in ("[", "{") else read_script
    return read(text, where)


def unit_lines(text: str) -> Iterator[str]:
    """What a systemd unit sets and starts, as the lines of a script."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if name == "Environment":
            yield f"export {value}"
        elif name == "EnvironmentFile":
            yield f". {value.lstrip('-')}"
        elif name.startswith("ExecStart"):
            yield value.lstrip("-@:+!")


def read_script(text: str, where: str) -> tuple[Command, list[str]]:
    """The first launch of a shell script, with what the script sets before it, and what could not be understood."""
    found = shell.find(text, starts_engine) or shell.find(text, lambda words: container_run(words)[1] is not None)
    if found is None:
        raise UsageError("no launch of SGLang or vLLM found", where=where, remedy=f"looked for {', '.join(LAUNCHERS)}")
    if found.broken:
        raise UsageError(clean_text(found.unclear[-1]), where=where, remedy="mend the quotes")
    command = read_command(found.words)
    command.env = {**found.exported, **command.env}
    others = [f"another launch, not taken: {clean_text(' '.join(line.split()))[:80]}" for line in found.others]
    return command, [*map(clean_text, found.unclear), *others]


def starts_engine(words: list[str]) -> bool:
    return bool(words) and not words[0].endswith(TALKERS) and bool(read_command(words).engine)


def split(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"{error} in: {' '.join(text.split())[:80]}", where=where, remedy="mend the quotes") from None


def read_inspect(text: str, where: str) -> tuple[Command, list[str]]:
    """The first container of ``docker inspect`` output that starts an engine.  Raises UsageError when none does."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", where=where, remedy="give the output of docker inspect") from None
    for item in value if isinstance(value, list) else [value]:
        config = item.get("Config") if isinstance(item, Mapping) else None
        if isinstance(config, Mapping):
            command = inspected(item, config)
            if command.engine:
                return command, []
    raise UsageError("no container of SGLang or vLLM in it", where=where, remedy="give docker inspect NAME")


def inspected(item: Mapping[str, Any], config: Mapping[str, Any]) -> Command:
    """One container: docker has merged the image's entrypoint, command and environment into its config."""
    entry, words = texts(config.get("Entrypoint")), texts(config.get("Cmd"))
    image = config.get("Image")
    image = image if isinstance(image, str) else ""
    command = in_container(image, entry, words)
    if not find_launcher([*entry, *words]).engine and not find_launcher(entry).engine:
        command.engine = ""
    command.env = {**dict(pair.partition("=")[::2] for pair in texts(config.get("Env"))), **command.env}
    host = item.get("HostConfig")
    host = host if isinstance(host, Mapping) else {}
    shared = host.get("ShmSize")
    command.container = Container(
        image=image,
        entrypoint=tuple(entry),
        shm_bytes=shared if type(shared) is int else None,
        ipc=str(host.get("IpcMode") or ""),
        ports=published(host.get("PortBindings")),
        network=str(host.get("NetworkMode") or ""),
        privileged=bool(host.get("Privileged")),
        other=[*(f"-v {bind}" for bind in texts(host.get("Binds"))), *settings(host)],
    )
    return command


def settings(host: Mapping[str, Any]) -> list[str]:
    """Further settings that a container was given, as words to read."""
    found = []
    for name in ("Mounts", "DeviceRequests", "Ulimits", "RestartPolicy", "Memory", "CpusetCpus", "NanoCpus", "CapAdd"):
        value = host.get(name)
        if value and not (isinstance(value, Mapping) and value.get("Name") in ("", "no", None)):
            found.append(f"{name} {json.dumps(value)[:120]}")
    return found


def texts(value: Any) -> list[str]:
    """The texts of a list; a single text is one word; empty for anything else."""
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def published(bindings: Any) -> list[str]:
    """``{"30000/tcp": [{"HostIp": "", "HostPort": "30000"}]}`` as ``:30000:30000``."""
    found = []
    for inside, outsides in bindings.items() if isinstance(bindings, Mapping) else ():
        for outside in outsides if isinstance(outsides, list) else ():
            if isinstance(outside, Mapping):
                address = str(outside.get("HostIp") or "0.0.0.0")
                found.append(f"{address}:{outside.get('HostPort', '')}:{str(inside).partition('/')[0]}")
    return found
