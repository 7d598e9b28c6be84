"""Keeps what would help up to date beside a run: at most once a minute, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from simstrag.analysis.monitor.placement import AdvicePlacement, place
from simstrag.analysis.monitor.snapshot import AdviceSoFar
from simstrag.processes.children import start_module
from simstrag.records.record import Record

PERIOD = 60.0
"""Least seconds between two starts."""
FEWEST = 20
"""Least steps of the first advice."""


class Advisor:
    """Starts the process of advice when new steps came, and keeps what it said.

    folders: of the run, by whose open files its ranks are found.
    advice: the latest; None before the first.
    note: why there is none, or where it runs.
    """

    def __init__(self, folders: Sequence[Path], gpu_price: float | None) -> None:
        self._folders, self._price = folders, gpu_price
        self.advice: AdviceSoFar | None = None
        self.note = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._of, self._restarts, self._waits = (-1, -1), 0, False
        self._started = float("-inf")

    @property
    def is_busy(self) -> bool:
        """Whether it is computed now."""
        return self._process is not None and self._process.poll() is None

    def forget(self, restarts: int) -> None:
        """Forget advice on an earlier start of the run. restarts: how often it began anew."""
        if restarts != self._restarts:
            self.close()
            self._of, self._restarts = (-1, -1), restarts
            self.advice, self.note = None, ""

    def is_due(self, steps: int, last: int, is_over: bool = False) -> bool:
        """Whether advice on steps up to `last` is to be begun: they are new, and enough.

        is_over: whether the run is over, for which advice waits where it may need a core of it.
        """
        is_new = last > self._of[1] and steps >= FEWEST
        is_time = time.monotonic() - self._started >= PERIOD or (is_over and self._waits)
        return self._process is None and is_new and is_time

    def begin(self, record: Record, is_over: bool) -> None:
        """Begin to compute advice on a record, unless a core that trains may be needed for it.

        is_over: whether the run is over, so that no core trains.
        """
        self._started = time.monotonic()
        found = AdvicePlacement((), "") if is_over else place(self._folders)
        self.note = found.note
        self._waits = not found.cores and not is_over
        if self._waits:
            return
        self._of = int(record.step[0]), int(record.step[-1])
        module = "simstrag.analysis.monitor.advice_process"
        try:
            self._process = start_module(module, record, self._price, found.cores)
        except OSError as error:
            self.note = f"what would help was not computed: {error.strerror}"

    def take(self) -> None:
        """Take in what a process that has ended said."""
        if self._process is None or self._process.poll() is None:
            return
        assert self._process.stdout is not None
        with self._process.stdout as out:
            text = out.read()
        code, self._process = self._process.returncode, None
        try:
            found = json.loads(text)
        except ValueError:
            self.note = f"what would help was not computed: its process ended with code {code}"
            return
        lines = tuple((label, said) for label, said in found["lines"])
        self.advice = AdviceSoFar(
            lines, found["action"], found["assumed"], *self._of, time.time()
        )  # fmt: skip

    def wait(self) -> None:
        """Wait for the process, and take in what it said."""
        if self._process is not None:
            self._process.wait()
            self.take()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None
