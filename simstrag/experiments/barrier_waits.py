"""For which rank the others waited in synchronous training, over a whole run.

Under `bsp` every update waits for the last gradient.  Until then each other rank waits for the rank
of that gradient; of gradients that come at the same time, the one of the highest rank counts as
the last.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simstrag.arrays import Floats
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import simulate_into
from simstrag.runs.tables import InMemory, values_of
from simstrag.scenario.scenario import Scenario


def barrier_waits(scenario: Scenario, seed: int) -> Floats:
    """Seconds that all other ranks waited for each rank in a run of bsp; shape (workers,).

    >>> rows = [{"time": 0, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 2.0}]
    >>> case = Scenario(workers=3, updates=10, step={"compute": 0.1}, trace=rows)
    >>> barrier_waits(case, seed=0).round(9)
    array([0., 2., 0.])
    """
    waits = _Waits(scenario.workers)
    simulate_into(Recorder(False, True, storage=waits), scenario, "bsp", seed)
    return waits.seconds


class _Waits(InMemory):
    """Adds up the steps of each update, and keeps none."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.seconds: Floats = np.zeros(workers)
        self._rest: Floats = np.zeros((0, 3))

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        """Take rows of a table; of the steps only the sums."""
        if name != "steps":
            super().add(name, batch)
            return
        columns = [values_of(batch.column(key)) for key in ("rank", "finish", "wait")]
        rows = np.concatenate([self._rest, np.stack(columns, axis=1)])
        n = len(self.seconds)
        whole = len(rows) // n * n
        rounds, self._rest = rows[:whole].reshape(-1, n, 3), rows[whole:]
        rank, finish, wait = rounds.transpose(2, 0, 1)
        last = finish == finish.max(axis=1, keepdims=True, initial=-np.inf)
        blamed = np.where(last, rank, -1).max(axis=1, initial=-1).astype(np.int64)
        self.seconds += np.bincount(blamed, wait.sum(axis=1), minlength=n)
