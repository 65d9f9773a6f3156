"""What a running playbook tells, gathered by host: changes with their differences, failures with a remedy, notes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from k25stack.errors import HostError
from k25stack.host.check import clean
from k25stack.host.collect import ssh_trouble

SUDO = re.compile(
    r"(?i)(incorrect|missing) (sudo|become) password|a password is required|incorrect password attempt|sorry, try again"
)
MOST_LINES = 60  # of one difference


@dataclass(frozen=True)
class Change:
    role: str
    task: str
    diff: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    role: str
    task: str
    what: str
    remedy: str

    def __str__(self) -> str:
        where = ": ".join(word for word in (self.role, self.task) if word)
        return f"{where + ': ' if where else ''}{self.what}" + (f" ({self.remedy})" if self.remedy else "")


@dataclass
class HostRun:
    name: str
    ok: int = 0
    changed: int = 0
    skipped: int = 0
    unreached: bool = False  # could not be reached or logged in to, or its inventory lines are faulty
    failure: Failure | None = None
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def unusable(cls, error: HostError) -> HostRun:
        """A host whose lines in the inventory are wrong."""
        return cls(error.where, unreached=True, failure=Failure("", "", error.what, error.remedy))

    @property
    def verdict(self) -> str:
        return "unreached" if self.unreached else "failed" if self.failure else "ok"

    def summary(self) -> str:
        """One line: counts, or why it failed."""
        counts = f"{self.ok} ok, {self.changed} changed, {self.skipped} skipped"
        if self.failure is None:
            return f"{self.name}: {counts}"
        return f"{self.name}: {self.verdict.upper()}: {self.failure}" + ("" if self.unreached else f"; {counts}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "host": self.name,
            "verdict": self.verdict,
            "ok": self.ok,
            "changed": self.changed,
            "skipped": self.skipped,
            "failure": vars(self.failure) if self.failure else None,
            "changes": [{"role": one.role, "task": one.task, "diff": list(one.diff)} for one in self.changes],
            "notes": self.notes,
        }


class Watcher:
    """Takes ansible-runner's events in; tells progress by task."""

    def __init__(self, told: Callable[[str], None], check: bool) -> None:
        self.told = told
        self.check = check
        self.hosts: dict[str, HostRun] = {}
        self.remarks: list[str] = []

    def event(self, event: Mapping[str, Any]) -> bool:
        """One event; False: it is not to be kept on disk."""
        data = event.get("event_data") or {}
        kind = event.get("event", "")
        if kind in ("verbose", "error", "warning"):
            self.remarks += str(event.get("stdout", "")).splitlines()
        elif kind in ("playbook_on_task_start", "playbook_on_handler_task_start"):
            self.told(_where(data))
        elif kind == "runner_on_ok":
            self._ok(data)
        elif kind == "runner_on_unreachable" or (kind == "runner_on_failed" and not data.get("ignore_errors")):
            self._failed(data, kind == "runner_on_unreachable")
        elif kind == "playbook_on_stats":
            self._stats(data)
        return False

    def _host(self, data: Mapping[str, Any]) -> HostRun:
        name = str(data["host"])
        return self.hosts.setdefault(name, HostRun(name))

    def _ok(self, data: Mapping[str, Any]) -> None:
        host, result = self._host(data), data.get("res") or {}
        if str(data.get("task_action", "")).rpartition(".")[2] == "debug":
            said = result.get("msg", [])
            for line in said if isinstance(said, list) else [said]:
                if (text := clean(str(line))) not in host.notes:
                    host.notes.append(text)
        if result.get("changed"):
            host.changes.append(Change(_role(data), str(data.get("task", "")), tuple(_differences(result))))
            self.told(f"  {'would change' if self.check else 'changed'}: {host.name}")

    def _failed(self, data: Mapping[str, Any], unreached: bool) -> None:
        host, result = self._host(data), data.get("res") or {}
        said = _message(result)
        task = str(data.get("task", ""))
        known = ssh_trouble(said, host.name, host.name) if unreached else None
        if known is not None:
            host.failure, host.unreached = Failure("", "", known.what, known.remedy), True
        elif SUDO.search(said):
            remedy = "mend ansible_become_password or K25_BECOME_PASSWORD"
            host.failure, host.unreached = Failure("", "", "sudo refuses the password", remedy), True
        else:
            remedy = "" if said.endswith(")") else f"see it alone: --limit {host.name} -n"
            host.failure, host.unreached = Failure(_role(data), task, clean(said), remedy), unreached
        self.told(f"  {host.verdict}: {host.name}: {host.failure.what}")

    def _stats(self, data: Mapping[str, Any]) -> None:
        """The counts at the end; a failure that the playbook rescued is none."""
        for name, host in self.hosts.items():
            host.ok, host.changed = (int(data.get(key, {}).get(name, 0)) for key in ("ok", "changed"))
            host.skipped = int(data.get("skipped", {}).get(name, 0))
            if not data.get("failures", {}).get(name) and not data.get("dark", {}).get(name):
                host.failure, host.unreached = None, False


