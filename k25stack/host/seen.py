"""What was read from a host: readings by their place, and how a judge asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from k25stack.host.sources import Source

# Exit codes that the collecting script gives where no program did.
ABSENT, DENIED, TIMEOUT, TOO_LONG, NOT_EXECUTABLE, NOT_FOUND = 66, 77, 124, 125, 126, 127
# Exit codes of the measuring worker (k25stack.host.live.family): not possible here, and failed.
UNABLE, FAILED = 69, 70


class Unseen(Exception):
    """A judge cannot tell: the source is missing, unreadable, or not what it should be.  Gives the verdict unknown."""


@dataclass(frozen=True)
class Reading:
    """The text of a source and how reading it ended (0: well)."""

    text: str
    rc: int = 0

    def trouble(self) -> str:
        """Why the text is not to be relied on."""
        if self.rc == NOT_FOUND:
            return "no such program on the host"
        if self.rc == NOT_EXECUTABLE:
            return "the program cannot be executed"
        if self.rc == TIMEOUT:
            return "no answer in time"
        if self.rc == DENIED:
            return "not readable for this user: run as root"
        if self.rc == TOO_LONG:
            return "the output is too long"
        last = self.text.strip().splitlines()[-1:] or ["no output"]
        if self.rc == UNABLE:
            return f"not measured: {last[0].lstrip('# ').strip()}"
        return f"exit {self.rc}: {last[0].strip()}"


@dataclass(frozen=True)
class Seen:
    """All readings of a host."""

    readings: Mapping[str, Reading] = field(default_factory=dict)  # by place
    absent: frozenset[str] = frozenset()  # places that were looked for and are not there

    def reading(self, source: Source) -> Reading | None:
        """The reading as it is, or None when there is none."""
        return self.readings.get(source.place)

    def need(self, source: Source) -> str:
        """The text of a source that was read well.  Raises Unseen."""
        reading = self.reading(source)
        if reading is None:
            raise Unseen(f"{source}: not there" if self.lacks(source) else f"{source}: not collected")
        if reading.rc != 0:
            raise Unseen(f"{source}: {reading.trouble()}")
        return reading.text

    def text(self, source: Source) -> str | None:
        """The text of a source that was read well, else None."""
        reading = self.reading(source)
        return reading.text if reading is not None and reading.rc == 0 else None

    def lacks(self, source: Source) -> bool:
        """True when it is known that the source does not exist: that is a finding, not ignorance."""
        return source.place in self.absent

    def group(self, source: Source) -> dict[str, str]:
        """Place -> text of a "files" source.  Raises Unseen unless there is one, or it is known that there is none."""
        pattern = source.pattern
        found = {place: r.text for place, r in self.readings.items() if r.rc == 0 and pattern.fullmatch(place)}
        if not found and not self.lacks(source):
            raise Unseen(f"{source}: not collected")
        return found

    def names(self, source: Source) -> list[str]:
        """The paths of a "paths" source, possibly none.  Raises Unseen when it was not looked for."""
        reading = self.reading(source)
        if reading is None:
            raise Unseen(f"{source}: not collected")
        lines = [line.strip() for line in reading.text.splitlines() if line.strip()]
        if reading.rc == 2 and lines and all(line.startswith("ls: ") for line in lines):
            return []  # recorded by hand with ls, which complains when nothing matches
        if reading.rc != 0:
            raise Unseen(f"{source}: {reading.trouble()}")
        if odd := [line for line in lines if not source.glob.fullmatch(line)]:
            raise Unseen(f"{source}: {odd[0]!r} is no such path")
        return lines
