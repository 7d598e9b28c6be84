"""The two-state generator: memoryless times, the long-run share from the start on, its own luck."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from simstrag.errors import InputError
from simstrag.trace.trace import Trace
from simstrag.traces.describe import episodes
from simstrag.traces.generate import generate, on_off
from simstrag.traces.resample import sample

LONG = 360.0 * 500


@pytest.fixture(scope="module")
def long() -> Trace:
    return on_off(nodes=8, seconds=LONG, seed=5, severity="uniform:1.2:3")


def test_times_slowed_and_clean_are_exponential(long: Trace) -> None:
    lengths: dict[bool, list[float]] = {True: [], False: []}
    for node in range(8):
        rows = long.series(node, "gpu", "slowdown")[:-1]  # the last turn is cut by the end
        for (start, value), (end, _) in itertools.pairwise(rows):
            lengths[value > 1].append(end - start)
    assert min(map(len, lengths.values())) > 3500
    assert stats.kstest(lengths[True], stats.expon(scale=120).cdf).pvalue > 0.01
    assert stats.kstest(lengths[False], stats.expon(scale=240).cdf).pvalue > 0.01


def test_a_third_of_the_nodes_is_slowed_at_the_start_and_at_any_time() -> None:
    trace = on_off(nodes=6000, seconds=1000, seed=3)
    values = sample(trace, "gpu", "slowdown", every=1.0)[:, [0, 500]]
    assert np.mean(values > 1, axis=0) == pytest.approx([1 / 3, 1 / 3], abs=0.02)


def test_each_time_slowed_draws_its_own_slowdown(long: Trace) -> None:
    assert stats.kstest(episodes(long)["max"], stats.uniform(1.2, 1.8).cdf).pvalue > 0.01


def test_more_nodes_a_longer_trace_and_another_severity_leave_the_rest() -> None:
    short = on_off(2, 5000, 9)
    more = on_off(7, 9000, 9, severity="lognormal:1.5:0.8")
    times = [[r.time for r in t.rows if r.node < 2 and r.time < 5000] for t in (short, more)]
    assert times[0] == times[1]


def test_its_luck_is_not_that_of_the_other_generator() -> None:
    one, other = on_off(1, 9000, 1), generate(1, 9000, 1)
    assert not {row.time for row in one.rows[1:-1]} & {row.time for row in other.rows[1:-1]}


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="mean_off must be positive seconds, not 0"):
        on_off(2, 600, 0, mean_off=0)
    with pytest.raises(InputError, match="unknown resource 'cpu'"):
        on_off(2, 600, 0, resource="cpu")
