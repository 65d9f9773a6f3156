"""Target, draft and launch line of a server, judged before its container starts."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Verdict
from k25stack.errors import ContractError, DamageError, HostError, in_words
from k25stack.files import read_json
from k25stack.pipeline.outputs import damage, from_json, scan

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

UID = 10001


def prove_files(stack: Stack, profile_name: str, target: Path, draft: Path | None, hub_draft: bool = False) -> None:
    """Raises UsageError or DamageError for a torn or altered target or draft, ContractError for a draft or line that
    fails a check.
    """
    from k25stack.contract.launch import gpu_name
    from k25stack.contract.stack import profile_checks
    from k25stack.model.verify import verify_target

    profile = stack.profile(profile_name)
    there = (target / "config.json").is_file()
    # `prepare` gets a hub's draft, and compares every file of a hub's target or draft with the hub's own list.
    missing = draft is not None and hub_draft and not (draft / "config.json").is_file()
    if stack.target.source.kind != "hub":
        verify_target(target)
        require_unaltered(target)
    for place in (*([target] if there else []), *([draft] if draft and not missing else [])):
        require_readable(place)
    _refuse(
        profile_checks(stack, profile_name, profile, gpu_name(stack.host.compute_capability or ""), ""), profile_name
    )
    if draft is not None and not missing:
        require_unaltered(draft)
        prove_draft(stack, profile, draft, target)


def prove_draft(stack: Stack, profile: Profile, draft: Path, target: Path | None) -> None:
    """Is it a draft that the profile's engine loads whole, for the target as far as that is there?

    Raises ContractError naming the first check that failed.
    """
    from k25stack.contract.draft import check_draft
    from k25stack.contract.facts import Question
    from k25stack.draft.target import TargetFacts

    there = target is not None and (target / "config.json").is_file()
    facts = TargetFacts.read(target) if target is not None and there else None
    question = Question(target=facts, context=profile.context or stack.target.context)
    _refuse(check_draft(draft, [f"{profile.engine}@{profile.version}"], question).checks, str(draft))


def require_unaltered(place: Path) -> None:
    """What a run has made is compared with the hashes that the run kept; files that it has not touched are not read.

    Raises DamageError naming the first file that is gone or altered.
    """
    note = place.parent / "outputs.json"
    if place.name != "out" or not note.is_file():
        return  # not of a run
    try:
        record = dict(read_json(note))
        before = from_json(place, record["files"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamageError(
            f"not a list of what was made: {in_words(error)}", where=str(note), remedy="run it again"
        ) from None
    if lines := damage(before, scan(place, before.files)):
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        raise DamageError(f"{lines[0]}{more}, since run {record.get('run', '?')} made it", where=str(place),
                          remedy=f"k25stack run STACK --only {record.get('step', 'STEP')} makes it anew")  # fmt: skip


def require_fillable(place: Path) -> None:
    """`prepare` writes there as uid 10001.  Raises HostError with the command that makes the directory so.

    What is there already is only read, unless it turns out to be altered.
    """
    if (place / "config.json").is_file():
        return
    if place.is_dir():
        seen = place.stat()
        if (seen.st_uid == UID and seen.st_mode & stat.S_IWUSR) or seen.st_mode & stat.S_IWOTH:
            return
    what = "closed to" if place.is_dir() else "not there; it is to be filled by"
    raise HostError(f"{what} uid {UID}, the user of every container", where=str(place),
                    remedy=f"sudo install -d -o {UID} -g {UID} {place}")  # fmt: skip


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
