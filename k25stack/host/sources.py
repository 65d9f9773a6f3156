"""Where a fact about a host comes from, and where a recording of the host keeps it (standard library only).

A recording is a directory: files lie under their own path (``proc/swaps``), the output of commands under ``cmd/``
(``cmd/nvidia-smi_-q_-x``), an exit code other than 0 beside it (``cmd/nvidia-smi_-q_-x.rc``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from k25stack.host.profile import Profile

Kind = Literal["file", "files", "paths", "command"]


@dataclass(frozen=True)
class Source:
    """One thing to read.  ``what``: a path, a glob, or the command as people write it."""

    kind: Kind
    what: str
    argv: tuple[str, ...] = ()
    place: str = ""  # in a recording; of "files" the glob relative to the recording

    def __str__(self) -> str:
        return f"ls -d {self.what}" if self.kind == "paths" else self.what

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches every place of a "files" source."""
        return _glob(self.place)

    @property
    def glob(self) -> re.Pattern[str]:
        """Matches every path of a "paths" source."""
        return _glob(self.what)

    def resolve(self, profile: Profile) -> Source:
        """The source with the directories of a profile in the place of ``{model_dir}`` and the like."""
        if "{" not in self.what:
            return self
        values = profile.directories()
        if self.kind == "command":
            argv = tuple(_fill(word, values) for word in self.argv)
            return Source("command", _fill(self.what, values), argv, self.place or f"cmd/{recording_name(argv)}")
        path = _fill(self.what, values)
        return file(path) if self.kind == "file" else files(path)


@cache
def _glob(text: str) -> re.Pattern[str]:
    return re.compile("".join("[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", text)))


def _fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def recording_name(argv: Iterable[str]) -> str:
    """The name of a command's output in a recording: its words joined by "_", other odd characters also "_"."""
    return re.sub(r"[^A-Za-z0-9._=,:+@%-]", "_", "_".join(argv))


def file(path: str) -> Source:
    return Source("file", path, place=path.lstrip("/"))


def files(glob: str) -> Source:
    """All files that match; ``*`` stands for one path component or a part of it."""
    return Source("files", glob, place=glob.lstrip("/"))


def paths(glob: str) -> Source:
    """The names that match, without their content; none is an answer too."""
    return Source("paths", glob, place=f"cmd/{recording_name(('ls', '-d', glob))}")


def command(*argv: str) -> Source:
    template = any("{" in word and "{{" not in word for word in argv)
    return Source("command", " ".join(argv), argv, "" if template else f"cmd/{recording_name(argv)}")


def shell(name: str, script: str, what: str = "") -> Source:
    """A pipe or loop that is no single command; ``name`` is its place below ``cmd/``."""
    return Source("command", what or script, ("sh", "-c", script), f"cmd/{name}")
