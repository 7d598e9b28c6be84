"""Columns of a log: 8 bytes a value, and Python's own values only for those who ask for them."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

__all__ = ["Column", "Lists", "Numbers", "Table", "Words", "chosen", "joined", "lists"]

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
AT_ONCE = 4096
"""Values that become Python's at once where somebody goes through a column."""
SHOWN = 6
"""Values that a column shows of itself."""


class Column(Sequence[Any]):
    """Values in order, equal to a list of the same; `numpy.asarray` makes an array of them.

    >>> progress = Numbers(np.array([0.5, np.nan]), gaps=True)
    >>> progress == [0.5, None], progress[-1], np.asarray(progress).tolist()
    (True, None, [0.5, nan])
    """

    __slots__ = ()

    @abstractmethod
    def chosen(self, rows: Any) -> Self:
        """Some of its rows, as numpy chooses them: by a mask, numbers or a slice; a copy."""

    @abstractmethod
    def joined(self, others: Sequence[Self]) -> Self:
        """With the rows of others below its own."""

    @abstractmethod
    def said(self, rows: slice) -> list[Any]:
        """Some of its rows as Python's own values."""

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array: ...

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self.said(at)
        row = operator.index(at)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.said(slice(row, row + 1))[0]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), AT_ONCE):
            yield from self.said(slice(start, start + AT_ONCE))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Column, list)):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = f", ... {len(self)} values" if len(self) > SHOWN else ""
        return f"[{', '.join(map(repr, self.said(slice(SHOWN))))}{more}]"


Table = dict[str, Column]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Numbers(Column):
    """Numbers, shape (n,).  gaps: NaN, or a number below 0 among whole ones, stands for None."""

    rows: Array
    gaps: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Where there is None."""
        if not self.gaps:
            return np.zeros(len(self.rows), dtype=np.bool_)
        return np.asarray(np.isnan(self.rows) if self.rows.dtype.kind == "f" else self.rows < 0)

    def chosen(self, rows: Any) -> Numbers:
        return Numbers(self.rows[rows].copy(), self.gaps)

    def joined(self, others: Sequence[Numbers]) -> Numbers:
        return Numbers(np.concatenate([self.rows, *(c.rows for c in others)]), self.gaps)

    def said(self, rows: slice) -> list[Any]:
        values: list[Any] = self.rows[rows].tolist()
        if not self.gaps:
            return values
        missing = self.chosen(rows).missing.tolist()
        return [None if gap else v for gap, v in zip(missing, values, strict=True)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows = self.rows
        if self.gaps and rows.dtype.kind != "f" and self.missing.any():
            rows = np.where(self.missing, np.nan, rows)
        return np.array(rows, dtype=dtype, copy=copy)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Words(Column):
    """Few different words: which of `words` each is, shape (n,), 127 at most."""

    codes: Array
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def chosen(self, rows: Any) -> Words:
        return Words(self.codes[rows].copy(), self.words)

    def joined(self, others: Sequence[Words]) -> Words:
        every = (self, *others)
        words = tuple(dict.fromkeys(word for c in every for word in c.words))
        codes = [np.array([words.index(w) for w in c.words], dtype=np.int8)[c.codes] for c in every]
        return Words(np.concatenate(codes), words)

    def said(self, rows: slice) -> list[Any]:
        return [self.words[code] for code in self.codes[rows].tolist()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        words = np.array(self.words, dtype=np.str_)
        return np.asarray(words[self.codes], dtype=dtype)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lists(Column):
    """Tuples of numbers, such as ranks.

    at, length: shape (n,): values `at` to `at + length` of `flat`; below 0 all of `sets[-1 - at]`,
    which many rows have in common; a length below 0 stands for None.
    """

    at: Ints
    length: Ints
    flat: Array
    sets: Sequence[Array] = ()

    def __len__(self) -> int:
        return len(self.at)

    @property
    def sizes(self) -> Ints:
        """How many values each has, 0 for None."""
        return np.maximum(self.length, 0)

    def values(self) -> Array:
        """The values of all rows, one after another."""
        own, sizes = self.at >= 0, self.sizes
        tokens = np.unique(-1 - self.at[~own])
        if len(tokens) == 1 and not own.any():
            return np.asarray(np.tile(self.sets[tokens[0]], len(self)))
        if not len(tokens) and np.array_equal(self.at, _before(sizes)):
            return self.flat[: sizes.sum()]
        pools = [self.flat, *(self.sets[token] for token in tokens)]
        starts = np.cumsum([0, *map(len, pools)])
        named = starts[1 + np.searchsorted(tokens, -1 - self.at)]
        first = np.where(own, self.at, named)
        steps = np.arange(sizes.sum())
        found: Array = np.concatenate(pools)[steps + np.repeat(first - _before(sizes), sizes)]
        return found

    def chosen(self, rows: Any) -> Lists:
        at, count = self.at[rows].copy(), self.length[rows].copy()
        own = at >= 0
        listed = Lists(at[own], count[own], self.flat)
        at[own] = _before(listed.sizes)
        return Lists(at, count, listed.values(), self.sets)

    def joined(self, others: Sequence[Lists]) -> Lists:
        """With others that have the same sets."""
        every = (self, *others)
        starts = np.cumsum([0, *(len(c.flat) for c in every)])
        at = [np.where(c.at < 0, c.at, c.at + s) for c, s in zip(every, starts, strict=False)]
        count = np.concatenate([c.length for c in every])
        return Lists(np.concatenate(at), count, np.concatenate([c.flat for c in every]), self.sets)

    def said(self, rows: slice) -> list[Any]:
        pairs = zip(self.at[rows].tolist(), self.length[rows].tolist(), strict=True)
        return [self._one(at, count) for at, count in pairs]

    def _one(self, at: int, count: int) -> tuple[Any, ...] | None:
        if count < 0:
            return None
        return tuple((self.sets[-1 - at] if at < 0 else self.flat[at : at + count]).tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = np.empty(len(self), dtype=object)
        found[:] = list(self)
        return found


def lists(values: Sequence[Sequence[float] | None], kind: type) -> Lists:
    """A column of such tuples, None among them.

    >>> lists([(1, 3), None, ()], int)
    [(1, 3), None, ()]
    """
    count = np.array([-1 if own is None else len(own) for own in values], dtype=np.int64)
    arrays: list[Array] = [np.array(own, dtype=kind) for own in values if own]
    flat = np.concatenate([np.zeros(0, dtype=kind), *arrays])
    return Lists(_before(np.maximum(count, 0)), count, flat)


def chosen(table: Table, rows: Any) -> Table:
    """Some rows of a table, as numpy chooses them; a copy."""
    return {name: column.chosen(rows) for name, column in table.items()}


def joined(tables: Sequence[Table]) -> Table:
    """All rows of tables with the same columns."""
    first, *others = tables
    return {
        name: column.joined([table[name] for table in others]) if others else column
        for name, column in first.items()
    }


def _before(sizes: Ints) -> Ints:
    """How many values come before those of each row.

    >>> _before(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    return np.asarray(np.cumsum(sizes) - sizes)
