"""One frozen description of a program to run, and the backends that run it (standard library only)."""

from k25stack.jobs.job import Backend, Health, Job, Mount, State
from k25stack.jobs.process import ProcessBackend

__all__ = ["Backend", "Health", "Job", "Mount", "ProcessBackend", "State"]
