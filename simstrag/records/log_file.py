"""`LogFile`: a file of any tool: its bytes, unpacked, and what they may be read as."""

from __future__ import annotations

import codecs
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from simstrag.errors import InputError
from simstrag.records.log_table import LogTable, read_bytes
from simstrag.records.record import Record

HEAD = 65536
"""Most characters that a reader needs to recognise its format."""


@dataclass(frozen=True)
class LogFile:
    """One file, read once.

    path: for messages, and for what its name says.
    data: its bytes, unpacked.
    """

    path: Path
    data: bytes

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a file, gzipped or not. Raises `InputError`."""
        return cls(Path(path), read_bytes(path))

    @functools.cached_property
    def text(self) -> str:
        """Its text, without a byte order mark; bytes that are no UTF-8 are replaced."""
        for mark, encoding in (
            (codecs.BOM_UTF16_LE, "utf-16"),
            (codecs.BOM_UTF16_BE, "utf-16"),
            (codecs.BOM_UTF8, "utf-8-sig"),
        ):
            if self.data.startswith(mark):
                return self.data.decode(encoding, "replace")
        return self.data.decode("utf-8", "replace")

    @functools.cached_property
    def head(self) -> str:
        """The beginning of its text."""
        return self.text[:HEAD]

    @functools.cached_property
    def document(self) -> Any:
        """The JSON document that it is, or the list of its lines if each is one; else None."""
        if not self.head.lstrip().startswith(("{", "[")):
            return None
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            pass
        found = []
        lines = [line for line in self.text.splitlines() if line.strip()]
        for k, line in enumerate(lines):
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                if k + 1 < len(lines) or not found:  # a last line may be cut off
                    return None
        return found

    @functools.cached_property
    def table(self) -> LogTable | None:
        """The table that it is as CSV; None for other text."""
        if self.document is not None or "\0" in self.head:
            return None
        try:
            return LogTable.of(self.text, str(self.path))
        except InputError:
            return None


class Reader(NamedTuple):
    """The reader of one format.

    name: the tool's own name; what: a few words on its files.
    recognise: whether a file is in the format, by its content.
    read: the record of files; raises `InputError`.  Its second argument names columns by meaning.
    many: whether several files of a job are read together, such as one of each rank.
    """

    name: str
    what: str
    recognise: Callable[[LogFile], bool]
    read: Callable[[Sequence[LogFile], Mapping[str, str] | None], Record]
    many: bool = False
