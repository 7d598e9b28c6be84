"""The engine against what theory says in closed form; every tolerance was set beforehand.

Runtimes: order statistics of shifted exponentials (Dutta et al., "Slow and Stale Gradients Can Win
the Race", 2018) and the renewal theorem.  Staleness and gradients in flight: Little's law.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from simstrag.arrays import Ints
from simstrag.contract import Late, Plan, Quorum, Via
from simstrag.engine.simulate import simulate
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing import noise
from tests.support.strategies import Fixed
from tests.support.trace_rows import slowed

ONE_PERCENT = 0.01
PACES = (1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0)


def scenario(
    workers: int, updates: int, paces: tuple[float, ...] = (), **sections: Any
) -> Scenario:
    """Steps of one second, stretched on rank i by `paces[i]` throughout."""
    sections["step"] = {"compute": 1.0} | sections.get("step", {})
    rows = [slowed(rank, pace, resource="step") for rank, pace in enumerate(paces)]
    return Scenario.of({"workers": workers, "updates": updates, "trace": rows or None} | sections)


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


def exponential(cv: float) -> dict[str, Any]:
    return {"cv": cv, "noise": "shifted_exponential"}


# -- runtimes


@pytest.mark.parametrize(("n", "cv"), [(8, 0.5), (2, 1.0), (4, 0.1)])
def test_a_bsp_step_is_the_largest_of_n_shifted_exponentials(n: int, cv: float) -> None:
    updates = 20_000
    run = simulate(scenario(n, updates, step=exponential(cv)), "bsp")
    expected = (1 - cv) + cv * harmonic(n)
    assert run.summary["makespan"] / updates == pytest.approx(expected, rel=ONE_PERCENT)


@pytest.mark.parametrize(("b", "via"), [(2, "server"), (5, "server"), (2, "allreduce")])
def test_a_k_sync_step_is_the_kth_of_n_shifted_exponentials(b: int, via: str) -> None:
    n, cv, updates = 8, 0.5, 20_000
    run = simulate(scenario(n, updates, step=exponential(cv)), f"backup:b={b},late=abort,via={via}")
    expected = (1 - cv) + cv * (harmonic(n) - harmonic(b))
    assert run.summary["makespan"] / updates == pytest.approx(expected, rel=ONE_PERCENT)


@pytest.mark.parametrize(("policy", "kth"), [("bsp", 8), ("backup:b=2", 6), ("backup:b=5", 3)])
def test_every_step_is_the_order_statistic_of_that_steps_own_noise(policy: str, kth: int) -> None:
    """Draw k of every rank meets in update k: no draw is skipped, none is used twice."""
    law = noise.shifted_exponential(0.5)
    factors = [law.factors(key, 0, 2000) for key in noise.keys(3, range(8))]
    expected = np.sort(factors, axis=0)[kth - 1].cumsum()
    run = simulate(scenario(8, 2000, step=exponential(0.5)), policy, seed=3)
    assert list(run.updates["time"]) == pytest.approx(expected.tolist(), rel=1e-12)


def test_a_bsp_step_is_the_largest_of_n_lognormals_by_quadrature() -> None:
    n, cv, updates = 8, 0.3, 20_000
    sigma = math.sqrt(math.log1p(cv * cv))
    one = stats.lognorm(sigma, scale=math.exp(-sigma * sigma / 2))
    expected, _ = integrate.quad(lambda t: 1 - one.cdf(t) ** n, 0, 20)
    run = simulate(scenario(n, updates, step={"cv": cv}), "bsp")
    assert run.summary["makespan"] / updates == pytest.approx(expected, rel=ONE_PERCENT)


@pytest.mark.parametrize("spread", [{"cv": 1.0}, exponential(0.5)])
def test_asgd_updates_at_the_sum_of_the_ranks_rates_whatever_their_law(
    spread: dict[str, Any],
) -> None:
    updates = 40_000
    run = simulate(scenario(8, updates, PACES, step=spread), "asgd")
    rate = updates / run.summary["makespan"]
    assert rate == pytest.approx(sum(1 / pace for pace in PACES), rel=ONE_PERCENT)


@pytest.mark.parametrize("policy", ["asgd", "ssp:bound=20"])
def test_a_saturated_server_makes_one_over_its_service_updates_a_second(policy: str) -> None:
    """Eight ranks of one step a second each meet a server that needs half a second a gradient."""
    service, updates = 0.5, 4000
    world = scenario(8, updates, step={"cv": 0.2}, server={"service": service})
    run = simulate(world, policy)
    assert updates / run.summary["makespan"] == pytest.approx(1 / service, rel=ONE_PERCENT)


def test_an_unsaturated_server_does_not_slow_the_ranks_below_their_own_cycles() -> None:
    """With push and pull a rank's cycle is longer by both; queueing only adds to that."""
    server = {"service": 1e-6, "push": 0.1, "pull": 0.15}
    run = simulate(scenario(4, 8000, server=server, step={"cv": 0.1}), "asgd")
    rate = run.summary["updates"] / run.summary["makespan"]
    assert rate == pytest.approx(4 / 1.25, rel=ONE_PERCENT)


