"""Generated fail-slow episodes follow the declared distributions, reproducibly."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

from simstrag.errors import InputError
from simstrag.timing import noise
from simstrag.timing.contention import Contention
from simstrag.trace.trace import Trace
from simstrag.traces.describe import episodes
from simstrag.traces.generate import generate, severity_of

LONG = 420.0 * 500


def of_node(trace: Trace, node: int) -> list[tuple[float, ...]]:
    """(start, end, slowdown) of its episodes."""
    found = episodes(trace)
    return list(
        found[found["node"] == node][["start", "end", "max"]].itertuples(index=False, name=None)
    )


@pytest.fixture(scope="module")
def long() -> list[list[tuple[float, ...]]]:
    trace = generate(nodes=8, seconds=LONG, seed=5, severity="uniform:1.2:3")
    return [of_node(trace, node)[:-1] for node in range(8)]  # the last may be cut at the end


def test_the_time_from_a_gap_to_the_next_episode_is_exponential(long: Any) -> None:
    waits = [
        start - end - 60 for rows in long for (_, end, _), (start, _, _) in itertools.pairwise(rows)
    ]
    assert len(waits) > 3500
    assert np.mean(waits) == pytest.approx(240, rel=0.05)
    assert stats.kstest(waits, stats.expon(scale=240).cdf).pvalue > 0.01


def test_durations_are_normal(long: Any) -> None:
    lengths = [end - start for rows in long for start, end, _ in rows]
    assert stats.kstest(lengths, stats.norm(120, 20).cdf).pvalue > 0.01


def test_slowdowns_are_drawn_once_per_episode_from_the_declared_distribution(long: Any) -> None:
    slowdowns = [slowdown for rows in long for *_, slowdown in rows]
    assert stats.kstest(slowdowns, stats.uniform(1.2, 1.8).cdf).pvalue > 0.01


def test_a_node_is_slowed_for_two_sevenths_of_its_time(long: Any) -> None:
    slowed = sum(end - start for rows in long for start, end, _ in rows)
    assert slowed / (8 * LONG) == pytest.approx(2 / 7, rel=0.03)


def test_nodes_are_independent(long: Any) -> None:
    grid = np.arange(0, LONG, 60.0)
    busy = np.zeros((8, len(grid)))
    for node, rows in enumerate(long):
        for start, end, _ in rows:
            busy[node] += (start <= grid) & (grid < end)
    correlations = np.corrcoef(busy)[np.triu_indices(8, 1)]
    assert np.abs(correlations).max() < 0.12  # episodes span about 7 points of 3500
    assert abs(correlations.mean()) < 0.03


def test_a_lognormal_severity_has_the_declared_median_and_spread() -> None:
    draw = severity_of("lognormal:1.5:0.8")
    rng = noise.stream(0, 0)
    logs = np.log([draw(rng) - 1 for _ in range(20_000)])
    assert np.median(logs) == pytest.approx(np.log(0.5), abs=0.03)
    assert logs.std() == pytest.approx(0.8, rel=0.02)


def test_a_fixed_severity_is_always_the_same() -> None:
    assert {row.value for row in generate(4, 5000, 0, severity="fixed:3").rows} == {1.0, 3.0}


def test_a_duration_below_a_second_is_raised_to_a_second() -> None:
    rows = of_node(generate(1, 50_000, 0, duration_mean=1, duration_sd=30), 0)[:-1]
    lengths = [end - start for start, end, _ in rows]
    assert min(lengths) == pytest.approx(1, abs=1e-9)
    assert sum(length < 1.001 for length in lengths) / len(lengths) == pytest.approx(0.5, abs=0.1)


def test_without_spread_every_episode_has_the_declared_duration_and_gap() -> None:
    rows = of_node(generate(1, 20_000, 0, duration_sd=0, mean_interarrival=1e-9, gap=30), 0)
    for (start, end, _), (following, *_) in itertools.pairwise(rows):
        assert end - start == pytest.approx(120)
        assert following - end == pytest.approx(30, abs=1e-6)


def test_every_node_begins_clean_and_has_a_row_at_the_end() -> None:
    trace = generate(nodes=20, seconds=300, seed=3)
    assert trace.nodes == tuple(range(20))
    assert trace.end == 300
    for node in range(20):
        series = trace.series(node, "gpu", "slowdown")
        assert (series[0], series[-1]) == ((0.0, 1.0), (300.0, 1.0))


def test_an_episode_that_would_outlast_the_trace_ends_with_it() -> None:
    cut = [rows[-1] for node in range(20) if (rows := of_node(generate(20, 300, 3), node))]
    assert any(end == 300 for _, end, _ in cut)
    assert all(end <= 300 for _, end, _ in cut)


def test_a_seed_draws_what_it_drew_in_any_process() -> None:
    """Recorded before there was a second generator; a study that was drawn can be drawn again."""
    assert generate(4, 5000, 9).sha256 == (
        "5d00e1cb167029f52455319b204f6fc8c890b0457a2156899a3a091477371321"
    )
    assert generate(4, 5000, 9).rows != generate(4, 5000, 10).rows


def test_more_nodes_leave_the_others_as_they_are() -> None:
    few, many = generate(2, 5000, 9), generate(7, 5000, 9)
    assert [row for row in many.rows if row.node < 2] == list(few.rows)


def test_a_longer_trace_begins_with_the_shorter_one() -> None:
    short, long = generate(3, 5000, 9), generate(3, 9000, 9)
    assert [r for r in long.rows if r.time < 4800] == [r for r in short.rows if r.time < 4800]


def test_the_severity_does_not_change_when_episodes_come() -> None:
    times = [
        [row.time for row in generate(3, 5000, 9, severity=text).rows]
        for text in ("fixed:2", "uniform:1.2:3", "lognormal:1.5:0.8")
    ]
    assert times[0] == times[1] == times[2]


def test_its_luck_is_not_that_of_the_step_noise() -> None:
    """Noise of rank k and contention of node k must not go together under one seed."""
    first = generate(1, 5000, 9, gap=0).series(0, "gpu", "slowdown")[1][0] / 240
    assert first != pytest.approx(noise.stream(9, 0).standard_exponential())


@pytest.mark.parametrize("resource", ["gpu", "host", "net", "step"])
def test_the_resource_is_the_one_asked_for(resource: str) -> None:
    trace = generate(2, 5000, 0, resource=resource)
    assert {(row.resource, row.kind) for row in trace.rows} == {(resource, "slowdown")}
    assert Contention.of(trace, workers=2).of_rank(0, resource).values[1] == 2.0


def test_the_source_says_how_to_make_it_again() -> None:
    assert generate(2, 600, 7).source == (
        "generate(nodes=2, seed=7, resource=gpu, seconds=600, mean_interarrival=240.0, "
        "duration_mean=120.0, duration_sd=20.0, gap=60.0, severity=fixed:2)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, "generate: nodes must be 1 or more, not 0"),
        ({"seconds": 0}, "generate: seconds must be positive seconds, not 0"),
        ({"seconds": float("inf")}, "generate: seconds must be positive seconds, not inf"),
        ({"seed": -1}, "generate: seed must be 0 or more and below 2**64, not -1"),
        (
            {"resource": "gpus"},
            "generate: unknown resource 'gpus'. Did you mean 'gpu'?; allowed: gpu",
        ),
        ({"mean_interarrival": 0}, "generate: mean_interarrival must be positive seconds, not 0"),
        ({"duration_mean": -3}, "generate: duration_mean must be positive seconds, not -3"),
        ({"duration_sd": -1}, "generate: duration_sd must be 0 or more seconds, not -1"),
        ({"gap": float("nan")}, "generate: gap must be 0 or more seconds, not nan"),
        (
            {"severity": "fix:2"},
            "severity 'fix:2': there is no 'fix'. Did you mean 'fixed'?; allowed",
        ),
        (
            {"severity": "fixed"},
            "severity 'fixed': give slowdown; allowed: fixed:slowdown, uniform:",
        ),
        ({"severity": "uniform:2"}, "severity 'uniform:2': give low and high; allowed: "),
        ({"severity": "fixed:two"}, "severity 'fixed:two': slowdown 'two' is not a number"),
        ({"severity": "fixed:0.5"}, "severity 'fixed:0.5': slowdown must be 1 or more, not 0.5"),
        ({"severity": "fixed:nan"}, "severity 'fixed:nan': slowdown must be 1 or more, not nan"),
        ({"severity": "uniform:3:2"}, "severity 'uniform:3:2': low 3 is above high 2"),
        ({"severity": "lognormal:2:-1"}, "severity 'lognormal:2:-1': sigma must be 0 or more, not"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        generate(**{"nodes": 2, "seconds": 600, "seed": 0} | arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
