"""Texts for a terminal: names from files and hosts without what would steer it."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable

UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of characters that are not seen but act: control characters, writing
direction, surrogates (of file names that are no UTF-8), separators of lines."""


def printable(text: str, keep: str = "") -> str:
    r"""A text whose control characters are visible escapes.

    keep: those that stay, such as a line break between paragraphs.

    >>> print(printable("gpu\x1b[2J\n"))
    gpu\x1b[2J\x0a
    """
    if text.isprintable():
        return text
    return "".join(
        each if each in keep or unicodedata.category(each) not in UNSEEN else _escape(ord(each))
        for each in text
    )


def shell_word(text: str) -> str:
    r"""A word as a shell reads it, which a terminal shows as it has to be typed.

    Control characters need `$'...'`, which bash, zsh and ksh have.

    >>> print(shell_word("my trace.csv"), shell_word("a\x1b'b.csv"))
    'my trace.csv' $'a\x1b\'b.csv'
    """
    if printable(text) == text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{printable(escaped)}'"


def shell_command(words: Iterable[str]) -> str:
    """Words as a command to type."""
    return " ".join(map(shell_word, words))


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
