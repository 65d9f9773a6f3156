"""What ``stack render --to`` prints, and whether a file still says the same."""

from __future__ import annotations

import difflib
import json
import shlex
from pathlib import Path

from k25stack.errors import DriftError, UsageError
from k25stack.jobs.job import Job
from k25stack.jobs.render import sbatch, script, service_text

FORMS = ("argv", "script", "compose", "sbatch", "policy")


def form(job: Job, to: str) -> str:
    """The text of a job in one form.  Raises UsageError for a form there is not."""
    if to == "argv":
        return (
            " ".join([*(f"{key}={shlex.quote(value)}" for key, value in job.env.items()), shlex.join(job.argv)]) + "\n"
        )
    if to == "script":
        return script(job)
    if to == "compose":
        return "services:\n" + service_text(job, job.step, indent=2)
    if to == "sbatch":
        return sbatch(job)
    if to == "policy":
        return json.dumps(dict(job.policy or {}), indent=2, ensure_ascii=False) + "\n"
    raise UsageError(f"no form {to!r}", where="--to", remedy=f"one of {', '.join(FORMS)}")


def compare(text: str, file: Path, command: str) -> list[str]:
    """The unified difference from ``file`` to ``text``; empty when they agree.

    Raises UsageError when the file cannot be read; ``command`` renders it anew.
    """
    try:
        there = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be compared: {error}", where=str(file), remedy=command) from None
    if there == text:
        return []
    return list(difflib.unified_diff(there.splitlines(), text.splitlines(), str(file), "rendered", lineterm="", n=1))


def drift(lines: list[str], file: Path, command: str) -> DriftError:
    """The error for a file that is not what the stack says."""
    changed = sum(1 for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))
    return DriftError(f"{changed} lines differ from what the stack says", where=str(file), remedy=command)
