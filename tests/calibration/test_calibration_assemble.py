"""A profile out of samples of a machine that is known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.calibration import samples as files
from simstrag.calibration.assemble import assemble
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.allreduce_fit import AllReducePoint, fit, points_around
from simstrag.calibration.fits.step_estimates import interference
from simstrag.calibration.samples import Samples
from simstrag.engine.simulate import simulate
from simstrag.profile.profile import Profile
from simstrag.scenario.scenario import Scenario
from tests.support.synthetic import GRADIENT, REST, SHARE_HIDDEN, Machine, cells_of, samples_of

MACHINE = Machine()


@pytest.fixture(scope="module")
def samples() -> Samples:
    return samples_of(MACHINE)


@pytest.fixture(scope="module")
def profile(samples: Samples) -> Profile:
    return assemble(samples, {"samples.parquet": "0" * 64})


def without_cells(samples: Samples, left_out: Any) -> Samples:
    return replace(samples, visits=tuple(v for v in samples.visits if not left_out(v.cell)))


def test_the_same_samples_give_the_same_bytes(samples: Samples, tmp_path: Path) -> None:
    """Also when they have been in a file, finished or not."""
    samples = without_cells(samples, lambda cell: cell.part not in ("step", "contention"))
    text = assemble(samples).text
    assert assemble(samples).text == text
    journal = files.VisitJournal(tmp_path / "journal")
    journal.start(samples.header)
    for visit in samples.visits:
        journal.add(visit)
    assert assemble(files.read(tmp_path / "journal")).text == text
    written = files.write(samples, tmp_path / "table")
    assert assemble(files.read(written)).text == text


def test_a_profile_of_samples_is_read_back_and_simulated(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(profile.text)
    declared = {"workers": 2, "samples": 2 * 8 * 50, "learner": {"batch": 8}}
    scenario = Scenario.of(declared | {"profile": "profile.json"}, folder=tmp_path)
    assert simulate(scenario, "amp_all").summary["makespan"] > 50 * MACHINE.step["bf16"](8)


def test_every_cell_is_in_the_profile_with_an_interval(profile: Profile) -> None:
    assert [(c.precision, c.batch) for c in profile.cells] == [
        (p, b) for p in ("fp32", "bf16") for b in (1, 2, 4, 8, 16, 32)
    ]
    for cell in profile.cells:
        truth = MACHINE.step[cell.precision](cell.batch)
        assert cell.seconds.value == pytest.approx(truth, rel=0.03)
        assert cell.seconds.low < cell.seconds.value
        assert cell.seconds.n == 5 * 60
        assert cell.peak_bytes == 1000 * cell.batch
        assert cell.noise.lag1_autocorrelation == pytest.approx(0.4, abs=0.2)


def test_the_constants_of_the_simulation_are_those_of_the_nominal_batch(profile: Profile) -> None:
    step = profile.step
    nominal = next(c for c in profile.cells if (c.precision, c.batch) == ("fp32", 8))
    assert (step.compute, step.noise) == (nominal.mean, nominal.noise)
    assert step.amp_ratio.value == pytest.approx(0.026 / 0.0176, rel=0.03)
    assert step.amp_ratio_contended.value == pytest.approx(0.026 / 0.0176, rel=0.03)
    assert (step.host_share.value, step.host_share.kind) == (0.0, "assumed")
    assert (step.amp_switch.value, step.amp_switch.kind) == (0.0, "assumed")


def test_the_all_reduce_is_fitted_around_the_gradient(profile: Profile) -> None:
    a = profile.allreduce
    said = 2 * a.alpha.value + a.bytes.value / a.bandwidth.value
    assert a.bytes.value == GRADIENT
    assert said == pytest.approx(2 * MACHINE.alpha + GRADIENT / MACHINE.bandwidth, rel=0.03)
    assert (a.overlap.value, a.overlap.kind) == (pytest.approx(SHARE_HIDDEN, abs=0.01), "measured")
    assert a.alpha.low <= MACHINE.alpha <= a.alpha.high
    assert "refits to draws within each cell's error" in a.bandwidth.note
    (two, four) = profile.collective_fits
    assert (two.ranks, four.ranks, two.algorithm) == ((2,), (4,), "ring")
    assert two.bandwidth.value == pytest.approx(MACHINE.bandwidth, rel=0.05)
    assert two.alpha.value == pytest.approx(MACHINE.alpha, rel=0.05)
    assert len(two.residuals) == 6


def test_the_server_is_told_between_sizes_and_said_to_be_fitted(profile: Profile) -> None:
    server = profile.server
    assert server.service.value == pytest.approx(GRADIENT / MACHINE.bandwidth, rel=0.03)
    assert server.service.kind == "fitted"
    assert "between the sizes" in server.service.note


def test_the_server_at_the_gradients_own_size_is_measured() -> None:
    cells = [*cells_of(MACHINE)[:3], MeasurementCell("server", bytes=GRADIENT)]
    server = assemble(samples_of(MACHINE, cells)).server
    assert server.service.kind == "measured"


def test_no_fit_sees_what_is_held_out(samples: Samples, profile: Profile) -> None:
    """Samples of those cells may be anything: no constant changes, only the errors do."""
    left_out = {MeasurementCell(**cell) for cell in samples.header["plan"]["held_out"]}
    assert {c.part for c in left_out} == {"step", "contention", "allreduce"}

    def spoilt(visit: Visit) -> Visit:
        if visit.cell not in left_out or (visit.cell.batch == 8 and visit.cell.part == "step"):
            return visit
        slower = tuple(3 * s for s in visit.samples["seconds"])
        return replace(visit, samples={**visit.samples, "seconds": slower})

    other = assemble(replace(samples, visits=tuple(map(spoilt, samples.visits))))
    assert other.batches == profile.batches
    assert [(r.law, r.constants, r.errors) for r in other.responses] == [
        (r.law, r.constants, r.errors) for r in profile.responses
    ]
    assert other.collective_fits == profile.collective_fits
    assert (other.step and other.step.compute) == (profile.step and profile.step.compute)
    assert [held.worst for held in other.held_out] == pytest.approx([0.667] * 3, abs=0.02)


def test_the_errors_are_those_of_predictions_that_can_be_made_again(profile: Profile) -> None:
    assert [held.part for held in profile.held_out] == ["step", "contention", "allreduce"]
    steps, loads, sizes = profile.held_out
    assert [cell.cell for cell in steps.cells if "fp32" in cell.cell] == [
        f"step fp32 batch {b}" for b in (2, 8, 32)
    ]
    fit = profile.batches[0]
    assert steps.cells[2].predicted == pytest.approx(
        fit.fixed.value + 32 * fit.per_sample.value, rel=1e-5
    )
    assert {re.sub(r".* ", "", cell.cell) for cell in loads.cells} == {"0.75", "3"}
    assert "4 ranks" not in " ".join(cell.cell for cell in sizes.cells)  # more ranks than cores
    for held in profile.held_out:
        assert held.median <= held.threshold / 2


def test_an_all_reduce_left_out_is_predicted_as_a_simulation_would_have_it(
    profile: Profile,
) -> None:
    """By the ring fitted to the sizes around it, as the constants of a gradient of its size are."""
    (sizes,) = (held for held in profile.held_out if held.part == "allreduce")
    left_out = [c for c in profile.collectives if c.held_out and not c.oversubscribed]
    assert len(sizes.cells) == len(left_out) == 3
    for held, cell in zip(sizes.cells, left_out, strict=True):
        seen = [
            AllReducePoint((2,), c.bytes, c.seconds.value)
            for c in profile.collectives if c.ranks == 2 and not c.held_out
        ]  # fmt: skip
        assert held.predicted == pytest.approx(
            fit(points_around(seen, cell.bytes)).law(cell.bytes).seconds((2,)), rel=1e-5
        )
    assert "fitted to the sizes around it" in sizes.note
    assert re.search(r"Lines between .* off by \d", sizes.note)


def test_two_sizes_make_constants_without_interval_or_error(samples: Samples) -> None:
    few = (1 << 16, 1 << 20)
    fewer = without_cells(samples, lambda c: c.part != "allreduce" or c.bytes not in few)
    profile = assemble(fewer)
    assert (profile.allreduce.alpha.low, profile.allreduce.bandwidth.high) == (None, None)
    assert "nothing checks the fit" in profile.allreduce.alpha.note
    assert "off by" not in profile.allreduce.alpha.note
    assert {fit.residuals for fit in profile.collective_fits} == {()}


def test_a_gradient_costs_what_ranks_under_the_runtimes_server_pay_for_it() -> None:
    raw = MeasurementCell("server", bytes=GRADIENT)
    ours = MeasurementCell("server", precision="fp32", batch=8, ranks=2, bytes=GRADIENT)
    samples = samples_of(MACHINE, [*cells_of(MACHINE)[:3], raw, ours])
    slow = tuple(
        replace(v, samples={name: tuple(9 * s for s in x) for name, x in v.samples.items()})
        if v.cell == ours else v
        for v in samples.visits
    )  # fmt: skip
    profile = assemble(replace(samples, visits=slow))
    moved, trained = sorted(profile.transfers, key=lambda each: each.ranks or 0)
    assert (moved.ranks, trained.ranks) == (None, 2)
    assert profile.server.push == trained.push
    assert trained.push.value > 5 * moved.push.value


def test_ranks_in_lockstep_have_a_rest_a_slowdown_and_a_noise_of_their_own() -> None:
    plain = MeasurementCell("lockstep", precision="fp32", batch=8, ranks=2, bytes=GRADIENT)
    loaded = replace(plain, load="cpu", level=1.0)
    cells = [*cells_of(MACHINE)[:3], loaded, plain]
    alone, beside = assemble(samples_of(MACHINE, cells)).locksteps
    assert (alone.ranks, alone.bytes, alone.load) == (2, GRADIENT, "")
    assert alone.rest.value == pytest.approx(REST, rel=0.05)
    assert (beside.load, beside.level) == ("cpu", 1.0)
    assert beside.rest.value == pytest.approx(2 * REST, rel=0.05)
    assert alone.slowdown.value == pytest.approx(0.025 / 0.02, rel=0.02)
    assert alone.interference.value == pytest.approx(0.022 / 0.02, rel=0.02)
    spread = np.std(alone.noise.quantiles)
    assert spread == pytest.approx(MACHINE.cv, rel=0.2)
    assert (beside.interference, beside.noise) == (None, None)
    assert beside.slowdown.value == pytest.approx(1.9, rel=0.02)


def test_steps_under_a_server_are_held_against_steps_alone_where_both_were_timed() -> None:
    cell = MeasurementCell("server", precision="fp32", batch=8, ranks=2, bytes=GRADIENT)
    samples = samples_of(MACHINE, [*cells_of(MACHINE)[:3], cell])
    assert assemble(samples).transfers[0].slowdown is None
    timed = tuple(
        replace(
            v, facts={"cores": 2}, samples={**v.samples, "alone": (0.1, 0.1), "local": (0.11, 0.13)}
        )
        if v.cell == cell else v
        for v in samples.visits
    )  # fmt: skip
    slowdown = assemble(replace(samples, visits=timed)).transfers[0].slowdown
    assert slowdown.value == pytest.approx(1.2)


def test_each_rank_is_held_against_its_own_core() -> None:
    """Of two cores one is half as fast: nobody slows anybody."""
    cell = MeasurementCell("lockstep", precision="fp32", batch=8, ranks=4, bytes=GRADIENT)
    samples = {
        "alone": (0.1, 0.1, 0.2, 0.2), "local": (0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.2, 0.2),
        "rest": (0.01,),
    }  # fmt: skip
    visits = tuple(Visit(cell, k, 0.0, samples, {"cores": 2}) for k in range(3))
    slowdown = interference(visits)
    assert slowdown.value == pytest.approx(1.0)


def test_a_pull_of_no_time_is_cut_at_0_and_said(samples: Samples) -> None:
    """Stamps of two clocks may say that it ended before it began."""
    served = without_cells(samples, lambda cell: cell.part != "server")
    visits = tuple(
        replace(v, samples={**v.samples, "pull": tuple(-1e-5 * (v.number - 1) for _ in range(9))})
        for v in served.visits
    )
    profile = assemble(replace(served, visits=visits))
    pull = profile.transfers[0].pull
    assert (pull.value, pull.low) == (0.0, 0.0)
    assert pull.high > 0
    assert "measured -1e-05" in pull.note
    assert (profile.server.pull.value, profile.server.pull.kind) == (0.0, "fitted")


def test_an_overlap_that_costs_is_cut_to_0_without_an_interval_around_0(samples: Samples) -> None:
    def costs(visit: Visit) -> Visit:
        slow = tuple(0.08 + 1e-4 * visit.number for _ in range(9))
        return replace(visit, samples={**visit.samples, "together": slow})

    of = without_cells(samples, lambda cell: cell.part not in ("overlap", "allreduce"))
    visits = (costs(v) if v.cell.part == "overlap" else v for v in of.visits)
    a = assemble(replace(of, visits=tuple(visits))).allreduce
    assert (a.overlap.value, a.overlap.low, a.overlap.high, a.overlap.error) == (0.0, *[None] * 3)
    assert re.search(r"measured -0.5\d* \(.*\), cut to 0 to 1; no interval", a.overlap.note)


def test_the_gain_under_contention_has_a_range_and_no_interval(profile: Profile) -> None:
    gain = profile.step.amp_ratio_contended
    assert (gain.low, gain.high, gain.n) == (None, None, 12)
    assert "which is no interval" in gain.note


def test_clocks_and_temperatures_seen_are_in_the_profile(samples: Samples) -> None:
    steps = without_cells(samples, lambda cell: cell.part != "step" or cell.batch > 2)
    states = ({"clock": 2900.0, "temperature": 50.0 + k} for k in range(len(steps.visits)))
    visits = tuple(
        replace(v, facts={**v.facts, "state": state})
        for v, state in zip(steps.visits, states, strict=True)
    )
    last = 50.0 + len(visits) - 1
    found = assemble(replace(steps, visits=visits)).conditions
    assert found == {"clock": (2900.0, 2900.0), "temperature": (50.0, last)}
    assert assemble(steps).conditions == {}


def test_levels_are_of_the_batch_that_was_timed(profile: Profile) -> None:
    assert {response.batch for response in profile.responses} == {8}
    assert {at.batch for at in profile.learning} == {8}


def test_the_law_of_each_load_is_found(profile: Profile) -> None:
    found = [(r.load, r.precision, r.law, r.resource) for r in profile.responses]
    assert found == [
        (load, precision, "linear", "gpu")
        for load in ("cpu", "memory") for precision in ("fp32", "bf16")
    ]  # fmt: skip
    slopes = [r.constants["slope"].value for r in profile.responses]
    assert slopes == pytest.approx([1.1, 1.1, 0.3, 0.3], rel=0.04)
    assert [level.held_out for level in profile.responses[0].levels] == [
        False, False, True, False, False, True,
    ]  # fmt: skip


def test_on_a_gpu_a_load_on_cores_is_the_hosts_and_kernels_are_the_devices_part() -> None:
    machine = Machine(kind="cuda")
    cells = [c for c in cells_of(machine) if c.part in ("step", "contention")]
    made = samples_of(machine, cells)

    def seconds(cell: MeasurementCell) -> float:
        return machine.step[cell.precision](cell.batch)

    visits = tuple(
        replace(v, samples=v.samples | {"kernel": (0.97 * seconds(v.cell),),
                                        "launch": (0.004,)}, facts={"process": 0})
        if v.cell.part == "step" else replace(v, facts={"process": 0})
        for v in made.visits
    )  # fmt: skip
    profile = assemble(replace(made, visits=visits))
    assert {(r.resource, r.part) for r in profile.responses} == {("host", "step")}
    assert {fit.part for fit in profile.batches} == {"device"}
    step = profile.step
    assert step.streams is not None
    assert (step.host_share, step.amp_ratio) == (None, None)
    launch, device = step.streams
    assert launch.full.value == pytest.approx(0.004, rel=0.02)
    assert device.full.value == pytest.approx(0.026, rel=0.02)
    assert device.full.kind == "measured"


def test_a_gpu_whose_kernels_no_profiler_saw_has_the_serial_law() -> None:
    profile = assemble(samples_of(Machine(kind="cuda")))
    assert (profile.step.host_share.value, profile.step.host_share.kind) == (0, "assumed")


def test_what_is_skipped_and_what_was_not_measured_is_said(samples: Samples) -> None:
    visit = Visit(
        MeasurementCell("step", precision="fp32", batch=4096), 0, 0.0, skipped="needs more memory"
    )
    fewer = without_cells(samples, lambda cell: cell.part != "step")
    profile = assemble(replace(fewer, visits=(*fewer.visits, visit)))
    (skipped,) = profile.skipped
    assert (skipped.cell, skipped.reason) == ("step fp32 batch 4096", "needs more memory")
    assert profile.missing[:5] == (
        "responses to contention", "all-reduce", "overlap of all-reduce and backward",
        "steps of ranks in lockstep", "parameter server",
    )  # fmt: skip
    assert (profile.allreduce, profile.server, profile.responses) == (None, None, ())
    assert [held.part for held in profile.held_out] == ["step"]


def test_samples_of_communication_alone_make_a_profile_without_a_step(samples: Samples) -> None:
    profile = assemble(without_cells(samples, lambda c: c.part not in ("allreduce", "server")))
    assert (profile.step, profile.cells) == (None, ())
    assert profile.allreduce.overlap.kind == "assumed"


def test_samples_of_one_visit_make_a_profile_without_intervals() -> None:
    profile = assemble(samples_of(MACHINE, visits=1))
    assert profile.cells[0].seconds.low is None
    assert profile.batches[0].fixed.low is None
    json.loads(profile.text)


def test_a_disturbed_visit_is_left_out(samples: Samples, profile: Profile) -> None:
    """As long as half of the visits are calm."""
    busy = tuple(
        replace(v, number=9, facts={**v.facts, "disturbed": True},
                samples={k: tuple(5 * s for s in of) for k, of in v.samples.items()})
        for v in samples.visits if v.number < 2 and v.cell.part == "step"
    )  # fmt: skip
    again = assemble(replace(samples, visits=samples.visits + busy))
    assert again.cells == profile.cells