def test_a_barrier_through_the_server_costs_one_service_for_each_rank() -> None:
    updates, server = 100, {"service": 0.05, "push": 0.1, "pull": 0.2}
    run = simulate(scenario(8, updates, server=server), "bsp:via=server")
    cycle = 0.2 + 1.0 + 0.1 + 8 * 0.05
    assert run.summary["makespan"] == pytest.approx(updates * cycle, rel=1e-12)


def test_a_bsp_step_ends_with_one_ring_all_reduce() -> None:
    ring = {"alpha": 0.001, "bandwidth": 1e9, "bytes": 20e6, "overlap": 0.5}
    run = simulate(scenario(4, 100, allreduce=ring), "bsp")
    seconds = 0.5 * (2 * 3 * 0.001 + 2 * 3 / 4 * 20e6 / 1e9)
    assert run.summary["makespan"] == pytest.approx(100 * (1 + seconds), rel=1e-12)


# -- staleness


def test_asgd_is_stale_by_2_2_and_15_where_one_of_four_is_five_times_slower() -> None:
    """Cv 0, over 1000 whole periods of 15 fast updates and a slow one; means are N-1 throughout."""
    run = simulate(scenario(4, 16 * 1000, (1.0, 1.0, 1.0, 5.0)), "asgd")
    by_rank = run.summary["staleness_by_rank"]
    assert by_rank == pytest.approx([2.2, 2.2, 2.2, 15.0], abs=0.01)
    assert run.summary["mean_staleness"] == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize("spread", [{"cv": 0.0}, {"cv": 0.5}, exponential(1.0)])
def test_the_mean_staleness_of_asgd_is_n_minus_1_whatever_the_paces(spread: dict[str, Any]) -> None:
    run = simulate(scenario(8, 8000, PACES, step=spread), "asgd")
    assert run.summary["mean_staleness"] == pytest.approx(7, rel=ONE_PERCENT)
    assert run.summary["effective_staleness"] == pytest.approx(7, rel=ONE_PERCENT)


# -- gradients in flight


class Flights:
    """The visible updates of a run, from its log of gradients and independently of the learner.

    Between two pulls by anyone nobody sees the parameters: versions that somebody pulled are the
    edges of the visible updates.  All counts are of gradients.
    """

    def __init__(self, run: Run) -> None:
        log = run.frame("gradients")
        own = np.array([0, *run.updates["n_own"]])
        self.before = np.cumsum(own)  # applied before each version
        last = len(own) - 1
        self.edges = sorted({int(v) for v in log["version"] if v < last} | {0, last})
        applied = log[log["fate"] == "applied"]
        self.pulled = applied["version"].to_numpy(dtype=np.int64)
        update = applied["update"].to_numpy(dtype=np.int64)  # it made this version of the last
        place = np.searchsorted(self.edges, update) - 1
        self.start = np.array(self.edges)[place]
        self.end = np.array(self.edges)[place + 1]

    @property
    def own(self) -> Ints:
        """Of each gradient: how many are in its visible update."""
        return self.before[self.end] - self.before[self.start]

    @property
    def stale(self) -> Ints:
        """Of each gradient: how many were applied between its pull and its visible update."""
        return self.before[self.start] - self.before[self.pulled]

    def in_flight(self) -> float:
        """How many gradients are outstanding while a visible update is made, mean over its own."""
        total = 0
        for start, end in itertools.pairwise(self.edges):
            outstanding = int(((self.pulled <= start) & (start < self.end)).sum())
            total += outstanding * int(self.before[end] - self.before[start])
        return total / int(self.before[-1])

    def progress(self, batch: int, noise_scale: float, c_tau: float) -> float:
        """Rule 25, from the log alone."""
        progress = 0.0
        for start in self.edges[:-1]:
            inside = self.start == start
            own, stale = batch * inside.sum(), batch * self.stale[inside].mean()
            progress += own / (noise_scale + own + c_tau * stale)
        return progress


