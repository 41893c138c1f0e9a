"""Texts as nobody writes them on purpose, always the same ones for a seed."""

import random
from collections.abc import Callable

LONGEST = 20_000  # characters
HALF_PAIRS = ["\ud800", "a \udfff b", "the \udc80", "\udc00\ud800"]  # no UTF-8: halves of surrogate pairs

Make = Callable[[random.Random], str]


def odd_texts(count: int, seed: int = 0) -> list[str]:
    """That many texts, the first of which are of every kind."""
    chance = random.Random(seed)  # noqa: S311
    return [KINDS[k % len(KINDS)](chance) if k < 2 * len(KINDS) else _mixed(chance) for k in range(count)]


def _mixed(chance: random.Random) -> str:
    return "".join(chance.choice(SHORT)(chance) for _ in range(chance.randrange(1, 5)))


def _of(*ranges: tuple[int, int], most: int = 9) -> Make:
    """Makes texts of characters from ranges of code points."""

    def make(chance: random.Random) -> str:
        return "".join(chr(chance.randint(*chance.choice(ranges))) for _ in range(chance.randint(1, most)))

    return make


def _words(chance: random.Random) -> str:
    return "".join(chance.choice([" ", ""]) + chance.choice(WORDS) for _ in range(chance.randrange(12)))


def _any(chance: random.Random) -> str:
    points = [chance.randrange(0x110000) for _ in range(chance.randint(1, 9))]
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


WORDS = ["the", "there", "ab", "a", "é", "İ", "ß", "中", "д", "[MASK]", "[PAD]", "##a", "]", "“"]
SPACES = [" ", "\t", "\n", "\r\n", "\u00a0", "\u2028", "\u3000", "\u200b", "\ufeff"]
SHORT: list[Make] = [
    lambda chance: chance.choice(WORDS),
    lambda chance: "".join(chance.choices(SPACES, k=chance.randint(1, 4))),
    lambda chance: chance.choice(["\0", "a\0b", "\0\0 the", "the\0"]),
    _words,
    _any,
    _of((0, 31), (127, 159), (0xE000, 0xE010), (0xFFF0, 0xFFFF)),  # control characters, and those that are none
    _of((0x300, 0x36F), (0x61, 0x65)),  # combining marks, also without a letter before them
    _of((0x1F300, 0x1FAFF), (0x200D, 0x200D), (0xFE0F, 0xFE0F), (0x1F1E6, 0x1F1FF)),  # emoji and what joins them
    _of((0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1200, 0x137F), (0x12000, 0x123FF)),  # other scripts
    _of((0x4E00, 0x4E20), (0x3040, 0x30FF), (0xAC00, 0xAC20), (0x20000, 0x20010)),
    _of((0x202A, 0x202E), (0x2066, 0x2069), (0x61, 0x65)),  # directions
]
KINDS: list[Make] = [
    lambda _: "",
    *SHORT,
    lambda chance: chance.choice(["a", "é", "e\u0301"]) * chance.randint(90, 110),  # about WordPiece's longest word
    lambda chance: "ab" * (LONGEST // 2),
    lambda chance: "the ab " * (LONGEST // 7),
    lambda chance: "e" + "\u0301" * 500,
]
