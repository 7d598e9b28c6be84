"""Virtual times of asynchronous local SGD against those that google-deepmind/asyncdiloco printed.

Figures: AsyncLocalSGDToyExample.ipynb at e783a30, printed outputs of cells 9 and 14, which are
CC-BY-4.0, Copyright 2023 DeepMind Technologies Limited: four workers of 0.58, 0.75, 1.51 and 3.33
seconds a step, tasks of 20 steps, communication costs nothing.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simstrag import Run, Scenario, simulate
from tests.support.trace_rows import slowed

SECONDS = (0.58, 0.75, 1.51, 3.33)
SYNC = {80: 66.60, 160: 133.20, 240: 199.80, 320: 266.40, 400: 333.00}
ASYNC = {800: 209.00, 1600: 406.40, 2400: 603.80, 3200: 801.40}
"""Virtual seconds by local steps of all workers together."""
STEPS, BATCH = 20, 32


def run_of(seconds: tuple[float, ...], policy: str, steps: int) -> Run:
    """A run of workers of these seconds a step, until all together took so many steps."""
    trace = [slowed(node, each, resource="step") for node, each in enumerate(seconds)]
    return simulate(
        Scenario(
            workers=len(seconds), samples=steps * BATCH, step={"compute": 1.0}, trace=trace,
            allow_speedup=True, learner={"batch": BATCH},
        ),
        policy,
    )  # fmt: skip


def times_by_steps(run: Run) -> dict[int, float]:
    return dict(
        zip((np.array(run.updates["samples"]) // BATCH).tolist(), run.updates["time"], strict=True)
    )


def asynchronous(seconds: tuple[float, ...], grace: float) -> str:
    known = "/".join(map(str, seconds))
    return f"async_local_sgd:h={STEPS},lr=0.07,nesterov=no,grace={grace},seconds={known}"


def test_synchronous_times_are_the_published_ones_to_the_cent() -> None:
    run = run_of(SECONDS, f"diloco:h={STEPS},lr=0.5,momentum=0,nesterov=no", max(SYNC))
    assert {k: round(time, 2) for k, time in times_by_steps(run).items()} == SYNC


def test_asynchronous_times_are_the_published_ones_to_the_cent() -> None:
    found = times_by_steps(run_of(SECONDS, asynchronous(SECONDS, 0.5), max(ASYNC)))
    assert {k: round(found[k], 2) for k in ASYNC} == ASYNC


def clock(seconds: tuple[float, ...], grace: float, syncs: int) -> list[tuple[float, int]]:
    """(time, worker) of each sync by the notebook's rule, in words: all workers start at 0; the
    running one that finishes first syncs if that is at most `grace` after the first sync of the
    open window, or none is open; else the idle ones start at the time of the last sync.
    """
    tasks = [STEPS * each for each in seconds]
    finish, found, opened = dict(enumerate(tasks)), list[tuple[float, int]](), None
    while len(found) < syncs:
        worker = min(finish, key=lambda each: (finish[each], each), default=None)
        if worker is not None and (opened is None or finish[worker] <= opened + grace):
            found.append((finish.pop(worker), worker))
            opened = found[-1][0] if opened is None else opened
        else:
            idle = set(range(len(tasks))) - finish.keys()
            finish |= {each: found[-1][0] + tasks[each] for each in idle}
            opened = None
    return found


@given(
    st.lists(st.floats(0.1, 4.0), min_size=2, max_size=5, unique=True),
    st.floats(0.01, 20.0),
)
def test_the_window_closes_as_the_notebooks_scheduler_closes_it(
    seconds: list[float], grace: float
) -> None:
    speeds = tuple(round(each, 4) for each in seconds)
    wanted = clock(speeds, grace, 40)
    run = run_of(speeds, asynchronous(speeds, grace), 40 * STEPS)
    times = np.array([time for time, _ in wanted])
    found = np.array(run.updates["time"])[: len(times)]
    assert np.allclose(found, times, rtol=1e-9)
