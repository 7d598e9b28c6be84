"""Children forked from a process that has torch: in a test their start costs milliseconds.

A module of tests that imports `warm_children` has them in place of the processes of `Children`,
which start in `test_calibrate`.  One process runs all these modules.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import SimpleNamespace
from typing import Any

import pytest

from simstrag.processes import children

__all__ = ["warm_children"]

IMPORTED = (
    "torch._dynamo", "torch.nn.parallel", "torch.profiler", "pytest", "psutil",
    "simstrag.ddp.wrapping", "simstrag.calibration.benches.training_ranks",
)  # fmt: skip
"""Modules that a child has from the start: an optimizer imports the first, for a second."""


class WarmContext(ForkServerContext):
    """The context of `Children`, with its processes forked."""

    def Process(  # type: ignore[override]
        self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool
    ) -> ForkServerProcess:
        return ForkServerProcess(target=_run, args=(target, args), daemon=daemon)


def _run(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    function, _, *others = args
    target(function, os.getppid(), *others)


@pytest.fixture(scope="module", autouse=True)
def warm_children() -> Iterator[None]:
    """Fork the processes of `Children`, which die with the process that they are forked from."""
    context = WarmContext()
    multiprocessing.get_context("forkserver").set_forkserver_preload([*IMPORTED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            children, "multiprocessing", SimpleNamespace(get_context=lambda method: context)
        )
        yield
