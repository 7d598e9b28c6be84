"""Which gradients of a run were applied, and when: all that real training takes from an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simstrag.arrays import Array, Bools, Floats
from simstrag.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from simstrag.runs.run import Run

GradientColumns = dict[str, Array]

COLUMNS = ("update", "rank", "step", "version", "samples", "weight", "round")
NONE = {"update": 0, "round": -1}
"""Missing value of these columns."""


class GradientLog:
    """The gradients of a run that count and the time of each update, of what a recorder records.

    It is the `simstrag.runs.tables.Storage` of that recorder.
    """

    excerpt = None

    def __init__(self) -> None:
        self._gradients: list[GradientColumns] = []
        self._times: list[Floats] = []

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        """Keep what is needed of some rows."""
        if name == "updates":
            self._times.append(batch.column("time").to_numpy())
        elif name == "gradients":
            applied = _is(batch.column("fate"), "applied")
            columns = {"amp": _is(batch.column("precision"), "amp")} | {
                name: batch.column(name).fill_null(NONE.get(name, 0)).to_numpy() for name in COLUMNS
            }
            columns["round"] = columns["round"].astype(np.int32)
            kept = applied | (columns["round"] >= 0)
            self._gradients.append({key: values[kept] for key, values in columns.items()})

    @classmethod
    def of(cls, run: Run) -> GradientLog:
        """The log of a run that kept its gradients and all updates, such as a real one.

        Raises `InputError` where it did not.
        """
        log, gradients = cls(), run.frame("gradients")
        kept = gradients[(gradients["fate"] == "applied") | (gradients["round"] >= 0)]
        columns = {name: kept[name].fillna(NONE.get(name, 0)).to_numpy() for name in COLUMNS}
        columns["round"] = columns["round"].astype(np.int32)
        log._gradients = [columns | {"amp": (kept["precision"] == "amp").to_numpy()}]
        log._times = [run.frame("updates")["time"].to_numpy()]
        if len(log.times) != run.summary["updates"]:
            raise InputError("this run kept only an excerpt of its updates; record all of them")
        return log

    def table(self, name: str) -> None:
        """No table: a log is no part of a run."""

    @property
    def gradients(self) -> GradientColumns:
        """Columns of all gradients that count, in the order of updates, versions and precisions.

        These are the applied ones, and those of groups' rounds that never were.

        update: the version that it made, from 1, or 0 for none; version: the one that its rank had
            pulled.
        round: number of its group's round of its own, -1 for none.
        amp: whether it was computed in reduced precision.
        weight: of the gradient, the mean over its samples, in the sum that the optimizer applies.
        """
        columns = {
            name: np.concatenate([part[name] for part in self._gradients])
            for name in (*COLUMNS, "amp")
        }
        order = np.lexsort([columns[name] for name in ("step", "rank", "amp", "version", "update")])
        found = {name: column[order] for name, column in columns.items()}
        return found | {"update": found["update"].astype(np.int64)}

    @property
    def times(self) -> Floats:
        """Seconds of each update; the one that makes version v is entry v - 1."""
        return np.concatenate(self._times)


def _is(words: pa.DictionaryArray, word: str) -> Bools:
    """Mask of the words that equal one word."""
    number = words.dictionary.to_pylist().index(word)
    equal: Bools = words.indices.to_numpy() == number
    return equal
