"""Keys and values of many sequences, kept together by length.

A decode step multiplies every sequence with as many keys as its cache is long, and torch copies operands with gaps
between them.  So sequences of up to 64, 128, 192.. positions each have a cache of that length, a *shelf*, whose leading
slots are read in place; a sequence that outgrows its shelf moves to the next, which costs less than one step.

Memory is taken by slots that were ever used, so a shelf that is half empty moves into a fresh cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from k25stack.reference.attention import Batched, Joined
from k25stack.reference.kv import KVCache
from k25stack.reference.target import Target

STEP = 64  # positions between neighbouring shelves ...
WIDE = 512  # ... and twice as many from this length on


@dataclass
class Place:
    """Where a sequence lies: its shelf, its slot there, and how many positions have keys and values."""

    shelf: int = -1
    slot: int = -1
    cached: int = 0


@dataclass
class Shelf:
    """A cache of one length and what lies in its slots."""

    cache: KVCache
    places: list[Place] = field(default_factory=list)  # by slot: 0 to n-1
    most: int = 0  # places since the cache was made: so many slots hold memory


def capacity(length: int) -> int:
    """Positions of the shelf for ``length`` of them."""
    step = STEP if length <= WIDE else 2 * STEP
    return -(-length // step) * step


class Shelves:
    """The shelves in use, by capacity.  An empty one gives its memory back."""

    def __init__(self, target: Target, slots: int) -> None:
        """``slots``: most sequences at once."""
        self.target, self.slots = target, slots
        self.shelves: dict[int, Shelf] = {}

    def put(self, place: Place, length: int) -> KVCache:
        """Make room for ``length`` positions; what is cached comes along.  Returns the cache it now lies in."""
        wanted = capacity(length)
        if place.shelf >= wanted:
            return self.shelves[place.shelf].cache
        shelf = self.shelves.get(wanted)
        if shelf is None:
            shelf = self.shelves[wanted] = Shelf(self.target.new_cache(self.slots, wanted))
        slot = len(shelf.places)
        if place.shelf >= 0:
            shelf.cache.take(slot, self.shelves[place.shelf].cache, place.slot, place.cached)
            self.remove(place)
        shelf.places.append(place)
        shelf.most = max(shelf.most, slot + 1)
        place.shelf, place.slot = wanted, slot
        return shelf.cache

    def remove(self, place: Place) -> None:
        """Take a sequence out; the last one of its shelf moves into its slot."""
        shelf = self.shelves[place.shelf]
        last = shelf.places.pop()
        if last is not place:
            shelf.places[place.slot] = last
            shelf.cache.take(place.slot, shelf.cache, last.slot, last.cached)
            last.slot = place.slot
        if not shelf.places:
            del self.shelves[place.shelf]
        place.shelf = place.slot = -1

    def grow(self) -> None:
        """Move sequences whose shelf has no room for one more position; give back what half empty shelves hold."""
        for length in sorted(self.shelves, reverse=True):
            for place in [place for place in self.shelves[length].places if place.cached == length]:
                self.put(place, length + 1)
        for length, shelf in self.shelves.items():
            if 2 * len(shelf.places) < shelf.most:
                cache, used = self.target.new_cache(self.slots, length), len(shelf.places)
                cache.k[:, :used], cache.v[:, :used] = shelf.cache.k[:, :used], shelf.cache.v[:, :used]
                shelf.cache, shelf.most = cache, used

    def rows(self) -> Iterator[Place]:
        """All sequences in the order of their rows in a decode step: by shelf, then by slot."""
        for length in sorted(self.shelves):
            yield from self.shelves[length].places

    def attention(self) -> Joined:
        """What attends to one new token of every sequence, rows in the order of `rows`."""
        parts = []
        for length in sorted(self.shelves):
            shelf = self.shelves[length]
            starts = torch.tensor([place.cached for place in shelf.places])
            parts.append((len(starts), Batched(shelf.cache, torch.arange(len(starts)), starts, 1)))
        return Joined(parts)
