"""Max-min fair shares, against the textbook."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.arrays import Floats, Ints
from simstrag.cluster.sharing import fair_level, fill


def by_bisection(demands: Floats, capacity: float) -> Floats:
    """Waterfilling: the level at which the least of demand and level adds up to the capacity."""
    low, high = 0.0, max(float(demands.max()), capacity)
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.minimum(demands, level).sum() < capacity else (low, level)
    return demands if demands.sum() <= capacity else np.minimum(demands, low)


def by_rising(demands: Floats, routes: Ints, capacities: Floats) -> Floats:
    """Progressive filling as it is defined: all rates rise alike, until something stops them."""
    rates, left = np.zeros(len(demands)), capacities.astype(float)
    rising = set(np.flatnonzero(demands > 0).tolist())
    while rising:
        counts = {k: [f for f in rising if k in routes[f]] for k in range(len(left))}
        steps = [left[k] / len(flows) for k, flows in counts.items() if flows]
        step = min([*steps, *(demands[f] - rates[f] for f in rising)])
        for f in rising:
            rates[f] += step
        for k, flows in counts.items():
            left[k] -= step * len(flows)
        full = {k for k, flows in counts.items() if flows and left[k] <= 1e-12 * capacities[k]}
        rising -= {f for f in rising if demands[f] - rates[f] <= 1e-12 * demands[f]}
        rising -= {f for f in rising if full & set(routes[f].tolist())}
    return rates


def test_shares_of_1000_drawn_nodes_are_those_of_the_textbooks_waterfilling() -> None:
    draws = np.random.default_rng(0)
    for _ in range(1000):
        demands = draws.exponential(1.0, draws.integers(1, 20)) * draws.integers(0, 2)
        capacity = float(draws.uniform(0.1, 20))
        shares = np.minimum(demands, fair_level(demands, capacity))
        assert shares == pytest.approx(by_bisection(demands, capacity))


@given(st.data())
def test_flows_get_the_rates_at_which_all_rise_alike(data: st.DataObject) -> None:
    cards = data.draw(st.integers(2, 5))
    amounts = st.sampled_from((0.0, 0.5, 1.0, 3.0, 7.0))
    capacities = np.array(data.draw(st.lists(amounts.filter(bool), min_size=cards, max_size=cards)))
    flow = st.tuples(amounts, st.permutations(range(cards)))
    flows = data.draw(st.lists(flow, min_size=1, max_size=8))
    demands = np.array([asked for asked, _ in flows])
    routes = np.array([order[:2] for _, order in flows])
    rates = fill(demands, routes, capacities)
    assert rates == pytest.approx(by_rising(demands, routes, capacities), abs=1e-9)


def test_two_flows_alike_on_a_full_card_get_half_each() -> None:
    routes = np.array([[0, 1], [0, 2]])
    assert fill(np.array([8.0, 8.0]), routes, np.array([10.0, 99.0, 99.0])).tolist() == [5.0, 5.0]
