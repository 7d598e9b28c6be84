"""Holds the tables of one job, and tells compiled code where they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from simstrag.engine.compiled import cards, lockstep, tables
from simstrag.engine.compiled.tables import TABLES
from simstrag.view import WINDOW

__all__ = ["Memory"]

SPARE = 64
"""Events and jobs that were called off and not forgotten yet, beside four per rank."""
LOGGED = 1 << 14
"""Rows of a log before it is taken over."""
ROWS = 1 + max(lockstep.EFFORT, cards.COUNT)
"""Numbers of a rank in lockstep or in a queue."""
KEPT = 4
"""Gradients that a rank may keep before more room is made."""


class Memory:
    """Every table as an attribute; `address` is what compiled functions take.

    world_size: ranks.  durations: recorded ones, of all ranks.  keep_steps, keep_fates: whether
    there are logs of steps and of gradients.
    """

    def __init__(self, world_size: int, durations: Any, keep_steps: bool, keep_fates: bool) -> None:
        n, log = world_size, max(LOGGED, 4 * world_size)
        self.machine = np.zeros(1, tables.MACHINE)
        self.ranks = np.zeros(n, tables.RANK)
        self.quorums = np.zeros(n, tables.QUORUM)
        self.closings = np.zeros(n + 1, tables.CLOSING)
        self.events = np.zeros(4 * n + SPARE, tables.EVENT)
        self.jobs = np.zeros(4 * n + SPARE, tables.JOB)
        self.lists = np.zeros(n, np.int64)
        self.lanes = np.zeros((ROWS, n))
        self.suspected = np.zeros(n, np.bool_)
        self.tree = np.full(2 << (n - 1).bit_length(), np.inf)
        self.scratch = np.zeros(n + 1, np.int64)
        self.kept = np.zeros((n, KEPT), tables.KEPT)
        self.known = np.zeros(n, np.int64)
        self.local_times, self.communication, self.batch = np.zeros((3, WINDOW, n))
        self.amp, self.lower_bound = np.zeros((2, WINDOW, n), np.bool_)
        self.noise = np.ones((1, 1))
        self.pieces = np.zeros(0, tables.PIECE)
        self.times, self.values = np.zeros(0), np.zeros(0)
        self.seconds_of = np.zeros(1)
        self.durations = durations
        self.medians = np.zeros(n)
        self.update_log = np.zeros(LOGGED, tables.UPDATE)
        self.member_log = np.zeros(log, np.int64)
        self.step_log = np.zeros(log if keep_steps else 0, tables.STEP)
        self.fate_log = np.zeros(log * (KEPT + 1) if keep_fates else 0, tables.FATE)
        self._places = np.zeros(3 * len(TABLES), np.int64)
        self.address = int(self._places.ctypes.data)
        self._blank()

    def _blank(self) -> None:
        for name in ("ticket", "mark", "quorum", "closing", "link", "puller", "parent", "aboard"):
            self.ranks[name] = -1
        self.ranks["last_amp"] = self.ranks["clean_step"] = -1
        self.ranks["stretch"] = self.ranks["net"] = -1
        self.ranks["due"] = np.nan
        self.ranks["idle"] = 1
        self.closings["head"] = np.append(np.arange(1, len(self.closings)), -1)
        self.placed()

    def blank_windows(self) -> None:
        """Nothing has been shown yet; until somebody looks, that takes no room."""
        for table in (self.local_times, self.communication, self.batch):
            table[:] = np.nan

    def placed(self) -> None:
        """Note where the tables are; to be called whenever one was replaced."""
        for k, name in enumerate(TABLES):
            table = getattr(self, name)
            assert table.flags.c_contiguous
            columns = table.shape[1] if table.ndim > 1 else 1
            self._places[3 * k : 3 * k + 3] = table.ctypes.data, len(table), columns

    def make_room(self) -> None:
        """Let ranks keep twice as many gradients."""
        more = np.zeros((len(self.ranks), 2 * self.kept.shape[1]), tables.KEPT)
        more[:, : self.kept.shape[1]] = self.kept
        self.kept = more
        if len(self.fate_log):
            self.fate_log = np.resize(self.fate_log, 2 * len(self.fate_log))
        self.placed()
