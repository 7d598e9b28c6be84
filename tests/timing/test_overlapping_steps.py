"""Steps whose host launches while the device computes: rule 2, the overlapping law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simstrag.advice.advise import advise
from simstrag.contract import Plan
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.experiments.study import Study
from simstrag.scenario.beyond_measured import doubts
from simstrag.scenario.scenario import Scenario
from simstrag.timing.constants import AllReduce, ServerCost, Step
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Noise
from simstrag.timing.timing import Timing
from simstrag.trace.trace import Trace
from tests.support.strategies import Fixed
from tests.support.trace_rows import slowed

STEP = {"launch": {"full": 2.0, "amp": 2.5}, "device": {"full": 3.0, "amp": 1.0}}
ENGINES = pytest.mark.parametrize("engine", ["native", "plain"])


def seconds(engine: str, policy: str = "bsp", **keys: Any) -> float:
    """The makespan of one step of one worker."""
    case = {"workers": 1, "updates": 1, "step": STEP} | keys
    return float(simulate(Scenario.of(case), policy, engine=engine).summary["makespan"])


@ENGINES
@pytest.mark.parametrize(
    ("rows", "full", "amp"),
    [
        ([], 3.0, 2.5),  # computing; launching, which is dearer in reduced precision
        ([slowed(0, 2.0, resource="host")], 4.0, 5.0),  # launching is the longer one now
        ([slowed(0, 1.25, resource="host")], 3.0, 3.125),  # 2.5 s of launching hide behind 3 s
        ([slowed(0, 2.0)], 6.0, 2.5),  # 2 s of computing hide behind launching
        ([slowed(0, 3.0)], 9.0, 3.0),
        ([slowed(0, 2.0, resource="step")], 6.0, 5.0),  # both streams
        ([slowed(0, 2.0, 1.5)], 4.5, 2.5),  # half the computing at half the speed
        ([slowed(0, 5.0, 1.0, "host")], 6.0, 8.5),  # 1 s, then 1 or 1.5 s five times as long
    ],
)
def test_a_step_ends_when_the_later_of_its_streams_does(
    engine: str, rows: list[dict[str, Any]], full: float, amp: float
) -> None:
    trace = {"trace": rows} if rows else {}
    assert seconds(engine, **trace) == pytest.approx(full, rel=1e-15)
    assert seconds(engine, "amp_all", **trace) == pytest.approx(amp, rel=1e-15)


def test_the_streams_of_a_step_do_the_work_that_was_asked_for_by_quadrature() -> None:
    """Of random slowdowns; midpoints of a fine grid are another way to the same integral."""
    draws, share = np.random.default_rng(7), 0.4
    step = Step.overlapping(2.0, 3.0, 2.5, 1.0, fixed_share=0.25)
    for _ in range(50):
        times = np.sort(draws.uniform(0, 4, 6))
        values = draws.uniform(1, 4, (3, 6))
        rows = [
            slowed(0, v, t, name)
            for name, row in zip(("step", "host", "gpu"), values, strict=True)
            for t, v in zip(times, row, strict=True)
        ]
        trace = Trace.from_rows(rows)
        noise = Noise(seed=0, distribution=None)
        timing = Timing(step, AllReduce(), ServerCost(), Contention.of(trace, 1), noise)
        for amp, (launch, device) in ((False, (2.0, 3.0)), (True, (2.5, 1.0))):
            ends = timing.streams(0, 0, 0.5, amp, share, False, 1.0)
            for end, work, of in zip(ends, (launch, device * 0.55), ("host", "gpu"), strict=True):
                grid = np.linspace(0.5, end, 200_001)
                middle = (grid[1:] + grid[:-1]) / 2
                at = np.searchsorted(times, middle, side="right")
                S, R = (
                    np.append(1.0, values[("step", "host", "gpu").index(name)])[at]
                    for name in ("step", of)
                )
                assert np.sum(np.diff(grid) / (S * R)) == pytest.approx(work, rel=1e-4)
            assert timing.compute(0, 0, 0.5, amp, share) == max(ends)


@ENGINES
def test_a_smaller_batch_shortens_computing_and_not_launching(engine: str) -> None:
    """Shares 1/4 and 7/4 of a device's 3 s, of which 1 s is fixed: 1.5 and 4.5 s beside 2 s."""
    step = {"launch": 2.0, "device": 3.0, "fixed_share": 1 / 3}
    case = {"workers": 2, "updates": 1, "step": step, "learner": {"batch": 8}}
    plan = Plan(batch=np.array([0.25, 1.75]))
    run = simulate(Scenario.of(case), Fixed(plan), engine=engine, record_steps=True)
    assert run.steps is not None
    assert list(run.steps["finish"]) == pytest.approx([2.0, 4.5])


