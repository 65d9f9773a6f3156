"""One call of a run: take the run directory, decide, take the GPUs, make what is missing, write it all down."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from k25stack.errors import HostError, K25Error, LeaseError, UsageError
from k25stack.files import canonical_json, write_json, write_text
from k25stack.ledger import append, read
from k25stack.locks import NamedLock, describe, me
from k25stack.pipeline import fingerprint, plan
from k25stack.pipeline.attempt import perform
from k25stack.pipeline.backends import BackendName, make_backend
from k25stack.pipeline.facts import note_step
from k25stack.pipeline.key import PACKAGE
from k25stack.pipeline.lease import Lease
from k25stack.pipeline.meter import Meter
from k25stack.pipeline.plan import Decision, Planner
from k25stack.pipeline.progress import Display
from k25stack.pipeline.service import end_idle_servers
from k25stack.pipeline.step import Step, needed
from k25stack.pipeline.store import Kept, Store
from k25stack.pipeline.workshop import Interrupted, Workshop
from k25stack.pipeline.workspace import Run, Workspace

DISK_MARGIN = 1.05


@dataclass(frozen=True)
class Request:
    """What a run is asked to do.  ``steps`` is the whole loop; ``only`` names those that are wanted (and what they
    read); ``resolved`` is the text of stack.resolved.yaml and ``stack`` the same as plain values.
    """

    stack_name: str
    steps: Sequence[Step]
    resolved: str = ""
    stack: Mapping[str, Any] = field(default_factory=dict)
    references: Sequence[Mapping[str, Any]] = ()
    name: str | None = None
    new: bool = False
    only: Sequence[str] = ()
    again: Sequence[str] = ()
    verify: bool = False
    threads: int = 2
    cards: int = 0
    backend: BackendName = "process"
    code: Path = PACKAGE


@dataclass(frozen=True)
class Outcome:
    run: Run
    decisions: list[Decision]
    results: dict[str, Kept]
    seconds: float
    peak_rss_gb: float


class Runner:
    def __init__(self, workspace: Workspace, request: Request, display: Display | None = None) -> None:
        self.workspace = workspace
        self.request = request
        self.display = display or Display()
        self.run_ = workspace.choose(request.stack_name, request.name, request.new)
        self.steps = _chosen(request)
        self.store = Store(workspace, request.verify)

    def plan(self) -> list[Decision]:
        """What would be done; writes nothing into the run."""
        return self._planner().plan(self.steps)

    def _planner(self) -> Planner:
        request = self.request
        return Planner(self.run_, self.store, request.again, request.code, request.stack_name)

    def run(self) -> Outcome:
        """Do it.  Raises LeaseError when the run or the GPUs are taken, Interrupted, or the failed step's error."""
        with signals_as_interrupts():
            lock = NamedLock(self.run_.lock)
            if (held_by := lock.acquire(me())) is not None:
                raise LeaseError(
                    f"run {self.run_.name} is in use by {describe(held_by)}",
                    where=str(self.run_.directory),
                    remedy=f"wait for it, stop it with `k25stack stop run {self.run_.name}`, or choose another --name",
                )
            try:
                return self._locked()
            except KeyboardInterrupt:
                self.display.hint("")
                raise Interrupted(
                    f"run {self.run_.name} was interrupted", remedy="finished parts are kept, run again to go on"
                ) from None
            finally:
                lock.release()

    def _locked(self) -> Outcome:
        begun = time.monotonic()
        meter = Meter()
        error: BaseException | None = None
        try:
            decisions, results = self._work(meter)
        except (K25Error, OSError, KeyboardInterrupt) as problem:
            error = problem
            raise
        finally:
            self._note_end(error, time.monotonic() - begun, meter.peak_gb)
        return Outcome(self.run_, decisions, results, time.monotonic() - begun, meter.peak_gb)

    def _work(self, meter: Meter) -> tuple[list[Decision], dict[str, Kept]]:
        run, request = self.run_, self.request
        planner = self._planner()
        decisions = planner.plan(self.steps)
        for line in plan.render(decisions):
            self.display.line(line)
        self._note_start(decisions)
        if all(decision.state == "cached" for decision in decisions):
            return decisions, self._walk(planner, None)
        self._preflight(decisions)
        lease = Lease(f"run {run.name}", "the loop", request.cards, run.directory)
        backend = make_backend(request.backend, self.workspace, lease)
        lease.take()
        try:
            shop = Workshop(run, self.store, backend, lease, self.display, meter, request.threads)
            end_idle_servers(shop)
            return decisions, self._walk(planner, shop)
        finally:
            lease.release()

    def _walk(self, planner: Planner, shop: Workshop | None) -> dict[str, Kept]:
        """Every step in order: decide with what is there by now, make it when needed, write it down."""
        results: dict[str, Kept] = {}
        earlier = read(self.run_.ledger)
        for step in self.steps:
            begun = time.monotonic()
            decision = planner.decide(step, results)
            if isinstance(decision.found, Kept) and decision.state == "cached":
                kept = decision.found
                self._refer(step, kept, decision)
            else:
                assert shop is not None and decision.state == "run"
                self.display.line(f"{step.name}: {decision.reason}")
                self._name_key(step, decision)  # from now on its unfinished work is wanted
                kept = perform(shop, decision, results)
            results[step.name] = kept
            note_step(self.run_.ledger, earlier, step, kept, decision.state == "cached", time.monotonic() - begun)
            self._name_key(step, decision)
        return results

    def _name_key(self, step: Step, decision: Decision) -> None:
        keys = self.run_.keys()
        if keys.get(step.name) != decision.key:
            self.run_.write_plan(self.request.stack_name, {**keys, step.name: str(decision.key)})

    def _refer(self, step: Step, kept: Kept, decision: Decision) -> None:
        """A run that reuses a result says so in its own steps directory."""
        place = self.run_.step(str(decision.key))
        if not (place / "spec.json").exists():
            spec = {"step": step.name, "kind": step.kind, "key": decision.key, "params": step.params}
            write_json(place / "spec.json", {**spec, "fields": decision.fields})
        if not (place / "outputs.json").exists():
            write_json(place / "outputs.json", kept.record)

    def _preflight(self, decisions: list[Decision]) -> None:
        """Refuse, before it starts, a run that would fill the disk or needs what this version cannot make."""
        for decision in decisions:
            if decision.step.blocked and decision.state != "cached":
                raise HostError(
                    decision.step.blocked,
                    where=f"{self.request.stack_name}: step {decision.step.name}",
                    remedy="k25stack run STACK -n shows the whole plan; k25stack stack render STACK serves it by hand",
                )
        self.workspace.state.mkdir(parents=True, exist_ok=True)
        needs, free_gb = plan.total(decisions), shutil.disk_usage(self.workspace.state).free / 1e9
        if needs.disk_gb * DISK_MARGIN > free_gb:
            raise HostError(
                f"the run needs about {needs.disk_gb:.1f} GB of disk and {free_gb:.1f} GB are free",
                where=str(self.workspace.state),
                remedy="free space, or k25stack run STACK --gc",
            )
        memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        if needs.memory_gb > memory_gb:
            there = f"this machine has {memory_gb:.1f}"
            self.display.line(f"warning: the largest step needs about {needs.memory_gb:.1f} GB of memory, {there}")

    def _note_start(self, decisions: list[Decision]) -> None:
        run, request = self.run_, self.request
        packages = sorted({name for step in self.steps for name in step.packages})
        if request.resolved:
            write_text(run.directory / "stack.resolved.yaml", request.resolved)
        run.write_plan(request.stack_name, run.keys())
        known = {canonical_json(record.data) for record in read(run.ledger) if record.kind == "reference.row"}
        place = run.ledger / "run.jsonl"
        append(
            place,
            "run.start",
            {
                "run": run.name,
                "stack": dict(request.stack),
                "host": fingerprint.host(),
                "versions": fingerprint.versions(packages),
                "only": list(request.only),
                "again": list(request.again),
                "installation_s": fingerprint.installation_s(),
            },
        )
        append(place, "plan", {"steps": [decision.as_json() for decision in decisions]})
        for row in request.references:
            if canonical_json(dict(row)) not in known:
                append(place, "reference.row", dict(row))

    def _note_end(self, error: BaseException | None, seconds: float, peak_gb: float) -> None:
        code = 0 if error is None else 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 3)
        text = None if error is None else "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        data = {"code": code, "seconds": round(seconds, 3), "peak_rss_gb": round(peak_gb, 4), "error": text}
        try:
            append(self.run_.ledger / "run.jsonl", "run.end", data)
        except OSError:
            if error is None:  # else the first error is the one that helps
                raise


def _chosen(request: Request) -> list[Step]:
    """Raises UsageError for an unknown step name."""
    names = [step.name for step in request.steps]
    for name in (*request.only, *request.again):
        if name not in names:
            raise UsageError(f"no step {name!r}", where=request.stack_name, remedy=f"there are {', '.join(names)}")
    return needed(list(request.steps), list(request.only)) if request.only else list(request.steps)


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """SIGTERM is handled like Ctrl-C; SIGHUP (a lost terminal) is ignored."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
