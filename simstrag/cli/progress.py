"""Progress bars on stderr, shown only where stderr is a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simstrag.cli.console import capture_warnings, console, warn
from simstrag.cli.output import mode
from simstrag.documents.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

    from simstrag.scenario.scenario import Scenario

LONG = 7 * 24 * 3600.0
"""Seconds over which Rich averages speed: one run may take minutes."""
FOUND = "found finished"
"""The item of those that an earlier command had finished."""
PAUSE = 0.1
"""Seconds between two updates of a run's bar."""
LOOK = 1.0
"""Seconds between two looks at the journal of ranks."""

OnUpdate = Callable[[float, int, float | None], None]


class Count:
    """The bar of finished items, called as (done, total, last item).

    after: seconds of the work that follows the last item, which counts as one more; 0 for none.

    The time left is the mean of the items finished so far, those found finished apart, times the
    items to come.
    """

    def __init__(self, bar: Progress, task: TaskID, after: float) -> None:
        self._bar, self._task, self._after = bar, task, after
        self._begin, self._found = time.monotonic(), 0

    def __call__(self, done: int, total: int, item: str) -> None:
        if item == FOUND:
            self._begin, self._found = time.monotonic(), done
        fresh = done - self._found
        left = None
        if fresh:
            left = self._after + (time.monotonic() - self._begin) / fresh * (total - done)
        self._bar.update(
            self._task, completed=done, total=total + (self._after > 0),
            description=printable(item), left=describe_time_left(left) if left else "",
        )  # fmt: skip

    def begin_last(self, item: str) -> None:
        """All items are finished; the work after them begins."""
        self._bar.update(
            self._task, description=printable(item), left=describe_time_left(self._after)
        )


@contextmanager
def show_count(after: float = 0.0) -> Iterator[Count]:
    """A bar of finished items; yields what updates it. after: see `Count`."""
    from rich.progress import MofNCompleteColumn

    with _task("reading", MofNCompleteColumn()) as (bar, task):
        yield Count(bar, task, after)


@contextmanager
def show_run(name: str, scenario: Scenario) -> Iterator[OnUpdate | None]:
    """A bar of one simulated run; yields the `on_update` of `simulate`, or None if hidden."""
    from rich.progress import TaskProgressColumn

    with _task(name, TaskProgressColumn(), total=1.0) as (bar, task):
        shown, updates = time.monotonic(), 0
        limits = (scenario.updates, scenario.sample_target, scenario.progress_target)

        def on_update(now: float, samples: int, progress: float | None) -> None:
            nonlocal shown, updates
            updates += 1
            if time.monotonic() - shown < PAUSE:
                return
            shown = time.monotonic()
            reached = (updates, samples, progress or 0.0)
            bar.update(
                task,
                completed=min(  # by the farthest limit
                    done / limit
                    for done, limit in zip(reached, limits, strict=True)
                    if limit is not None
                ),
                description=printable(f"{name}, {now:,.6g} s simulated"),
                left=describe_time_left(bar.tasks[0].time_remaining),
            )

        yield None if bar.disable else on_update


@contextmanager
def show_seconds() -> Iterator[Callable[[float, float, str], None]]:
    """A bar of seconds; yields `update(used, at most, next item)`.

    `update` draws the bar, because a thread would disturb the timing.
    """
    from rich.progress import TaskProgressColumn

    with _task("starting", TaskProgressColumn(), thread=False) as (bar, task):
        bar.refresh()

        def update(used: float, total: float, item: str) -> None:
            left = describe_time_left(total - used).replace("about", "at most")
            bar.update(
                task, completed=used, total=total, description=printable(item), refresh=True,
                left=left if used < total else "",
            )  # fmt: skip

        yield update


@contextmanager
def show_training(folder: Path, batch: int, total: int) -> Iterator[None]:
    """A bar of ranks that train: seconds so far, the time left, samples computed.

    folder: of the training.
    batch: samples of a gradient.
    """
    from rich.progress import TimeElapsedColumn

    from simstrag.ddp.journal.run_from_journal import SampleCount

    begin = "starting the ranks, and timing their precisions"
    with _task(begin, TimeElapsedColumn(), thread=False) as (bar, task):
        computed, ended = SampleCount(folder, batch), threading.Event()

        def look() -> None:
            first, began = 0, 0.0
            while not ended.wait(LOOK):
                samples, left = min(computed.update(), total), None
                if samples < first or not first:  # a start, also after a failure
                    first, began = samples, time.monotonic()
                elif samples > first:
                    left = (time.monotonic() - began) / (samples - first) * (total - samples)
                bar.update(
                    task, completed=samples, total=total if samples else None, refresh=True,
                    description=f"{samples} of {total} samples computed" if samples else begin,
                    left=describe_time_left(left),
                )  # fmt: skip

        watch = threading.Thread(target=look, daemon=True)
        if not bar.disable:
            bar.refresh()
            watch.start()
        try:
            yield
        finally:
            ended.set()
            if not bar.disable:
                watch.join()


@contextmanager
def show_spinner(name: str) -> Iterator[None]:
    """A spinner with the seconds so far, for work of unknown length."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn("line"), TimeElapsedColumn(), TextColumn("{task.description}")]
    with _bar(columns) as bar:
        bar.add_task(printable(name), total=None)
        yield


@contextmanager
def _task(
    name: str, amount: ProgressColumn, total: float | None = None, thread: bool = True
) -> Iterator[tuple[Progress, TaskID]]:
    """A bar of one task: bar, `amount`, the time left, and the current item."""
    from rich.progress import BarColumn, TextColumn

    texts = TextColumn("{task.fields[left]}"), TextColumn("{task.description}", markup=False)
    with _bar([BarColumn(), amount, *texts], thread) as bar:
        yield bar, bar.add_task(printable(name), total=total, left="")


@contextmanager
def _bar(columns: list[ProgressColumn], thread: bool = True) -> Iterator[Progress]:
    from rich.progress import Progress

    out = console(stderr=True)
    with Progress(
        *columns,
        console=out,
        transient=True,
        auto_refresh=thread,
        disable=mode().quiet or not out.is_terminal,
        speed_estimate_period=LONG,
    ) as bar:
        yield bar


def warn_of_hours(scenario: Scenario, names: Sequence[str], runs: int, jobs: int | None) -> None:
    """Say on stderr, before they start, that runs would take more than an hour."""
    from simstrag.experiments.forecast import describe_hours
    from simstrag.processes.pool import core_count

    if mode().quiet:
        return
    with capture_warnings():  # the runs themselves give them, too
        text = describe_hours(scenario, names, runs, jobs or core_count())
    warn([text] if text else [])


def warn_of_hours_of_study(study: Path, seeds: int | None, parts: int, jobs: int | None) -> None:
    """The same of a study, of which one of `parts` runs here; seeds: instead of the study's."""
    from simstrag.experiments.forecast import describe_hours_of_study
    from simstrag.experiments.study import Study
    from simstrag.processes.pool import core_count

    if mode().quiet:
        return
    with capture_warnings():
        points = [point.scenario for point in Study.read(study).under(seeds).points()]
        text = describe_hours_of_study(points, (jobs or core_count()) * parts)
    warn([text] if text else [])


def describe_time_left(seconds: float | None) -> str:
    """A time left, rounded; empty if it is not known.

    >>> describe_time_left(None), describe_time_left(7), describe_time_left(9000)
    ('', 'about 10 s left', 'about 2.5 h left')
    """
    if seconds is None:
        return ""
    if seconds < 100:
        return f"about {max(10 * round(seconds / 10), 10)} s left"
    if seconds < 6000:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"
