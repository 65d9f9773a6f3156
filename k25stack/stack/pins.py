"""Comparing ``images/lock.yaml`` with the registries, and writing what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from k25stack.errors import HostError
from k25stack.files import write_text
from k25stack.stack.images import LOCK, read_lock, rewrite
from k25stack.stack.registry import Resolved, resolve

Verdict = Literal["same", "moved", "new", "unresolved"]


@dataclass(frozen=True)
class Answer:
    """What the registry says of one pin."""

    name: str
    ref: str
    verdict: Verdict  # moved: the tag means another image than the pin
    pinned: str | None
    found: Resolved | None
    why: str = ""  # it could not be resolved

    def line(self) -> str:
        found = self.found.digest if self.found else ""
        told = {
            "same": f"{found} as pinned",
            "moved": f"the tag means {found} now, the pin is {self.pinned}",
            "new": f"{found}, not pinned before",
            "unresolved": f"not resolved, stays as it was: {self.why}",
        }
        return f"{self.name} ({self.ref}): {told[self.verdict]}"


def ask(names: Sequence[str] = (), path: Path = LOCK, resolver: Callable[[str], Resolved] = resolve) -> list[Answer]:
    """Resolve the tags of these images, all of them if none is named.  A registry that fails is an answer, no error.

    Raises UsageError for an unknown name, StackError for a lock file that is wrong.
    """
    lock = read_lock(path)
    answers = []
    for name in names or tuple(lock.images):
        pin = lock.pin(name)
        try:
            found = resolver(pin.ref)
        except HostError as error:
            answers.append(Answer(name, pin.ref, "unresolved", pin.digest, None, f"{error.what} ({error.remedy})"))
            continue
        verdict: Verdict = "new" if pin.digest is None else "same" if pin.digest == found.digest else "moved"
        answers.append(Answer(name, pin.ref, verdict, pin.digest, found))
    return answers


def write_pins(answers: Sequence[Answer], path: Path = LOCK) -> list[str]:
    """Write what was resolved into the lock; returns the names whose lines changed.  Comments stay."""
    before = text = path.read_text(encoding="utf-8")
    changed = []
    for answer in answers:
        if answer.found is None:
            continue
        values = {"digest": answer.found.digest, "kind": answer.found.kind, "resolved": "true"}
        if (after := rewrite(text, answer.name, values)) != text:
            changed.append(answer.name)
            text = after
    if text != before:
        write_text(path, text)
    return changed
