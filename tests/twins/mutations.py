"""Launch lines with a thing or two done to them: dropped, doubled, misspelled, abbreviated, moved, given odd values."""

from __future__ import annotations

import random
from collections.abc import Callable

Words = list[str]
Change = Callable[[random.Random, Words, Words], Words]  # (random, words, all option names) -> words
ODD = ("-1", "1.5", "x", "", "None", '{"a":1}', "32k", "1Ki", "-x y", "--", "true", "eight")


def options(words: Words) -> Words:
    return [word for word in words if word.startswith("--")]


def drop(rng: random.Random, words: Words, names: Words) -> Words:
    gone = rng.randrange(len(words))
    return words[:gone] + words[gone + 1 :]


def double(rng: random.Random, words: Words, names: Words) -> Words:
    option = rng.choice(options(words))
    place = words.index(option)
    return words + words[place : place + 2]


def swap(rng: random.Random, words: Words, names: Words) -> Words:
    one, other = rng.randrange(len(words)), rng.randrange(len(words))
    changed = list(words)
    changed[one], changed[other] = changed[other], changed[one]
    return changed


def misspell(rng: random.Random, words: Words, names: Words) -> Words:
    option = rng.choice(options(words))
    at = rng.randrange(2, len(option))
    return [option[:at] + rng.choice("abcx-_=") + option[at + 1 :] if word == option else word for word in words]


def abbreviate(rng: random.Random, words: Words, names: Words) -> Words:
    option = rng.choice(options(words))
    kept = rng.randrange(max(4, len(option) - 8), len(option))
    return [option[:kept] if word == option else word for word in words]


def odd_value(rng: random.Random, words: Words, names: Words) -> Words:
    place = rng.randrange(len(words))
    return [*words[:place], rng.choice(ODD), *words[place + 1 :]]


def add_option(rng: random.Random, words: Words, names: Words) -> Words:
    return [*words, rng.choice(names), rng.choice(("1", "triton", "0.5", "{}", "[1]", "x"))]


def add_flag(rng: random.Random, words: Words, names: Words) -> Words:
    place = rng.choice([at for at, word in enumerate(words) if word.startswith("--")])
    return [*words[:place], rng.choice(names), *words[place:]]


def join(rng: random.Random, words: Words, names: Words) -> Words:
    """``--name value`` as ``--name=value``."""
    option = rng.choice(options(words))
    place = words.index(option)
    return [*words[:place], "=".join(words[place : place + 2]), *words[place + 2 :]]


def stray(rng: random.Random, words: Words, names: Words) -> Words:
    place = rng.randrange(len(words) + 1)
    return [*words[:place], rng.choice(("serve", "model", "--no-such", "-z", "-3")), *words[place:]]


CHANGES: tuple[Change, ...] = (
    drop, double, swap, misspell, abbreviate, odd_value, add_option, add_flag, join, join, double, stray,
)  # fmt: skip


def mutate(rng: random.Random, words: Words, names: Words) -> Words:
    for _ in range(rng.choice((1, 1, 1, 2))):
        words = rng.choice(CHANGES)(rng, words, names) if options(words) else words
    return words
