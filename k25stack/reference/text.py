"""Text from tokens as they arrive, with stop strings (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "�"
"""What a byte-level tokenizer prints for the first bytes of a character whose rest has not come yet."""


class TextStream:
    """Decodes a response token by token and gives out only text that can no longer change.

    Held back: the bytes of an unfinished character, and a tail that may turn out to be the start of a stop string.
    ``decode`` maps ids to text.  The text ends before the first stop string.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self.decode = decode
        self.stop = tuple(stop)
        self.stopped = False
        self._ids: list[int] = []
        self._context = 0  # ids before this one are decoded and no longer needed as context
        self._read = 0  # ids before this one have their text in _text
        self._text = ""
        self._given = 0

    def feed(self, token: int) -> bool:
        """Take one token; True when a stop string is complete, and then no more tokens must come."""
        self._ids.append(token)
        self._absorb(final=False)
        return self.stopped

    def take(self, *, final: bool = False) -> str:
        """New text since the last call; ``final`` also gives out everything held back."""
        if final:
            self._absorb(final=True)
        end = len(self._text) if final or self.stopped else len(self._text) - self._held()
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece

    def _absorb(self, final: bool) -> None:
        if self.stopped or self._read == len(self._ids):
            return
        # Decoded with the ids before them: some tokenizers drop or add a space at the start of a text.
        known = self.decode(self._ids[self._context : self._read])
        whole = self.decode(self._ids[self._context :])
        if whole.endswith(UNFINISHED) and not final:
            return
        self._context, self._read = self._read, len(self._ids)
        before = len(self._text)
        self._text += whole[len(known) :]
        self._find_stop(before)

    def _find_stop(self, before: int) -> None:
        """Cut the text at the earliest stop string that ends in the part after ``before``."""
        found = [self._text.find(stop, max(0, before - len(stop) + 1)) for stop in self.stop]
        starts = [start for start in found if start >= 0]
        if starts:
            self._text = self._text[: min(starts)]
            self.stopped = True

    def _held(self) -> int:
        """Length of the longest tail that begins a stop string."""
        longest = max((len(stop) for stop in self.stop), default=1) - 1
        for length in range(min(longest, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self.stop):
                return length
        return 0
