"""Speeds that change from outside while a job runs, as where jobs share nodes (rule 8a)."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simstrag import policies as shipped
from simstrag.contract import Plan, Policy, Quorum, Review, View
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import simulate
from simstrag.engine.simulation import Simulation
from simstrag.errors import InputError, PlanError, StallError
from simstrag.scenario.scenario import Scenario
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Noise
from simstrag.timing.timing import Timing
from tests.support.strategies import Fixed, plans, policies, scenarios
from tests.support.trace_rows import slowed

Speeds = tuple[float, list[float], list[float], list[float], float, float]
"""Seconds since the last change; slowdowns of host, gpu and net of each rank; of the server; pause.
"""


def timing_of(scenario: Scenario, seed: int, speeds: Speeds | None = None) -> Timing:
    """The timing of a scenario under constant slowdowns, of none at first."""
    inputs, none = scenario.inputs, [1.0] * scenario.workers
    _, host, gpu, net, service, _ = speeds or (0.0, none, none, none, 1.0, 0.0)
    server = replace(inputs.server, service=inputs.server.service * service)
    noise = Noise(seed, inputs.step.noise)
    contention = Contention.constant(host, gpu, net)
    return Timing(inputs.step, inputs.allreduce, server, contention, noise, scenario.places)


def run(
    scenario: Scenario, policy: Policy, seed: int, changes: Sequence[Speeds], engine: str
) -> dict[str, Any]:
    """The tables of a run with changes of its speeds, and the usage read at each of them."""
    recorder = Recorder(True, True, True)
    try:
        simulation = Simulation(
            scenario, policy, "drawn", seed, recorder, engine=engine,
            timing=timing_of(scenario, seed),
        )  # fmt: skip
        now, used = 0.0, list[Any]()
        for speeds in changes:
            now += speeds[0]
            if simulation.advance(now):
                break
            simulation.kernel.pause(now)
            used.append([seconds.tolist() for seconds in simulation.kernel.usage(now)])
            simulation.kernel.retime(now, timing_of(scenario, seed, speeds))
            simulation.delay(now, speeds[-1])
            used.append(simulation.kernel.next_event)
            used.append(simulation.kernel.applied_by_rank.tolist())
            used.append(simulation.kernel.started_by_rank.tolist())
        else:
            simulation.advance(math.inf)
    except (StallError, InputError, PlanError) as error:
        return {"error": type(error)}
    simulation.kernel.end()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = simulation.result()
    tables = {
        name: {column: list(table[column]) for column in table}
        for name in ("updates", "steps", "gradients")
        if (table := getattr(done, name)) is not None
    }
    return {"usage": used, "summary": dict(done.summary), **tables}


@st.composite
def speeds(draw: st.DrawFn, workers: int) -> Speeds:
    factors = st.lists(
        st.sampled_from((1.0, 1.0, 1.5, 2.0, 3.3)), min_size=workers, max_size=workers
    )
    gap = draw(st.sampled_from((0.03, 0.1, 0.125, 0.3, 1.0)))
    service, pause = st.sampled_from((1.0, 1.0, 2.5)), st.sampled_from((0.0, 0.0, 0.125, 0.7))
    return gap, draw(factors), draw(factors), draw(factors), draw(service), draw(pause)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), scenario=scenarios(), policy=policies())
def test_both_engines_agree_while_speeds_change(
    data: st.DataObject, scenario: Scenario, policy: Policy
) -> None:
    alone = scenario.replaced(trace=None, server_load=None)
    changes = data.draw(st.lists(speeds(scenario.workers), min_size=1, max_size=5))
    results = [
        run(alone, shipped.load(shipped.spec(policy)), 0, changes, engine)
        for engine in ("native", "plain")
    ]
    assert results[0] == results[1]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), scenario=scenarios())
def test_both_engines_agree_on_every_plan_while_speeds_change(
    data: st.DataObject, scenario: Scenario
) -> None:
    alone = scenario.replaced(trace=None, server_load=None)
    changes = data.draw(st.lists(speeds(scenario.workers), min_size=1, max_size=5))
    plan = data.draw(plans(scenario))
    native, plain = (run(alone, Fixed(plan), 0, changes, way) for way in ("native", "plain"))
    assert native == plain


SERIAL = {"compute": 0.2, "host_share": 0.4, "cv": 0.3}
OVERLAPPING = {"launch": 0.18, "device": 0.2, "cv": 0.3}


@pytest.mark.parametrize("step", [SERIAL, OVERLAPPING], ids=["serial", "overlapping"])
@pytest.mark.parametrize(
    "policy", ["bsp", "bsp:via=server", "asgd", "backup:b=1", "cgp", "ssp", "k_async:x=2", "tree"]
)
def test_speeds_that_change_are_those_of_a_trace_that_says_the_same(
    policy: str, step: dict[str, float]
) -> None:
    """The rest of what is under way takes its time at the new speed, as in a trace (rule 2)."""
    n, draws = 4, np.random.default_rng(1)
    changes = [
        (float(draws.uniform(0.2, 1.5)), *draws.uniform(1, 3, (3, n)).tolist(), 1.0, 0.0)
        for _ in range(12)
    ]
    scenario = Scenario.of({
        "workers": n, "samples": n * 60 * 8, "learner": {"batch": 8},
        "step": step,
        "allreduce": {"alpha": 0.01, "bytes": 1e6, "bandwidth": 1e8},
        "server": {"service": 0.011, "push": 0.03, "pull": 0.02},
    })  # fmt: skip
    times = itertools.accumulate(change[0] for change in changes)
    rows = [
        slowed(node, values[node], time, resource)
        for time, (_, *those, _, _) in zip(times, changes, strict=True)
        for resource, values in zip(("host", "gpu", "net"), those, strict=True)
        for node in range(n)
    ]
    expected = simulate(scenario.replaced(trace=rows), policy, 3)
    found = run(scenario, shipped.load(policy), 3, changes, "native")
    assert found["updates"]["time"] == pytest.approx(list(expected.updates["time"]), rel=1e-9)


def test_a_job_whose_speeds_never_change_runs_as_if_it_were_alone() -> None:
    scenario = Scenario(workers=4, samples=40_000, step={"compute": 0.1, "cv": 0.2})
    none = [1.0] * 4
    changes = [(0.37, none, none, none, 1.0, 0.0)] * 20
    found = run(scenario, shipped.load("dssp"), 5, changes, "native")
    alone = simulate(scenario, "dssp", 5)
    assert found["updates"]["time"] == list(alone.updates["time"])


@pytest.mark.parametrize("via", ["allreduce", "server"])
@pytest.mark.parametrize("engine", ["native", "plain"])
def test_a_delay_lengthens_the_updates_that_begin_under_it(engine: str, via: str) -> None:
    """Updates of 1 s; from 2.5 s to 6.25 s ranks wait 0.5 s before a step: three steps of 1.5 s."""
    scenario = Scenario(workers=2, updates=6, step={"compute": 1.0})
    simulation = Simulation(
        scenario, shipped.load(f"bsp:via={via}"), "bsp", 0, Recorder(), engine=engine
    )
    for at, seconds in ((2.5, 0.5), (6.25, 0.0)):
        assert not simulation.advance(at)
        simulation.delay(at, seconds)
    used = [seconds.tolist() for seconds in simulation.kernel.usage(6.25)]
    assert used == [[5.0, 5.0], [0.0, 0.0], [1.5, 1.5]]  # a quarter of a second since 6 s
    assert simulation.advance(math.inf)
    assert simulation.kernel.now == 3 + 3 * 1.5
    assert simulation.kernel.usage(7.5)[2].tolist() == [1.5, 1.5]


def test_a_plan_that_is_not_permitted_leaves_the_one_before_it_in_force() -> None:
    """The policy leaves the barrier after two updates; its next view says that it may not."""
    together = Plan(review=Review(updates=1))
    apart = Plan((Quorum(count=1),), review=Review(updates=1))
    refused: list[bool] = []

    class Leaves:
        def plan(self, view: View) -> Plan:
            refused.append(view.refused)
            return apart if view.version >= 2 else together

    def permit(plan: Plan) -> Plan:
        return plan if plan.quorums[0].count is None else simulation.kernel.plan

    scenario = Scenario(workers=2, updates=4, step={"compute": 1.0})
    simulation = Simulation(scenario, Leaves(), "leaves", 0, Recorder(), permit=permit)
    assert simulation.advance(math.inf)
    assert (simulation.kernel.now, refused) == (4.0, [False, False, False, True])