@ENGINES
def test_a_deadline_leaves_out_launching_and_computing_alike(engine: str) -> None:
    """Of 4 micro-batches of .75 s one ends after half a second."""
    case = {"microbatches": 4, "learner": {"batch": 8}}
    assert seconds(engine, "dropcompute:theta=0.5", **case) == 0.75


def test_one_noise_factor_stretches_both_streams() -> None:
    def times(step: dict[str, Any]) -> list[float]:
        case = {"workers": 3, "updates": 9, "step": step | {"cv": 0.4}}
        return list(simulate(Scenario.of(case), "bsp", seed=5).updates["time"])

    assert times({"launch": 1.0, "device": 3.0}) == times({"compute": 3.0})
    assert times({"launch": 3.0, "device": 1.0}) == times({"compute": 3.0, "host_share": 1.0})


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"launch": -0.1, "device": 1}, "step.launch.full is -0.1: must be more than 0"),
        ({"launch": 0.1}, "step: launch stands without device; give both, or compute"),
        ({"launch": 0.1, "device": {"amp": 1}}, "step.device.full is missing"),
        ({"launch": 0.1, "device": {"fp16": 1, "full": 1}}, "unknown key 'step.device.fp16'"),
        ({"launch": 0.1, "device": 1, "compute": 1}, "launch and device, not both"),
        ({"launch": {"full": 1, "amp": 2}, "device": 1}, "launch.amp stands without device.amp"),
        ({"launch": 0.1, "device": 1, "amp_ratio": 2}, "amp_ratio belongs to compute; launch and"),
    ],
)
def test_a_step_without_one_whole_law_is_refused(step: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        Scenario.of({"workers": 1, "updates": 1, "step": step})
    assert "\n" not in str(refused.value)


def test_reduced_precision_without_its_seconds_of_the_device_is_refused() -> None:
    case = Scenario.of({"workers": 1, "updates": 1, "step": {"launch": 0.1, "device": 1.0}})
    with pytest.raises(InputError, match=r"give step.device.amp or"):
        simulate(case, "amp_all")


# -- what policies make of it ---------------------------------------------------------------------

LAUNCH_BOUND = {"launch": {"full": 0.02, "amp": 0.024}, "device": {"full": 0.01, "amp": 0.005}}
FILLED = {"launch": {"full": 0.01, "amp": 0.012}, "device": {"full": 0.03, "amp": 0.015}}


def makespans(step: dict[str, Any], row: dict[str, Any], *policies: str) -> list[float]:
    """Of 1,000 updates of four workers, of which one is slowed for good."""
    case = {"workers": 4, "updates": 1000, "step": step, "trace": [row], "learner": {"batch": 64}}
    runs = [simulate(Scenario.of(case), policy) for policy in policies]
    return [float(run.summary["makespan"]) for run in runs]


def test_korel_leaves_a_launch_bound_rank_in_full_precision() -> None:
    """Its launching takes 40 ms beside a load on the host, and 48 ms with the casts of AMP."""
    bsp, korel = makespans(LAUNCH_BOUND, slowed(0, 2.0, resource="host"), "bsp", "korel")
    assert korel == bsp == pytest.approx(1000 * 0.04)


def test_korel_switches_a_rank_whose_device_is_slowed() -> None:
    """Its 60 ms become 30; all but the first dozen steps, and probes every 200, are that long."""
    bsp, korel = makespans(FILLED, slowed(0, 2.0), "bsp", "korel")
    assert bsp == pytest.approx(1000 * 0.06)
    assert korel == pytest.approx(1000 * 0.03, rel=0.02)


def test_reduced_precision_on_all_ranks_slows_launch_bound_ones() -> None:
    """By the casts that are launched: 24 ms instead of 20."""
    bsp, amp_all = makespans(LAUNCH_BOUND, slowed(0, 1.5), "bsp", "amp_all")
    assert (bsp, amp_all) == pytest.approx((1000 * 0.02, 1000 * 0.024))


def test_lb_bsp_takes_no_samples_from_a_rank_that_launching_slows() -> None:
    """Fewer samples would leave its 40 ms of launching as they are."""
    bsp, lb_bsp = makespans(LAUNCH_BOUND, slowed(0, 2.0, resource="host"), "bsp", "lb_bsp")
    assert lb_bsp == bsp


def test_lb_bsp_helps_where_a_load_slows_the_device_beyond_launching() -> None:
    """Launching takes 31 ms, three devices 30 and one 90: all could be done after 36."""
    step = {"launch": 0.031, "device": 0.03}
    bsp, lb_bsp = makespans(step, slowed(0, 3.0), "bsp", "lb_bsp")
    assert bsp == pytest.approx(1000 * 0.09)
    assert lb_bsp == pytest.approx(1000 * 4 / (3 / 0.03 + 1 / 0.09), rel=0.02)


def test_lb_bsp_shares_samples_by_what_devices_take() -> None:
    """One device takes 60 ms a batch, three take 30: all are done after 4 / (3/30 + 1/60) ms."""
    _, lb_bsp = makespans(FILLED, slowed(0, 2.0), "bsp", "lb_bsp")
    assert lb_bsp == pytest.approx(1000 * 4 / (3 / 0.03 + 1 / 0.06), rel=0.02)


def test_lb_bsp_gives_samples_back_when_the_device_is_free_again() -> None:
    """At a share of 1/4 launching takes longer than the device, so the shares rise in steps."""
    rows = [slowed(0, 8.0), slowed(0, 1.0, 20.0)]
    step = {"launch": 0.02, "device": 0.03}
    case = {"workers": 4, "updates": 2000, "step": step, "trace": rows, "learner": {"batch": 64}}
    run = simulate(Scenario.of(case), "lb_bsp")
    seconds = np.diff(np.asarray(run.updates["time"]))
    assert seconds[-1] == pytest.approx(0.03, rel=0.07)  # within the dead band of equal shares


def test_advice_on_launch_bound_steps_is_to_launch_less_first() -> None:
    case = Scenario.of({
        "workers": 4, "samples": 4 * 64 * 50, "step": LAUNCH_BOUND, "learner": {"batch": 64},
        "trace": [slowed(0, 2.0, resource="host")], "seeds": 2,
    })  # fmt: skip
    found = advise(case, ["lb_bsp", "amp_all"], jobs=1)
    assert found.launching == pytest.approx(0.75)  # 10 ms of the device instead of 40 of launching
    assert found.sentences[0] == (
        "First compile the model, use CUDA graphs or a larger batch: a step takes 20.0 ms to "
        "launch and 10.0 ms on the device. Without launching, bsp would take 75 % less, more than "
        "any policy here gains."
    )


def test_advice_on_steps_that_fill_the_device_says_nothing_of_launching() -> None:
    case = Scenario.of({
        "workers": 4, "samples": 4 * 64 * 50, "step": FILLED, "learner": {"batch": 64},
        "trace": [slowed(0, 2.0)], "seeds": 2,
    })  # fmt: skip
    found = advise(case, ["lb_bsp"], jobs=1)
    assert found.launching is None


def test_milliseconds_typed_as_seconds_are_doubted() -> None:
    case = Scenario.of({"workers": 2, "updates": 1, "step": {"launch": 14.0, "device": 0.03}})
    (doubt,) = doubts(case)
    assert doubt.startswith("Doubtful: launch and device take 14, 0.03, 14, 0.03 s in full and in")


def test_a_sweep_varies_what_the_device_takes_in_reduced_precision() -> None:
    case = {"workers": 2, "updates": 1, "step": FILLED}
    study = Study(scenario=case, grid={"step.device.amp": [0.01, 0.02]})
    assert [point.scenario.inputs.step.amp for point in study.points()] == [
        (0.012, 0.01), (0.012, 0.02),
    ]  # fmt: skip


def test_launching_is_no_advice_where_seeds_alone_differ() -> None:
    """.1 ms beside 50: bsp without launching takes as long under the same seeds."""
    rows = [slowed(0, 1 + 2 * (k % 2), time=k) for k in range(20)]
    case = Scenario.of({
        "workers": 4, "samples": 4 * 64 * 40, "trace": rows, "trace_end": "loop",
        "step": {"launch": 1e-4, "device": 0.05}, "learner": {"batch": 64},
        "trace_per_seed": "shift", "seeds": 8,
    })  # fmt: skip
    found = advise(case, ["drain"], jobs=1)
    assert found.launching is None  # over all eight seeds bsp takes 4 % more than over the first
