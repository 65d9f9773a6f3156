"""One try at a step: start its program or find it running, wait, and put its outputs in place."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from k25stack.errors import HostError
from k25stack.files import read_json, write_json
from k25stack.jobs import State
from k25stack.ledger.records import now
from k25stack.pipeline import failure
from k25stack.pipeline.plan import Decision
from k25stack.pipeline.progress import read_progress
from k25stack.pipeline.service import has_server, serving
from k25stack.pipeline.step import Step
from k25stack.pipeline.stepjob import step_job
from k25stack.pipeline.store import Damaged, Kept
from k25stack.pipeline.workshop import GRACE_S, Workshop, expand

TICK_S = 0.25


def perform(shop: Workshop, decision: Decision, realised: Mapping[str, Kept]) -> Kept:
    """Make what ``decision`` says must be made; returns the result, which is in place then.

    Raises K25Error with the step's own message, and Interrupted after Ctrl-C.
    """
    step, key = decision.step, str(decision.key)
    begun = time.monotonic()
    shop.display.begin()
    shop.meter.begin()
    handle = resumable(shop, step, key)
    attached = handle is not None
    if handle is None:
        _clear(shop, decision)
    inputs = input_paths(step, realised)
    if handle is None or shop.backend.poll(handle).phase == "running":
        with serving(shop, step, key, inputs, handle) as (env, watched), stopped_by_interrupt(shop, step):
            if handle is None:
                _write_spec(shop, decision, inputs)
                handle = submit(shop, decision, env)
            watched(handle)
            follow(shop, step, key, handle)
    state = shop.backend.poll(handle)
    if state.code != 0:
        _count_time(shop, key, state)
        raise failure.of(step.name, state, shop.run.step(key) / "log", shop.run.workspace.state)
    taken_s = state.seconds if attached else time.monotonic() - begun
    return _collect(shop, decision, handle, state, taken_s)


def resumable(shop: Workshop, step: Step, key: str) -> str | None:
    """A job of this step that runs, or has ended well and waits to be collected; other leftovers are cleared."""
    handle = shop.backend.find(shop.run.name, step.name)
    if handle is None:
        return None
    state = shop.backend.poll(handle)
    if shop.backend.key(handle) == key:
        if state.phase == "running" and has_server(shop, step):
            return handle
        if state.code == 0 and (shop.work(key) / "out" / "result.json").exists():
            return handle
        _count_time(shop, key, state)
    shop.backend.stop(handle, GRACE_S)
    shop.backend.forget(handle)
    return None


def submit(shop: Workshop, decision: Decision, env: Mapping[str, str]) -> str:
    """Start the step's program; it gets the declared environment and the number of threads."""
    step, key = decision.step, str(decision.key)
    shop.lease.secure()
    place = shop.run.step(key)
    failure.begin_log(place / "log", step.name, now())
    (shop.work(key) / "out").mkdir(parents=True, exist_ok=True)
    (shop.work(key) / "progress.json").unlink(missing_ok=True)
    job = step_job(
        step,
        run=shop.run.name,
        key=key,
        place=place,
        env={**shop.base_env(), **step.env, **env},
        lock=shop.work(key) / "lock",
    )
    return shop.backend.submit(job)


@contextmanager
def stopped_by_interrupt(shop: Workshop, step: Step) -> Iterator[None]:
    """Ctrl-C, at whatever moment, asks the step's job to end and waits; a second one ends it at once."""
    try:
        yield
    except KeyboardInterrupt:
        handle = shop.backend.find(shop.run.name, step.name)
        if handle is not None:
            shop.halt(step.name, handle)
        raise


def follow(shop: Workshop, step: Step, key: str, handle: str) -> State:
    """Wait for the end of a job, showing its progress and adding up its memory."""
    started = time.monotonic()
    while True:
        state = shop.backend.wait(handle, TICK_S)
        shop.sample()
        if state.phase != "running":
            return state
        progress = read_progress(shop.work(key) / "progress.json")
        text = shop.display.show(step.name, progress, time.monotonic() - started)
        shop.lease.note(f"{step.name} {text}")


def input_paths(step: Step, realised: Mapping[str, Kept]) -> dict[str, str]:
    """Absolute paths of the inputs.  Raises HostError when a step reads a part that its maker did not leave."""
    paths = {}
    for name, reference in step.all_inputs().items():
        path = realised[reference.step].tree.path(reference.path).resolve()
        if not path.exists():
            raise HostError(f"{reference.step} left no {reference.path}", where=step.name, remedy="run it --again")
        paths[name] = str(path)
    return paths


def _write_spec(shop: Workshop, decision: Decision, inputs: Mapping[str, str]) -> None:
    step, key = decision.step, str(decision.key)
    files = {name: str(path.resolve()) for name, path in step.files.items()}
    places = {"{models}": str(shop.run.workspace.models.resolve())}
    places |= {f"{{files.{name}}}": path for name, path in files.items()}
    spec = {
        "step": step.name,
        "kind": step.kind,
        "key": key,
        "params": {**expand(step.params, places), **expand(step.local, places)},
        "inputs": {**{name: path for name, path in inputs.items() if name in step.inputs}, **files},
        "out": str((shop.work(key) / "out").resolve()),
        "threads": shop.threads,
        "fields": decision.fields,
    }
    write_json(shop.run.step(key) / "spec.json", spec)


def _clear(shop: Workshop, decision: Decision) -> None:
    """Damaged outputs go back to the workshop; a redo that was asked for begins with nothing."""
    key = str(decision.key)
    if isinstance(decision.found, Damaged) and decision.step.kind == "artefact":
        shop.store.reopen(decision.found, key)
    elif decision.found is not None:
        shutil.rmtree(shop.work(key), ignore_errors=True)


def _collect(shop: Workshop, decision: Decision, handle: str, state: State, taken_s: float) -> Kept:
    step, key = decision.step, str(decision.key)
    shop.meter.include(state.peak_rss_gb)
    begun = time.monotonic()
    about = {
        "run": shop.run.name,
        "made": now(),
        "seconds": round(_earlier_tries(shop, key) + taken_s, 3),
        "peak_rss_gb": round(shop.meter.step_peak_gb, 4),
        "threads": shop.threads,
    }
    kept = shop.store.finish(step, key, about)
    ended = {"code": state.code, "started": state.started, "ended": state.ended, "peak_rss_gb": state.peak_rss_gb}
    place = shop.run.step(key)
    write_json(place / "exit.json", ended)
    write_json(place / "outputs.json", kept.record)
    shop.backend.forget(handle)
    shop.display.line(
        f"{step.name}: done in {about['seconds']:.1f} s (outputs hashed in {time.monotonic() - begun:.1f} s)"
    )
    return kept


def _earlier_tries(shop: Workshop, key: str) -> float:
    try:
        return float(read_json(shop.work(key) / "spent.json")["seconds"])
    except (OSError, KeyError, ValueError):
        return 0.0


def _count_time(shop: Workshop, key: str, state: State) -> None:
    """A try that did not end well has cost time too: the step's seconds are those of all its tries."""
    seconds = state.seconds
    if state.phase == "lost" and (progress := shop.work(key) / "progress.json").exists():
        seconds = progress.stat().st_mtime - state.started  # as long as it was seen alive
    spent = _earlier_tries(shop, key) + max(0.0, seconds)
    if shop.work(key).exists() and os.access(shop.work(key), os.W_OK):
        try:
            write_json(shop.work(key) / "spent.json", {"seconds": round(spent, 3)})
        except OSError:  # a full disk: the step's own message is the one that helps
            return
