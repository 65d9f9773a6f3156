"""One frozen description of a program to run, and the backends that run it (standard library only)."""

from k25stack.jobs.job import Backend, Ground, Health, Job, Mount, State
from k25stack.jobs.process import ProcessBackend

__all__ = ["Backend", "Ground", "Health", "Job", "Mount", "ProcessBackend", "State"]
