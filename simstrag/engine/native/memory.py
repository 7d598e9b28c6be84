"""The tables of one job, and where native code finds them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from simstrag.contract import WINDOW
from simstrag.contract.view import LAZY
from simstrag.engine.native.library import Library

__all__ = ["AHEAD", "SHOWN", "Memory"]

SHOWN = tuple(name for name in LAZY if name != "pending_since")
"""Fields of a view that tables show, step by step."""

SPARE = 64
"""Events and jobs that were called off and not forgotten yet, beside four per rank."""
LOGGED = 1 << 14
"""Rows of a log before it is taken over."""
FIELDS = 16
"""Numbers of a rank in lockstep."""
LINE = 8
"""Numbers of a line of the cache, at which each row of `fields` begins."""
APART = 136
"""Numbers between two rows of `fields`: a power of two would leave them few places in the cache."""
MOST_SHOWN, CACHED = 256, 1 << 20
"""Steps of each rank that tables may show, a power of two, and their bytes if ranks are many."""
AHEAD = 8
"""Noise factors of a rank that are drawn at once; as in noise.c."""
KEPT = 4
"""Gradients that a rank may keep before more room is made."""


class Memory:
    """Every table of the library as an attribute, an array that lives as long as this object.

    A table is replaced by assigning another array; native code then finds that one.  `job` is the
    job's own record, the only row of `record`, whose `address` native functions take.

    world_size: ranks.
    keep_steps, keep_fates: whether there are logs of steps and of gradients.
    """

    held: Any
    kept: Any
    fate_log: Any
    _dtypes: Mapping[str, np.dtype[Any]] = MappingProxyType({})

    def __init__(
        self,
        library: Library,
        world_size: int,
        keep_steps: bool,
        keep_fates: bool,
    ) -> None:
        n, log = world_size, max(LOGGED, 4 * world_size)
        self.record = np.zeros(1, library.job)
        self.job, self.address = self.record[0], self.record.ctypes.data
        self._dtypes = library.tables
        self.native = library.functions
        sizes = {
            "closings": n + 1, "events": 4 * n + SPARE, "jobs": 4 * n + SPARE,
            "kept": (n, KEPT), "pieces": 0, "times": 0, "values": 0, "seconds_of": 1,
            "durations": 0, "factors": 0, "quantiles": 0, "marginal": 0, "segments": (2, n),
            "passed_times": 0, "passed_versions": 0, "passed_samples": 0, "passed_steps": 0,
            "held": 0, "update_log": LOGGED, "member_log": log,
            "step_log": log if keep_steps else 0, "fate_log": log * (KEPT + 1) if keep_fates else 0,
            **{f"shown_{name}": (WINDOW, n) for name in SHOWN},
        }  # fmt: skip
        for name, dtype in library.tables.items():
            setattr(self, name, np.zeros(sizes.get(name, n), dtype))
        self.job["ring"] = WINDOW
        self.job["stride"] = stride = (n + APART) // LINE * LINE
        room = np.zeros(FIELDS * stride + LINE)
        self.fields = room[-room.ctypes.data // room.itemsize % LINE :]
        ranks = "quorum", "closing", "link", "puller", "relay", "parent", "aboard"
        for name in ("ticket", "mark", *ranks):
            self.ranks[name] = -1
        self.ranks["last_amp"] = self.ranks["clean_step"] = -1
        self.ranks["stretch"] = self.ranks["launch"] = -1
        self.ranks["net"] = self.ranks["delay"] = -1
        self.ranks["due"] = np.nan
        self.ranks["idle"] = 1
        self.closings["head"] = np.append(np.arange(1, len(self.closings)), -1)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._dtypes:
            assert value.dtype == self._dtypes[name]
            assert value.flags.c_contiguous
            self.job[name], self.job[f"{name}_size"] = value.ctypes.data, value.size

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no table {name}")

    def blank_windows(self) -> None:
        """Fill the windows of the views with NaN. A run without reviews never writes to them."""
        for table in (self.shown_local_times, self.shown_communication, self.shown_batch):
            table[:] = np.nan

    def look_ahead(self) -> int:
        """Make room for reviews that are passed by; for how many."""
        n, steps = len(self.ranks), sum(getattr(self, f"shown_{name}").itemsize for name in SHOWN)
        ring = MOST_SHOWN
        while ring > 2 * WINDOW and ring * n * steps > CACHED:
            ring //= 2
        self.job["ring"], most = ring, ring - WINDOW
        shown = {f"shown_{name}": getattr(self, f"shown_{name}") for name in SHOWN}
        for name in shown:
            setattr(self, name, np.zeros((ring, n), self._dtypes[name]))
        self.blank_windows()
        self.show(shown)
        for name, shape in (("times", most), ("versions", most), ("samples", most),
                            ("steps", (most, n))):  # fmt: skip
            setattr(self, f"passed_{name}", np.zeros(shape, self._dtypes[f"passed_{name}"]))
        return most

    def show(self, windows: Mapping[str, Any]) -> None:
        """Put the last steps of other windows into these, which may have other numbers of rows."""
        ranks = np.arange(len(self.ranks))
        steps = self.known - np.arange(1, WINDOW + 1)[:, np.newaxis]
        for name, rows in windows.items():
            table = getattr(self, name)
            table[steps % len(table), ranks] = rows[steps % len(rows), ranks]

    def hold(self) -> None:
        """Note the state of the job, for `go_back`."""
        needed = self.native.held_bytes(self.address)
        if needed > len(self.held):
            self.held = np.empty(needed, np.int8)
        self.native.hold(self.address)

    def make_room(self) -> None:
        """Let ranks keep twice as many gradients."""
        self.kept = np.concatenate([self.kept, np.zeros_like(self.kept)], axis=1)
        if len(self.fate_log):
            self.fate_log = np.resize(self.fate_log, 2 * len(self.fate_log))
