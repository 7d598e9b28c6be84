"""Work under piecewise-constant contention ends where the integral says."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from simstrag.trace.slowdown import ONE, Piecewise, finish
from tests.support.stepwise import at, combine

BURST = Piecewise((0.0, 10.0, 20.0), (1.0, 2.0, 1.0))
LOOP = Piecewise((0.0, 6.0), (1.0, 3.0), period=8.0)  # 2 of every 8 s at a third of the speed


def work_done(start: float, end: float, slowdown: Piecewise) -> float:
    """The integral of the speed, by quadrature that is told where the speed jumps."""
    jumps = {start, end}
    cycles = range(math.ceil(end / slowdown.period)) if slowdown.period < math.inf else [0]
    for cycle in cycles:
        base = cycle * slowdown.period if cycle else 0.0
        jumps |= {base + time for time in slowdown.times if start < base + time < end}
    edges = sorted(jumps)
    return sum(
        integrate.quad(lambda t: 1 / at(slowdown, t), low, high, epsabs=1e-12, epsrel=1e-12)[0]
        for low, high in itertools.pairwise(edges)
    )


@st.composite
def functions(draw: st.DrawFn) -> Piecewise:
    """Step functions with up to six pieces, half of them periodic."""
    gaps = draw(st.lists(st.floats(0.01, 20.0), max_size=5))
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap)
    values = draw(st.lists(st.floats(0.2, 10.0), min_size=len(times), max_size=len(times)))
    period = times[-1] + draw(st.floats(0.01, 20.0)) if draw(st.booleans()) else math.inf
    return Piecewise(tuple(times), tuple(values), period)


@given(functions(), st.floats(0.0, 100.0))
def test_a_value_holds_until_the_next_change_which_is_later(
    slowdown: Piecewise, time: float
) -> None:
    for _ in range(30):
        value, change = slowdown.at(time)
        assert change > time
        if change == math.inf:
            assert value == slowdown.values[-1]
            return
        if change - time > 1e-9:
            assert value == at(slowdown, (time + change) / 2)
        time = change


@given(functions(), st.floats(0.0, 100.0), st.floats(0.0, 50.0))
def test_the_work_between_start_and_finish_is_what_was_asked_for_by_quadrature(
    slowdown: Piecewise, start: float, work: float
) -> None:
    end = finish(start, work, slowdown)
    assert work_done(start, end, slowdown) == pytest.approx(work, rel=1e-9, abs=1e-9)


@given(functions(), st.floats(0.0, 100.0), st.floats(0.0, 50.0), st.floats(0.0, 50.0))
def test_two_pieces_of_work_in_a_row_end_when_both_together_do(
    slowdown: Piecewise, start: float, first: float, second: float
) -> None:
    apart = finish(finish(start, first, slowdown), second, slowdown)
    assert apart == pytest.approx(finish(start, first + second, slowdown), rel=1e-12, abs=1e-9)


@given(functions(), st.floats(0.0, 100.0), st.floats(0.0, 50.0))
def test_contention_of_at_least_one_never_speeds_work_up(
    slowdown: Piecewise, start: float, work: float
) -> None:
    stretched = combine([slowdown], lambda value: max(value, 1.0))
    assert finish(start, work, stretched) >= start + work - 1e-9 * (start + work)


@pytest.mark.parametrize(
    ("start", "work", "end"),
    [
        (0.0, 5.0, 5.0),  # before the burst
        (8.0, 4.0, 14.0),  # 2 s clean, then 2 s at half speed
        (12.0, 3.0, 18.0),  # inside
        (18.0, 3.0, 22.0),  # 1 s at half speed, then 2 s clean
        (5.0, 20.0, 30.0),  # 5 + 5 + 10 across the whole burst
        (30.0, 1.0, 31.0),  # after
        (0.0, 10.0, 10.0),  # ends exactly where the burst begins
        (10.0, 5.0, 20.0),  # begins and ends exactly at its edges
        (20.0, 1.0, 21.0),  # begins exactly where it ends
        (15.0, 0.0, 15.0),  # nothing to do
    ],
)
def test_a_burst_stretches_the_part_of_the_work_inside_it(
    start: float, work: float, end: float
) -> None:
    assert finish(start, work, BURST) == end


@pytest.mark.parametrize(
    ("start", "work", "end"),
    [
        (5.0, 1.0, 6.0),  # ends exactly at the edge within the first period
        (5.0, 2.0, 8.0 + 1 / 3),  # 1 s clean, 2 s that do 2/3, 1/3 s clean
        (6.0, 2 / 3, 8.0),  # ends exactly with the period
        (8.0, 6.0, 14.0),  # begins exactly with the second
        (0.0, 3 * (6 + 2 / 3), 24.0),  # three whole periods
        (800.0, 6 + 1 / 3, 807.0),  # a hundred periods later it is the same
        (23.0, 1.0, 24.0 + 2 / 3),  # over the seam between two periods
    ],
)
def test_a_looped_slowdown_begins_anew_with_every_period(
    start: float, work: float, end: float
) -> None:
    assert finish(start, work, LOOP) == pytest.approx(end, rel=1e-14)


def test_without_contention_work_takes_as_long_as_it_is() -> None:
    assert finish(3.0, 0.1, ONE) == 3.1


def test_the_last_value_is_held_for_ever() -> None:
    assert finish(1e6, 1.0, Piecewise((0.0, 1.0), (1.0, 4.0))) == 1e6 + 4


def test_a_value_holds_from_its_time_on() -> None:
    assert [at(BURST, t) for t in (0.0, 9.999, 10.0, 19.999, 20.0, 1e9)] == [1, 1, 2, 2, 1, 1]
    assert [at(LOOP, t) for t in (5.999, 6.0, 7.999, 8.0, 14.0)] == [1, 3, 3, 1, 3]