def groups(*members: tuple[int, ...], fuse: bool = False) -> Fixed:
    """Groups that all-reduce inside and share the server."""
    return Fixed(Plan(tuple(Quorum(ranks, via=Via.LEADER) for ranks in members), fuse=fuse))


NEVER_DROPS = {
    "asgd": "asgd",
    "k-async": "k_async:x=3",
    "cgp planned": "cgp",
    "cgp by windows": "cgp:groups=window",
    "lgc": "lgc",
    "star dynamic": "star_dynamic",
    "star ring": "star_ring",
    "star_h": "star_h",
    "ssp": "ssp:bound=3",
    "bsp": "bsp",
    "bsp through the server": "bsp:via=server",
    "group and straggler": groups((0, 1, 2, 3, 4, 5, 6), (7,)),
    "groups": groups((0, 1, 2), (3, 4), (5, 6), (7,)),
    "groups that fuse": groups((0, 1, 2), (3, 4), (5, 6), (7,), fuse=True),
    "k-async groups": Fixed(
        Plan((Quorum((0, 1, 2, 3), 2, Via.SERVER), Quorum((4, 5, 6, 7), 3, Via.SERVER)))
    ),
}
ONE_TWICE_AS_SLOW = scenario(
    8,
    4000,
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0),
    step={"cv": 0.2},
    server={"service": 0.05, "push": 0.02, "pull": 0.03},
    allreduce={"alpha": 0.005},
)


@pytest.mark.parametrize("name", NEVER_DROPS)
def test_own_and_stale_gradients_together_are_those_in_flight(name: str) -> None:
    run = simulate(ONE_TWICE_AS_SLOW, NEVER_DROPS[name], record_gradients=True)
    flights = Flights(run)
    own_and_stale = float(flights.own.mean()) + run.summary["effective_staleness"]
    assert own_and_stale == pytest.approx(8, rel=ONE_PERCENT)
    assert own_and_stale == pytest.approx(flights.in_flight(), rel=ONE_PERCENT)
    assert run.summary["effective_staleness"] == pytest.approx(float(flights.stale.mean()))


@pytest.mark.parametrize("late", [Late.ABORT, Late.DROP])
@pytest.mark.parametrize("b", [1, 3])
def test_with_backup_workers_the_work_of_n_minus_b_counts(b: int, late: Late) -> None:
    run = simulate(ONE_TWICE_AS_SLOW, f"backup:b={b},late={late.value}", record_gradients=True)
    flights = Flights(run)
    own_and_stale = float(flights.own.mean()) + run.summary["effective_staleness"]
    assert own_and_stale == pytest.approx(8 - b, rel=ONE_PERCENT)


@pytest.mark.parametrize("bound", [1, 3, 10])
def test_a_rank_that_is_blocked_has_nothing_in_flight(bound: int) -> None:
    """Where all have the same pace, ranks block while others pull: fewer than N are in flight."""
    world = scenario(8, 6000, step={"cv": 0.5})
    run = simulate(world, f"ssp:bound={bound}", record_gradients=True)
    flights = Flights(run)
    own_and_stale = float(flights.own.mean()) + run.summary["effective_staleness"]
    assert own_and_stale == pytest.approx(flights.in_flight(), rel=ONE_PERCENT)
    assert 7 < own_and_stale < 8 * (1 - ONE_PERCENT)


def test_who_may_run_ahead_further_has_in_flight_what_it_counts() -> None:
    """Under dssp the fast ranks block in turns, some while others pull."""
    run = simulate(ONE_TWICE_AS_SLOW, "dssp", record_gradients=True)
    flights = Flights(run)
    own_and_stale = float(flights.own.mean()) + run.summary["effective_staleness"]
    assert own_and_stale == pytest.approx(flights.in_flight(), rel=ONE_PERCENT)
    assert own_and_stale < 8 * (1 - ONE_PERCENT)


