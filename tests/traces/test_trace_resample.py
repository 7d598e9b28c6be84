"""Resampled traces keep what a block holds: changes in time, and nodes that go together."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from simstrag.errors import InputError
from simstrag.trace.trace import Trace
from simstrag.traces.resample import (
    autocorrelation,
    default_block,
    mean_correlation,
    resample,
    sample,
)

END = 4000.0
GRAIN = 10.0


def correlated(seed: int = 0, nodes: int = 4) -> Trace:
    """Slowdowns every 10 s: half an AR(1) that all nodes share, and half one of each node's own.

    The autocorrelation after 10 s is 0.9, and the correlation of two nodes 0.5, but for chance.
    """
    rng = np.random.default_rng(seed)
    n = int(END / GRAIN)

    def slow() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        found, now = np.empty(n), rng.standard_normal()
        for k in range(n):
            now = 0.9 * now + np.sqrt(1 - 0.81) * rng.standard_normal()
            found[k] = now
        return found

    together = slow()
    values = [1 + np.exp(0.3 * (together + slow())) for _ in range(nodes)]
    rows = [(k * GRAIN, node, "gpu", "slowdown", v[k]) for node, v in enumerate(values)
            for k in range(n)]  # fmt: skip
    return Trace.from_rows([*rows, (END, 0, "gpu", "slowdown", 1.0)])


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return correlated()


def values(trace: Trace) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return sample(trace, "gpu", "slowdown", GRAIN)


@pytest.fixture(scope="module")
def long(recorded: Trace) -> Trace:
    return resample(recorded, workers=8, seconds=50 * END, block=400, seed=1).trace


@pytest.mark.parametrize("lag", [1, 3, 8])
def test_the_autocorrelation_is_the_recorded_one_times_the_share_within_a_block(
    lag: int, recorded: Trace, long: Trace
) -> None:
    """Of pairs so far apart 1 - lag/block lie in one block, the others in unrelated ones."""
    expected = autocorrelation(values(recorded), lag) * (1 - lag * GRAIN / 400)
    assert autocorrelation(values(long), lag) == pytest.approx(expected, abs=0.05)
    assert autocorrelation(values(recorded), lag) > 0.3  # so that it is no comparison of nothing


def test_nodes_of_a_set_go_together_as_recorded_and_sets_do_not(
    recorded: Trace, long: Trace
) -> None:
    found = values(long)
    for own in (found[:4], found[4:]):
        assert mean_correlation(own) == pytest.approx(mean_correlation(values(recorded)), abs=0.05)
    across = np.asarray(np.corrcoef(found))[:4, 4:]
    assert abs(across.mean()) < 0.05
    assert mean_correlation(values(recorded)) > 0.3


def test_nodes_drawn_each_by_itself_would_not_go_together(recorded: Trace) -> None:
    """What the test before would see if a set did not share its blocks."""
    alone = []
    for node in recorded.nodes:
        one = Trace.from_rows([row for row in recorded.rows if row.node == node])
        drawn = resample(one, workers=1, seconds=50 * END, block=400, seed=node).trace
        alone.append(values(drawn)[0][: int(49 * END / GRAIN)])
    assert abs(mean_correlation(np.array(alone))) < 0.05


def test_short_blocks_would_lose_the_autocorrelation(recorded: Trace) -> None:
    drawn = resample(recorded, workers=4, seconds=50 * END, block=20, seed=1).trace
    assert autocorrelation(values(drawn), 3) == pytest.approx(0, abs=0.05)


def test_means_and_spreads_are_those_recorded(recorded: Trace, long: Trace) -> None:
    before, after = values(recorded), values(long)
    for node in range(8):
        assert after[node].mean() == pytest.approx(before[node % 4].mean(), rel=0.03)
        assert after[node].std() == pytest.approx(before[node % 4].std(), rel=0.08)


def test_a_block_is_the_record_itself_to_the_moment() -> None:
    rows = [(0.125, 0, "gpu", "slowdown", 2.0), (0.5, 0, "net", "slowdown", 5.0),
            (7.3, 0, "gpu", "slowdown", 3.0), (10.0, 0, "gpu", "slowdown", 1.0)]  # fmt: skip
    trace = Trace.from_rows(rows)
    made = resample(trace, workers=1, seconds=10, block=10, seed=4).trace
    for k in (0, 1):
        before, after = trace.histories.pieces()[k], made.histories.pieces()[k]
        # The moments of change, and what holds after each, are the recorded ones turned around.
        own = [(t % 10.0, v) for t, v in zip(before.times, before.values, strict=True) if t < 10]
        found = list(zip(after.times, after.values, strict=True))[1:]
        start = next(
            s for t, v in own for at, value in found[:1] if v == value and (s := (t - at) % 10.0)
        )
        inside = [(round((start + t) % 10.0, 9), v) for t, v in found if t < 10]
        assert set(inside) <= {(round(t, 9), v) for t, v in own}
        assert len(inside) >= len(own) - 1  # the one in force at the start stands at 0


def test_durations_are_drawn_in_blocks_of_steps_for_all_nodes_at_once() -> None:
    rows = [(k * 2.0, node, "step", "duration", 1.0 + k + 0.25 * node) for k in range(50)
            for node in (0, 1)]  # fmt: skip
    made = resample(Trace.from_rows(rows), workers=4, seconds=400, block=20, seed=2).trace
    drawn = sample(made, "step", "duration", 1.0)
    assert drawn.shape == (4, 200)
    assert np.array_equal(drawn[1] - drawn[0], np.full(200, 0.25))
    inside = np.diff(drawn[0].reshape(-1, 10), axis=1)
    assert set(np.unique(inside)) == {1.0, -49.0}  # the next recorded step, or the first again
    assert not np.array_equal(drawn[0], drawn[2])


def test_a_further_set_and_more_seconds_leave_what_was_there(recorded: Trace) -> None:
    few = resample(recorded, workers=4, seconds=3000, block=300, seed=7).trace
    more = resample(recorded, workers=8, seconds=6000, block=300, seed=7).trace
    assert [row for row in more.rows if row.node < 4 and row.time < 3000] == [
        row for row in few.rows if row.time < 3000
    ]
    assert few.rows != resample(recorded, 4, 3000, 300, seed=8).trace.rows


def test_a_last_set_that_is_not_whole_draws_its_nodes(recorded: Trace) -> None:
    made = resample(recorded, workers=6, seconds=3000, block=300).trace
    assert made.nodes == (0, 1, 2, 3, 4, 5)
    assert made.end == 3000


def test_the_default_block_is_ten_correlation_times() -> None:
    """An AR(1) with 0.9 per 10 s falls to 1/e in about 95 s; and the record is 4000 s long."""
    assert 500 < default_block(correlated(seed=3)) <= 2000


def test_a_resampled_trace_says_so_and_what_it_kept(recorded: Trace) -> None:
    made = resample(recorded, workers=8, seconds=8000)
    assert made.origin == "resampled"
    text = made.page("more")
    assert "nothing here was recorded as it stands" in text
    assert recorded.sha256 in text
    assert "autocorrelation after" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be 1 or more, not 0"),
        ({"seconds": 0.0}, "seconds must be positive, not 0"),
        ({"block": 0.0}, "a block must be longer than 0 s and no longer than the trace, 4000 s"),
        ({"block": 5000.0}, "not 5000"),
        ({"seed": -1}, "seed must be 0 or more"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: dict[str, float], message: str, recorded: Trace
) -> None:
    with pytest.raises(InputError) as caught:
        resample(recorded, **{"workers": 4, "seconds": 600.0} | arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_trace_of_constants_has_no_time_to_draw_from() -> None:
    with pytest.raises(InputError, match="has no extent in time"):
        resample(Trace.from_rows([(0, 0, "gpu", "slowdown", 2.0)]), workers=2, seconds=10)


def test_a_short_record_that_is_made_very_long_needs_little_memory() -> None:
    """What is looked at for its correlation does not grow with what is drawn."""
    rows = [(0.3, 0, "gpu", "slowdown", 2.0), (0.6, 0, "gpu", "slowdown", 1.0)]
    tracemalloc.start()
    resample(Trace.from_rows(rows), workers=8, seconds=2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_only_the_first_whole_set_keeps_the_names_of_its_nodes(recorded: Trace) -> None:
    named = replace(recorded, names={0: "gpu-a", 3: "gpu-d"})
    assert resample(named, 8, 100, 50).trace.names == {0: "gpu-a", 3: "gpu-d"}
    assert resample(named, 3, 100, 50).trace.names == {}
