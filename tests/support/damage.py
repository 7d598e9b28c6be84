"""Files damaged at random, and what reading them says."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from simstrag.errors import InputError

Damage = Callable[[bytes, random.Random], bytes]


def span(data: bytes, luck: random.Random, longest: int = 12) -> slice:
    first = luck.randrange(len(data))
    return slice(first, first + luck.randrange(1, longest))


def remove(data: bytes, luck: random.Random) -> bytes:
    part = span(data, luck, luck.choice((2, 12, 200)))
    return data[: part.start] + data[part.stop :]


def cut_off(data: bytes, luck: random.Random) -> bytes:
    return data[: luck.randrange(len(data))]


def overwrite(data: bytes, luck: random.Random) -> bytes:
    part = span(data, luck, 4)
    return data[: part.start] + luck.randbytes(part.stop - part.start) + data[part.stop :]


def replace_number(data: bytes, luck: random.Random) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    words = (
        b"", b"nan", b"-1", b"0", b"1e999", b"9" * 400, b"high", b"1e18", b'"', b"null", b"[]",
        b"-0.0", b"12:30", b"2026-02-31", b"{}", b"1e-320", b"5 %",
    )  # fmt: skip
    if not numbers:
        return data
    found = luck.choice(numbers)
    return data[: found.start()] + luck.choice(words) + data[found.end() :]


def repeat(data: bytes, luck: random.Random) -> bytes:
    part = span(data, luck, luck.choice((3, 60)))
    return data[: part.start] + 2 * data[part] + data[part.stop :]


def move_line(data: bytes, luck: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    moved = lines.pop(luck.randrange(len(lines)))
    lines.insert(luck.randrange(len(lines) + 1), moved)
    return b"".join(lines)


def exchange_marks(data: bytes, luck: random.Random) -> bytes:
    old, new = luck.sample((b",", b";", b"\t", b'"', b"\n", b"{", b"]", b":"), 2)
    return data.replace(old, new, luck.choice((1, 3, -1)))


DAMAGES: tuple[Damage, ...] = (
    remove, cut_off, overwrite, replace_number, replace_number, repeat, move_line, exchange_marks,
)  # fmt: skip


def damaged(data: bytes, seed: str) -> bytes:
    """The data after one to three damages."""
    luck = random.Random(seed)
    for damage in luck.choices(DAMAGES, k=luck.randrange(1, 4)):
        data = damage(data, luck) if data else data
    return data


def outcome(read: Callable[[], object]) -> str:
    """The message of the error that a user may correct, or nothing."""
    try:
        read()
    except InputError as error:
        return str(error)
    return ""
