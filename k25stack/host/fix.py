"""Mend what a check found, where its commands can neither lose data nor stop a server."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from k25stack.errors import HostError, UsageError
from k25stack.host.check import Check
from k25stack.host.checks import all_checks, check_named
from k25stack.host.collect import Target, collect, command_for, talk
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen


@dataclass(frozen=True)
class Repair:
    check: Check
    commands: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        return [shlex.join(argv) for argv in self.commands]


def plan_repair(id: str, seen: Seen, profile: Profile) -> Repair:
    """The commands that mend one check on this host.  Raises UsageError when there are none."""
    check = check_named(id)
    if check is None:
        from difflib import get_close_matches

        near = get_close_matches(id, [one.id for one in all_checks()], n=1)
        raise UsageError(
            f"no check {id!r}",
            where="--fix",
            remedy=f"did you mean {near[0]}?" if near else "see docs/host.md for the list",
        )
    if not check.applies(profile) or id in profile.skip:
        raise UsageError(
            f"{id} does not apply to profile {profile.name}", where="--fix", remedy="give another --profile"
        )
    if check.repair is None:
        raise UsageError(f"{id} is not mended by a command", where="--fix", remedy=check.fix)
    try:
        commands = tuple(tuple(argv) for argv in check.repair(seen, profile))
    except Unseen as reason:
        raise HostError(str(reason), where=f"--fix {id}", remedy=check.fix) from None
    if not commands:
        raise UsageError(f"{id}: there is nothing to run", where="--fix", remedy=check.fix)
    return Repair(check, commands)


def apply_repair(repair: Repair, target: Target) -> None:
    """Run the commands on the target as root.  Raises HostError with the first one that fails."""
    for line in repair.lines():
        done = talk(target, _as_root(line, target.password), 60)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip().splitlines()[-1:] or [
                f"exit {done.returncode}"
            ]
            raise HostError(said[0], where=f"{target.name}: {line}", remedy=repair.check.fix)


def _as_root(line: str, password: str) -> str:
    sudo = f"printf '%s\\n' {shlex.quote(password)} | sudo -S -p ''" if password else "sudo -n"
    path = "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin; export PATH"
    return f'{path}\nif [ "$(id -u)" = 0 ]; then {line}\nelse {sudo} {line}\nfi\n'


def check_again(repair: Repair, target: Target, profile: Profile) -> dict[str, object]:
    """Read that check's sources anew and judge them."""
    seen = collect(target, [source.resolve(profile) for source in repair.check.sources])
    return repair.check.judge_seen(seen, profile)


__all__ = ["Repair", "apply_repair", "check_again", "command_for", "plan_repair"]