@pytest.mark.parametrize("name", NEVER_DROPS)
@pytest.mark.parametrize("c_tau", [0.5, 4.0])
def test_the_learners_progress_is_what_the_log_of_gradients_gives(name: str, c_tau: float) -> None:
    learner = {"batch": 64, "noise_scale": 500.0, "c_tau": c_tau}
    world = ONE_TWICE_AS_SLOW.replaced(learner=learner, updates=500)
    run = simulate(world, NEVER_DROPS[name], record_gradients=True)
    assert run.summary["progress"] == pytest.approx(Flights(run).progress(64, 500.0, c_tau))


# -- recorded steps


@pytest.mark.parametrize("trace_end", ["hold", "loop", "error"])
def test_recorded_steps_are_replayed_as_a_barrier_would_have_met_them(trace_end: str) -> None:
    """Their times in the file play no part: all of them lie before the replay's first step ends."""
    recorded = np.random.default_rng(0).uniform(0.5, 2.0, size=(4, 200))
    rows = [
        {"time": k / 1000, "node": rank, "resource": "step", "kind": "duration", "value": seconds}
        for rank, durations in enumerate(recorded.tolist())
        for k, seconds in enumerate(durations)
    ]
    run = simulate(scenario(4, 200).replaced(trace=rows, trace_end=trace_end), "bsp")
    assert run.summary["makespan"] == pytest.approx(recorded.max(axis=0).sum(), rel=1e-12)
    assert run.warnings == ()


# -- operations: one rank is twice as slow as the others, for ever


def one_slow(n: int, updates: int, **sections: Any) -> Scenario:
    """Batches of n-1 samples, which n-1 ranks can share out evenly."""
    return scenario(n, updates, (2.0,) + (1.0,) * (n - 1), learner={"batch": n - 1}, **sections)


FOUND = 7
"""Updates after which a median of 5 steps has been slow in 3 checks in a row."""


@pytest.mark.parametrize("n", [3, 4, 8, 64])
def test_a_drained_cluster_runs_at_the_pace_of_n_over_n_less_1(n: int) -> None:
    updates, paced = 1000, n / (n - 1)
    for redistribute, pace in (("yes", paced), ("no", 1.0)):
        policy = f"drain:wait=1000,redistribute={redistribute}"
        makespan = simulate(one_slow(n, updates), policy).summary["makespan"]
        assert makespan == pytest.approx(2 * FOUND + (updates - FOUND) * pace, rel=1e-12)


def test_probes_of_a_rank_that_stays_slow_double_their_distance() -> None:
    """After 20, 40, 80, 160 and 320 updates a probe of 3; so of U updates about 3*log2(U/20)."""
    n, probes = 4, 5
    out = sum(20 * 2**k for k in range(probes))
    run = simulate(one_slow(n, FOUND + out + 3 * probes), "drain")
    assert run.summary["makespan"] == pytest.approx(2 * (FOUND + 3 * probes) + out * n / (n - 1))
    assert (run.summary["probes"], run.summary["readmissions"]) == (probes, 0)


def test_a_spare_takes_the_place_of_a_slow_rank_at_the_pace_of_the_members() -> None:
    n, updates = 8, 1000
    makespan = simulate(one_slow(n, updates), "hot_spare").summary["makespan"]
    assert makespan == pytest.approx((2 * FOUND + updates - FOUND) * n / (n - 1), rel=1e-12)


@pytest.mark.parametrize("fixed", [0.0, 0.25])
def test_fewer_workers_pay_the_slow_rank_only_while_they_measure(fixed: float) -> None:
    n, updates, measured = 8, 1000, 10
    world = one_slow(n, updates, step={"fixed_share": fixed})
    pace = fixed + (1 - fixed) * n / (n - 1)
    for policy, slow in ((f"fewer:measure={measured}", measured), ("fewer:ranks=0", 0)):
        makespan = simulate(world, policy).summary["makespan"]
        assert makespan == pytest.approx(2 * slow + (updates - slow) * pace, rel=1e-12)
