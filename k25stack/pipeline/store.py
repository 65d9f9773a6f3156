"""Kept results: found by key, checked when found, put in place by one rename.

A result is a directory ``{out/, outputs.json}``.  It is built under ``state/work/<key>`` and renamed once it is
complete, so a name under ``artefacts/`` or ``measurements/`` never holds a part.  An unfinished or damaged result
stands under ``work/`` until a try of the same key completes it: a program goes on with the parts that it finds whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.files import read_json, sync_directory, write_json
from k25stack.pipeline.outputs import Tree, damage, from_json, scan
from k25stack.pipeline.step import Step
from k25stack.pipeline.workspace import Workspace

SCHEMA = 1


@dataclass(frozen=True)
class Kept:
    """A complete result.  ``record`` is its outputs.json: step, key, run, seconds, peak_rss_gb, made, ..."""

    directory: Path
    tree: Tree
    record: dict[str, Any]

    @property
    def content(self) -> str:
        return str(self.record["content"])

    def result(self) -> dict[str, Any]:
        """The figures of ``result.json``; empty when the step left none."""
        try:
            return dict(read_json(self.tree.path("result.json")))
        except FileNotFoundError:
            return {}


@dataclass(frozen=True)
class Damaged:
    """A result that is no longer what was put there."""

    directory: Path
    lines: list[str]


class Store:
    """The results of one working directory."""

    def __init__(self, workspace: Workspace, deep: bool = False) -> None:
        self.workspace = workspace
        self.deep = deep
        self._seen: dict[str, Kept] = {}

    def find(self, step: Step, key: str) -> Kept | Damaged | None:
        """The newest result of this key, after a look at every file (a full hash with ``deep``)."""
        if key in self._seen:
            return self._seen[key]
        directory = self._newest(step, key)
        if directory is None:
            return None
        try:
            record = dict(read_json(directory / "outputs.json"))
            before = from_json(directory / "out", record["files"])
        except (OSError, KeyError, TypeError, ValueError, json.JSONDecodeError):
            return Damaged(directory, ["outputs.json is unreadable"])
        now = scan(directory / "out", before.files, self.deep)
        if lines := damage(before, now):
            return Damaged(directory, lines)
        if any(now.files[name] != entry for name, entry in before.files.items()):
            record["files"] = {name: list(now.files[name]) for name in before.files}
            with contextlib.suppress(OSError):  # new times and inodes, same hashes: a note that saves time, no more
                write_json(directory / "outputs.json", record)
        kept = Kept(directory, before, record)
        self._seen[key] = kept
        return kept

    def reopen(self, damaged: Damaged, key: str) -> None:
        """Take a damaged result back to the workshop, where the next try mends it."""
        work = self.workspace.work / key
        if work.exists():
            self._discard(damaged.directory)
            return
        work.parent.mkdir(parents=True, exist_ok=True)
        damaged.directory.rename(work)
        (work / "outputs.json").unlink(missing_ok=True)

    def finish(self, step: Step, key: str, about: dict[str, Any]) -> Kept:
        """Hash what the step has left under ``work/<key>/out`` and put it in place."""
        work = self.workspace.work / key
        tree = scan(work / "out")
        record = {
            "schema": SCHEMA,
            "step": step.name,
            "kind": step.kind,
            "key": key,
            "content": tree.content(volatile=step.volatile),
            "bytes": tree.bytes,
            **about,
            "files": tree.as_json(),
        }
        write_json(work / "outputs.json", record)
        for passing in ("progress.json", "spent.json", "lock"):
            (work / passing).unlink(missing_ok=True)
        place = self._place(step, key)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():  # a redo of an artefact; the old one stays until this moment
            self._discard(place)
        work.rename(place)
        sync_directory(place.parent)
        kept = Kept(place, Tree(place / "out", tree.files), record)
        self._seen[key] = kept
        return kept

    def _newest(self, step: Step, key: str) -> Path | None:
        if step.kind == "artefact":
            place = self.workspace.artefacts / key
            return place if place.exists() else None
        tries = sorted((self.workspace.measurements / key).glob("[0-9]*"), key=lambda path: int(path.name))
        return tries[-1] if tries else None

    def _place(self, step: Step, key: str) -> Path:
        if step.kind == "artefact":
            return self.workspace.artefacts / key
        newest = self._newest(step, key)
        return self.workspace.measurements / key / str(int(newest.name) + 1 if newest else 1)

    def _discard(self, directory: Path) -> None:
        trash = self.workspace.state / "trash" / f"{directory.name}-{os.getpid()}"
        trash.parent.mkdir(parents=True, exist_ok=True)
        directory.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
