"""Server-sent events, parsed from raw bytes as they arrive (WHATWG HTML, section 9.2, data fields only)."""

from __future__ import annotations


class EventParser:
    """Feed pieces of a stream, get the data of the events that are complete.

    A piece may hold several events, end inside one, or inside a UTF-8 character.  Lines end with LF or CR LF;
    comments and fields other than ``data`` are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of every event that ``piece`` completes, in order."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

    @property
    def torn(self) -> bool:
        """The stream ended (or stands) inside an event."""
        return bool(self._rest.strip() or self._data)
