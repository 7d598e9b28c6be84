"""Progress on stderr, where somebody watches; silent elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from simstrag.cli.console import console

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from simstrag.scenario.scenario import Scenario

__all__ = ["counted", "in_words", "measured", "simulated", "waiting"]

LONG = 7 * 24 * 3600.0
"""Seconds over which speed is judged: runs may take minutes each."""
PAUSE = 0.1
"""Seconds between two looks at a run."""

OnUpdate = Callable[[float, int, float | None], None]


@contextmanager
def counted(quiet: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with done/total, the time left, and what was done last: gives what tells it so."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    said = TextColumn("{task.fields[left]}"), TextColumn("{task.description}", markup=False)
    with _bar([BarColumn(), MofNCompleteColumn(), *said], quiet) as bar:
        task = bar.add_task("reading", total=None, left="")

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)
            bar.update(task, left=in_words(bar.tasks[0].time_remaining) if done < total else "")

        yield show


@contextmanager
def simulated(what: str, scenario: Scenario, quiet: bool = False) -> Iterator[OnUpdate | None]:
    """A bar for one run: how far it is, the time left, and the seconds that it has simulated.

    Gives what `simulate` is to call after every update; None where nobody watches.
    """
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn

    said = TextColumn("{task.fields[left]}"), TextColumn("{task.description}", markup=False)
    with _bar([BarColumn(), TaskProgressColumn(), *said], quiet) as bar:
        task, shown, updates = bar.add_task(what, total=1.0, left=""), time.monotonic(), 0

        def show(now: float, samples: int, progress: float | None) -> None:
            nonlocal shown, updates
            updates += 1
            if time.monotonic() - shown < PAUSE:
                return
            shown = time.monotonic()
            bar.update(
                task,
                completed=_far(scenario, updates, samples, progress),
                description=f"{what}, {now:,.6g} s simulated",
                left=in_words(bar.tasks[0].time_remaining),
            )

        yield None if bar.disable else show


def _far(scenario: Scenario, updates: int, samples: int, progress: float | None) -> float:
    """The share of a run that is done: of what ends it, that which is farthest away."""
    ends = (
        (updates, scenario.updates),
        (samples, scenario.sample_target),
        (progress or 0.0, scenario.progress_target),
    )
    return min(done / end for done, end in ends if end is not None)


@contextmanager
def measured(quiet: bool = False) -> Iterator[Callable[[float, float, str], None]]:
    """A bar of seconds: gives what tells it those used, those to be used, and what comes next.

    The total is a bound: what knows enough ends before.  Drawn when it is told, and not by a
    thread meanwhile, which would take its time from what is being timed.
    """
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn

    said = TextColumn("{task.fields[left]}"), TextColumn("{task.description}", markup=False)
    with _bar([BarColumn(), TaskProgressColumn(), *said], quiet, by_itself=False) as bar:
        task = bar.add_task("starting", total=None, left="")
        bar.refresh()

        def show(used: float, total: float, what: str) -> None:
            left = in_words(total - used).replace("about", "at most") if used < total else ""
            bar.update(task, completed=used, total=total, description=what, left=left, refresh=True)

        yield show


@contextmanager
def waiting(what: str, quiet: bool = False) -> Iterator[None]:
    """A sign of life with the seconds so far, for work that nobody can see the end of."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn("line"), TimeElapsedColumn(), TextColumn("{task.description}")]
    with _bar(columns, quiet) as bar:
        bar.add_task(what, total=None)
        yield


@contextmanager
def _bar(columns: list[ProgressColumn], quiet: bool, by_itself: bool = True) -> Iterator[Progress]:
    from rich.progress import Progress

    on = console(stderr=True)
    with Progress(
        *columns,
        console=on,
        transient=True,
        auto_refresh=by_itself,
        disable=quiet or not on.is_terminal,
        speed_estimate_period=LONG,
    ) as bar:
        yield bar


def in_words(seconds: float | None) -> str:
    """A time left, as certain as it is.

    >>> in_words(None), in_words(7), in_words(200), in_words(9000)
    ('', 'about 10 s left', 'about 3 min left', 'about 2.5 h left')
    """
    if seconds is None:
        return ""
    if seconds < 100:
        return f"about {max(10 * round(seconds / 10), 10)} s left"
    if seconds < 6000:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"