def _role(data: Mapping[str, Any]) -> str:
    return str(data.get("role") or data.get("play") or "")


def _where(data: Mapping[str, Any]) -> str:
    task = str(data.get("task") or data.get("name") or "")
    role = _role(data)
    return task if not role or task.startswith(f"{role} : ") else f"{role}: {task}"


def _message(result: Mapping[str, Any]) -> str:
    """Why a task failed, in one line: of a loop the first item that did, of a command its last error."""
    for item in result.get("results") or []:
        if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable")):
            return _message(item)
    said = " ".join(str(result.get("msg") or "").split())
    extra = next((str(result[key]).strip() for key in ("module_stderr", "stderr", "stdout") if result.get(key)), "")
    if extra and (not said or "non-zero return code" in said or "MODULE FAILURE" in said):
        return f"exit {result.get('rc', '?')}: {extra.splitlines()[-1].strip()}"
    return said.removeprefix("Task failed: ") or "no message"


def _differences(result: Mapping[str, Any]) -> Iterator[str]:
    """Unified differences of a changed task, if it tells any."""
    for item in result.get("results") or []:
        if isinstance(item, Mapping) and item.get("changed"):
            yield from _differences(item)
    found = result.get("diff") or []
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, Mapping):
            yield from _one(one, _path(result))


def _path(result: Mapping[str, Any]) -> str:
    """The file that a task is about, if it is about one."""
    asked = (result.get("invocation") or {}).get("module_args") or {}
    found = (source.get(key) for source in (result, asked) for key in ("dest", "path"))
    return next((str(path) for path in found if path), "")


def _one(diff: Mapping[str, Any], path: str) -> Iterator[str]:
    """One difference; of a file that comes from a template the header names the file, not the template's copy."""
    if isinstance(diff.get("prepared"), str):
        yield from _cut(diff["prepared"].splitlines())
        return
    sides = [_text(diff.get(side, "")) for side in ("before", "after")]
    names = [f"{path} ({side})" if path else str(diff.get(f"{side}_header") or side) for side in ("before", "after")]
    lines = difflib.unified_diff(sides[0], sides[1], names[0], names[1], n=1, lineterm="")
    yield from _cut(list(lines))


def _text(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.splitlines()
    import json

    return json.dumps(value, indent=1, sort_keys=True, default=str).splitlines()


def _cut(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:MOST_LINES], f"... {len(lines) - MOST_LINES} more lines"]


def by_role(hosts: list[HostRun]) -> Iterator[str]:
    """The changes of all hosts as text: role, task, hosts, difference; hosts with the same one stand together."""
    found: dict[str, dict[str, dict[tuple[str, ...], list[str]]]] = {}
    for host in hosts:
        for change in host.changes:
            alike = found.setdefault(change.role, {}).setdefault(change.task, {}).setdefault(change.diff, [])
            if host.name not in alike:
                alike.append(host.name)
    for role, tasks in found.items():
        yield role
        for task, hosts_by_diff in tasks.items():
            for diff, names in hosts_by_diff.items():
                yield f"  {task.removeprefix(f'{role} : ')}  [{', '.join(names)}]"
                yield from (f"      {line}" for line in diff)
