"""Many step functions at once are what each of them would be by itself, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.trace.slowdown import ONE, Piecewise
from simstrag.trace.step_functions import Pieces, combine
from tests.support import stepwise

PERIODS = st.sampled_from((math.inf, 5.0, 7.3))
TIMES = st.sampled_from((0.0, -0.0, 1.0, 2.5, 5.0, 6.7, 7.3)) | st.floats(0, 10)
VALUES = st.sampled_from((1.0, 2.0)) | st.floats(0.1, 10)
SERIES = st.lists(st.tuples(TIMES, VALUES), max_size=6).map(lambda rows: sorted(rows, key=TIME))
TIME = lambda row: row[0]  # noqa: E731
MANY = st.lists(SERIES, min_size=1, max_size=5)


def pieces(series: Sequence[Sequence[tuple[float, float]]], period: float = math.inf) -> Pieces:
    times, values = (np.array([row[k] for own in series for row in own], float) for k in (0, 1))
    return Pieces.of(times, values, np.cumsum([0, *map(len, series)]), period)


def functions(found: Pieces) -> list[Piecewise]:
    return [found[k] for k in range(len(found))]


@given(MANY, PERIODS)
def test_functions_of_rows(series: list[list[tuple[float, float]]], period: float) -> None:
    expected = [stepwise.of(rows, period) for rows in series]
    assert functions(pieces(series, period)) == expected


@given(MANY, PERIODS, st.data())
def test_some_of_them_are_as_they_were(
    series: list[list[tuple[float, float]]], period: float, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(series) - 1)))
    found = pieces(series, period)
    expected = [found[k] for k in chosen]
    assert functions(found.taken(np.array(chosen, np.int64))) == expected
    assert functions(found.after(Pieces.constants([1.0]))) == [ONE, *functions(found)]


@given(st.lists(st.tuples(SERIES, SERIES, SERIES), min_size=1, max_size=4), PERIODS)
def test_functions_combined(
    triples: list[tuple[list[tuple[float, float]], ...]], period: float
) -> None:
    def of(x: float, y: float, z: float) -> float:
        return x * (0.3 * y * 1.7 + 0.7 * z / 1.4)

    columns = [pieces(column, period) for column in zip(*triples, strict=True)]
    expected = [
        stepwise.combine([stepwise.of(rows, period) for rows in triple], of) for triple in triples
    ]
    assert functions(combine(columns, of)) == expected


@given(MANY, PERIODS)
def test_the_largest_of_all(series: list[list[tuple[float, float]]], period: float) -> None:
    expected = stepwise.combine(
        [stepwise.of(rows, period) for rows in series], lambda *values: max(values)
    )
    assert pieces(series, period).largest() == expected


@given(MANY, PERIODS, st.lists(st.floats(0.1, 10), min_size=5, max_size=5))
def test_each_times_its_factor(
    series: list[list[tuple[float, float]]], period: float, factors: list[float]
) -> None:
    factors = factors[: len(series)]
    expected = [
        stepwise.combine([stepwise.of(rows, period)], lambda value, factor=factor: value * factor)
        for rows, factor in zip(series, factors, strict=True)
    ]
    assert functions(pieces(series, period).scale(np.array(factors))) == expected


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 1), (5, 1)])
def test_of_constants_the_largest_is_a_constant(count: int, left: int) -> None:
    assert len(Pieces.constants([2.0] * count).largest().times) == left
