"""Target, draft and launch line of a server, judged before its container starts."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Verdict
from k25stack.errors import ContractError, HostError

if TYPE_CHECKING:
    from k25stack.stack.model import Stack

UID = 10001


def prove_files(stack: Stack, profile_name: str, target: Path, draft: Path | None) -> None:
    """Raises UsageError or DamageError for a torn target, ContractError for a draft or line that fails a check."""
    from k25stack.contract.draft import check_draft
    from k25stack.contract.facts import Question
    from k25stack.contract.launch import gpu_name
    from k25stack.contract.stack import profile_checks
    from k25stack.draft.target import TargetFacts
    from k25stack.model.verify import verify_target

    profile = stack.profile(profile_name)
    there = (target / "config.json").is_file()
    if stack.target.source.kind != "hub":  # else `prepare` compares every file with the hub's own list
        verify_target(target)
    for place in (*([target] if there else []), *([draft] if draft else [])):
        require_readable(place)
    _refuse(
        profile_checks(stack, profile_name, profile, gpu_name(stack.host.compute_capability or ""), ""), profile_name
    )
    if draft is not None:
        facts = TargetFacts.read(target) if there else None
        question = Question(target=facts, context=profile.context or stack.target.context)
        _refuse(check_draft(draft, [f"{profile.engine}@{profile.version}"], question).checks, str(draft))


def require_readable(place: Path) -> None:
    """Containers run as uid 10001.  Raises HostError for a file that it may not read."""
    for path in (place, *place.iterdir()):
        seen = path.stat()
        owned = seen.st_uid == UID and seen.st_mode & stat.S_IRUSR
        if not owned and not seen.st_mode & stat.S_IROTH:
            raise HostError(
                f"closed to uid {UID}, the user of every container", where=str(path), remedy=f"chmod -R a+rX {place}"
            )


def _refuse(checks: Iterable[Check], where: str) -> None:
    """Raises ContractError naming the first check that failed."""
    for check in checks:
        if check.verdict is Verdict.FAIL:
            raise ContractError(f"{check.id}: {check.message}", where=where, remedy=check.fix or "k25stack check it")
