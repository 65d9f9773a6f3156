"""Where things are: one working directory holds ``runs/`` and ``state/``.

::

    runs/NAME/stack.resolved.yaml  ledger/<writer>.jsonl  summary.json  status.md  report.html
              plan.json            step -> key that counts now
              lock                 who is running it
              steps/<key>/         spec.json log outputs.json exit.json
    state/artefacts/<key>/         out/ outputs.json       shared by all runs here
          measurements/<key>/<n>/  out/ outputs.json       added, never replaced
          work/<key>/              out/ progress.json      unfinished; the next try goes on here
          jobs/<run>/<step>/       what a backend keeps about a running job
          models/                  downloads and conversions
          hashes.json              hashes of the user's files
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import UsageError
from k25stack.files import read_json, write_json

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")


@dataclass(frozen=True)
class Workspace:
    root: Path

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def artefacts(self) -> Path:
        return self.state / "artefacts"

    @property
    def measurements(self) -> Path:
        return self.state / "measurements"

    @property
    def work(self) -> Path:
        return self.state / "work"

    @property
    def jobs(self) -> Path:
        return self.state / "jobs"

    @property
    def models(self) -> Path:
        return self.state / "models"

    def run(self, name: str) -> Run:
        return Run(self, name)

    def all_runs(self) -> list[Run]:
        """Runs, the one used last first."""
        found = [self.run(path.parent.name) for path in self.runs.glob("*/plan.json")]
        return sorted(found, key=lambda run: (run.directory / "plan.json").stat().st_mtime_ns, reverse=True)

    def newest(self, stack: str | None = None) -> Run | None:
        """The run used last, of this stack when it is given."""
        return next((run for run in self.all_runs() if stack is None or run.stack == stack), None)

    def choose(self, stack: str, name: str | None, new: bool) -> Run:
        """The named run; else the newest of this stack; else (or with ``new``) the next ``<stack>-<n>``.

        Raises UsageError for a name that is no plain file name or belongs to a run of another stack.
        """
        if name is not None:
            if not NAME.match(name):
                raise UsageError(f"{name!r} cannot name a run", remedy="letters, digits, dot, dash, underscore")
            run = self.run(name)
            if run.stack not in ("", stack):
                raise UsageError(
                    f"run {name} belongs to stack {run.stack}, not {stack}", where=str(run.directory), remedy="--name"
                )
            return run
        newest = self.newest(stack)
        if newest is not None and not new:
            return newest
        pattern = re.compile(rf"^{re.escape(stack)}-(\d+)$")
        taken = [int(found.group(1)) for path in self.runs.glob("*") if (found := pattern.match(path.name))]
        return self.run(f"{stack}-{max(taken, default=0) + 1}")


@dataclass(frozen=True)
class Run:
    workspace: Workspace
    name: str

    @property
    def directory(self) -> Path:
        return self.workspace.runs / self.name

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    def step(self, key: str) -> Path:
        return self.directory / "steps" / key

    def plan(self) -> dict[str, Any]:
        """``{"stack": name, "steps": {step: key}}`` of the last call; empty before the first."""
        try:
            return dict(read_json(self.directory / "plan.json"))
        except FileNotFoundError:
            return {}

    @property
    def stack(self) -> str:
        return str(self.plan().get("stack", ""))

    def keys(self) -> dict[str, str]:
        return dict(self.plan().get("steps", {}))

    def write_plan(self, stack: str, keys: dict[str, str]) -> None:
        write_json(self.directory / "plan.json", {"stack": stack, "steps": keys})
