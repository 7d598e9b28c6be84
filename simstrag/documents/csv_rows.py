"""The rows of a CSV file, each with its line for messages."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TextIO

from simstrag.errors import InputError


def read_rows(
    file: TextIO, source: str, separator: str = ",", hint: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """The header, and the rows that are not blank, each with the number of its first line.

    hint: what to add where a row has another number of fields than the header.
    Raises `InputError` for such a row, and for a quote that is not closed where it opens.

    >>> import io
    >>> list(read_rows(io.StringIO("a,b\\n\\n1,2\\n"), "mine.csv"))
    [(1, ['a', 'b']), (3, ['1', '2'])]
    >>> list(read_rows(io.StringIO('a,b\\n1,"2\\n3,4\\n'), "mine.csv"))
    Traceback (most recent call last):
    simstrag.errors.InputError: mine.csv, row 2: not CSV: a quote that opens here is not closed
    """
    reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
    line = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        yield line, header
        line = reader.line_num + 1
        for row in reader:
            if any(row):
                if len(row) != len(header):
                    raise InputError(
                        f"{source}, row {line}: {len(row)} fields, but the header names "
                        f"{len(header)} columns{hint}"
                    )
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        is_open = reader.line_num > line or "end of data" in str(error)
        why = "a quote that opens here is not closed" if is_open else error
        raise InputError(f"{source}, row {line}: not CSV: {why}") from None
