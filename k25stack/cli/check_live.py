"""``check host --live``: take the lease, measure, judge."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.cli.output import say

if TYPE_CHECKING:
    from k25stack.host.fleet import Outcome
    from k25stack.host.measure import Held, Wanted
    from k25stack.host.profile import Profile
    from k25stack.host.seen import Seen


def wanted_of(soak: str, python: str, image: str, model_dir: str, limit: float) -> Wanted:
    """What the options ask for.  Raises UsageError."""
    import sys

    from k25stack.host.live.session import Place
    from k25stack.host.measure import Wanted
    from k25stack.host.soak import seconds_of

    place = Place(python or sys.executable, image)
    return Wanted(place, model_dir, seconds_of(soak) if soak else 0.0, limit)


def check_live(profile: Profile | None, wanted: Wanted, record: Path | None, dry_run: bool) -> Outcome | None:
    """Read, measure and judge this machine; with ``dry_run`` print what would be measured and return None.

    Raises LeaseError when somebody else uses the cards, UsageError when there is nothing to measure.
    """
    from k25stack.errors import UsageError
    from k25stack.host import fleet
    from k25stack.host.collect import Target
    from k25stack.host.measure import expected, measure, plan

    shown: list[str] = []

    def live(seen: Seen, found: Profile) -> tuple[Seen, Profile]:
        found = expected(found, wanted)
        parts = list(plan(found, wanted))
        if not parts:
            raise UsageError(
                f"profile {found.name} has no card and no model directory: nothing to measure",
                where="--live",
                remedy="give --model-dir, or another --profile",
            )
        shown.extend(f"{part:10} {what}" for part, what in parts)
        if dry_run:
            return seen, found
        with lease("check host --live", "live tests", found.gpus) as held:
            return measure(seen, found, wanted, held, _told), found

    outcome = fleet.check_one(Target("local"), profile, record=None if dry_run else record, live=live)
    if outcome.error is not None:
        raise outcome.error
    if dry_run:
        for line in shown:
            say(line)
        say("Next: k25stack check host --live", err=True)
        return None
    return outcome


@contextmanager
def outlives_terminal() -> Iterator[None]:
    """A lost terminal does not end what runs here."""
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, old)


@contextmanager
def lease(who: str, purpose: str, cards: int) -> Iterator[Held]:
    """The host's GPU lease while cards are measured; SIGTERM ends that like Ctrl-C."""
    from k25stack.host.measure import Held
    from k25stack.pipeline.lease import Lease

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    # A scope of its own: no earlier step of anybody is ours.
    with outlives_terminal(), tempfile.TemporaryDirectory(prefix="k25-lease-") as scope:
        taken = Lease(who, purpose, cards, Path(scope))
        taken.take()
        old = signal.signal(signal.SIGTERM, interrupt)
        try:
            yield Held(taken.note, taken.descriptors())
        finally:
            taken.release()
            signal.signal(signal.SIGTERM, old)


def _told(line: str) -> None:
    say(line, err=True)
