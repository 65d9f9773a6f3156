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
from typing import Any

from k25stack.errors import HostError, K25Error

Work = Callable[[Any, Callable[[int], None]], Any]
"""A task and a callback for progress (units done since the last call) -> the task's result."""


@dataclass(frozen=True)
class Factory:
    """Where a child finds the function that turns ``setup`` into its `Work` (loading what all its tasks share)."""

    module: str
    function: str
    setup: Any

    def make(self) -> Work:
        function: Callable[[Any], Work] = getattr(importlib.import_module(self.module), self.function)
        return function(self.setup)


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
        work = factory.make()
        while waiting:
            task = waiting.popleft()
            waiting.extendleft(then(task, work(task, progress)))
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
            if waiting and not child.busy:
                child.give(waiting.popleft())
        running = {child.pipe: child for child in children if child.busy}
        if not running:
            return
        for pipe in wait(list(running)):
            child = running[pipe]  # type: ignore[index]  # typeshed: wait() may return file numbers too
            kind, value = child.receive()
            if kind == "progress":
                progress(value)
            elif kind == "error":
                raise value
            else:
                waiting.extendleft(then(child.task, value))
                child.busy = False


class Child:
    """One child process and the task it has."""

    def __init__(self, factory: Factory) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(factory, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.busy = False
        self.task: Any = None

    def give(self, task: Any) -> None:
        self.task, self.busy = task, True
        self.pipe.send(task)

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
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
    try:
        work = factory.make()
        while True:
            task = tasks.get()
            pipe.send(("result", work(task, lambda units: pipe.send(("progress", units)))))
    except (K25Error, OSError) as error:
        pipe.send(("error", error))


def _listen(pipe: Connection, tasks: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            tasks.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone: what is not finished will be done again
