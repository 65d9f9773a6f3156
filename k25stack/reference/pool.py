"""Run tasks in child processes of one compute thread each (no torch here).

Two processes of one thread do about a third more than one process of two threads: small operations and Python run in
parallel too.  Which child runs a task does not matter, since a task is deterministic by itself.

A child ends with its parent, however that ends: it reads its tasks from a pipe, and the pipe's end is its signal.  An
error of the project's own tree, or of the operating system, travels back and is raised in the parent.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from k25stack.errors import HostError, K25Error

Report = Callable[[int], None]
"""Told of units done since the last call."""

Work = Callable[[Any, Report], Any]
"""A task and a callback for progress -> the task's result."""


class Stream(Protocol):
    """Works on several tasks at once, a little at a time."""

    def begin(self, task: Any, progress: Report) -> None:
        """Take a task."""

    def hungry(self) -> bool:
        """True when another task would be welcome."""

    def busy(self) -> bool:
        """True when there is a task to work on."""

    def advance(self) -> list[tuple[Any, Any]]:
        """Go on for a moment; returns the tasks that are finished, with their results."""


class OneByOne:
    """A `Work` as a stream: one task at a time, done in one go."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.taken: list[tuple[Any, Report]] = []

    def begin(self, task: Any, progress: Report) -> None:
        self.taken.append((task, progress))

    def hungry(self) -> bool:
        return not self.taken

    def busy(self) -> bool:
        return bool(self.taken)

    def advance(self) -> list[tuple[Any, Any]]:
        task, progress = self.taken.pop()
        return [(task, self.work(task, progress))]


@dataclass(frozen=True)
class Factory:
    """Where a child finds the function that turns ``setup`` into its `Work` or `Stream` (loading what tasks share)."""

    module: str
    function: str
    setup: Any

    def make(self) -> Stream:
        made: Any = getattr(importlib.import_module(self.module), self.function)(self.setup)
        stream: Stream = made if hasattr(made, "advance") else OneByOne(made)
        return stream


def run_tasks(
    factory: Factory,
    tasks: Iterable[Any],
    *,
    processes: int,
    then: Callable[[Any, Any], Iterable[Any]] = lambda task, result: (),
    progress: Callable[[int], None] = lambda units: None,
) -> None:
    """Run all tasks in order, ``processes`` at a time; one process means this one.

    ``then(task, result)`` is called here after each task and returns tasks that have become ready; they go first.
    Raises what a task raised, or HostError when a child died.
    """
    waiting = deque(tasks)
    if not waiting:
        return
    if processes == 1:
        stream = factory.make()
        while waiting or stream.busy():
            while waiting and stream.hungry():
                stream.begin(waiting.popleft(), progress)
            for task, result in stream.advance():
                waiting.extendleft(then(task, result))
        return
    children = [Child(factory) for _ in range(min(processes, len(waiting)))]
    try:
        drive(children, waiting, then, progress)
    finally:
        for child in children:
            child.close()


def drive(
    children: list[Child],
    waiting: deque[Any],
    then: Callable[[Any, Any], Iterable[Any]],
    progress: Callable[[int], None],
) -> None:
    """Keep every child busy until nothing waits and nothing runs."""
    while True:
        for child in children:
            if waiting and child.hungry:
                child.give(waiting.popleft())
        if not waiting and not any(child.tasks for child in children):
            return
        running = {child.pipe: child for child in children if child.tasks or not child.hungry}
        for pipe in wait(list(running)):
            child = running[pipe]  # type: ignore[index]  # typeshed: wait() may return file numbers too
            kind, value = child.receive()
            if kind == "progress":
                progress(value)
            elif kind == "hungry":
                child.hungry = True
            elif kind == "error":
                raise value
            else:
                number, result = value
                waiting.extendleft(then(child.tasks.pop(number), result))


class Child:
    """One child process and the tasks it has."""

    def __init__(self, factory: Factory) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(factory, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.hungry = False  # until it says so
        self.tasks: dict[int, Any] = {}
        self.given = 0

    def give(self, task: Any) -> None:
        self.tasks[self.given] = task
        self.pipe.send((self.given, task))
        self.given += 1
        self.hungry = False

    def receive(self) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            what = f"a worker process died with exit code {self.process.exitcode}"
            remedy = "look at the log for its last words; -9 often means out of memory"
            raise HostError(what, remedy=remedy) from None
        return message

    def close(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def serve(factory: Factory, pipe: Connection) -> None:
    """A child's main function: tasks in, results out, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too and ends its children
    tasks: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
    try:
        stream, asked = factory.make(), False
        numbers: dict[int, tuple[int, Any]] = {}
        while True:
            if stream.hungry() and not asked:
                pipe.send(("hungry", None))
                asked = True
            if not tasks.empty() or not stream.busy():
                number, task = tasks.get()
                numbers[id(task)] = (number, task)
                stream.begin(task, lambda units: pipe.send(("progress", units)))
                asked = False
            else:
                for task, result in stream.advance():
                    pipe.send(("result", (numbers.pop(id(task))[0], result)))
    except (K25Error, OSError) as error:
        pipe.send(("error", error))


def _listen(pipe: Connection, tasks: queue.SimpleQueue[tuple[int, Any]]) -> None:
    while True:
        try:
            tasks.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone: what is not finished will be done again
