"""What bounds a step on a GPU, which cells the pace of cores concerns, and what remarks say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.regimes import is_device_bound, is_host_bound
from simstrag.calibration.remarks import remarks
from simstrag.calibration.samples import Samples

SMALL, LARGE = (MeasurementCell("step", precision="tf32", batch=n) for n in (8, 128))
ON_CPU = MeasurementCell("step", precision="fp32", batch=8)


def visit(cell: MeasurementCell, number: int = 0, pace: float = 1e-3, **series: float) -> Visit:
    """A visit of three samples of each series, with a core's pace before and after it."""
    samples = {name: (value,) * 3 for name, value in series.items()}
    return Visit(cell, number, 0.0, samples, {"pace": [[0, pace, pace]]})


STEPS = (
    visit(SMALL, seconds=0.0163, host=0.0162, launch=0.016),
    visit(LARGE, seconds=0.0602, host=0.0587, launch=0.016),
    visit(ON_CPU, seconds=0.05, cpu=0.05),
)


def test_a_step_that_takes_longer_than_its_launching_is_bound_by_the_device() -> None:
    assert [is_device_bound(cell, STEPS) for cell in (SMALL, LARGE, ON_CPU)] == [False, True, False]


def test_kernels_tell_better_than_launching_that_was_quick_for_once() -> None:
    """tf32 at batch 16 on the H200: the host took 24 to 39 ms for 9.4 ms of kernels."""
    slow = visit(SMALL, seconds=0.0285, host=0.0284, launch=0.0196)
    kernels = visit(replace(SMALL, part="anatomy"), kernel=0.0094)
    assert is_device_bound(SMALL, [slow])
    assert not is_device_bound(SMALL, [slow, kernels])


def test_older_samples_tell_by_the_facts_of_first_visits() -> None:
    first = visit(LARGE, seconds=0.0602, host=0.0587)
    assert not is_device_bound(LARGE, [first])
    first.facts.update(host_alone=0.0149)
    assert is_device_bound(LARGE, [first])
    first.facts.update(gpu_busy=0.0592)
    assert is_device_bound(LARGE, [first])


@pytest.mark.parametrize(
    ("cell", "concerned"),
    [
        (SMALL, True),
        (LARGE, False),
        (ON_CPU, True),
        (replace(LARGE, part="contention", load="gemm", level=1.0), False),
        (replace(LARGE, part="contention", load="cpu", level=1.0), True),
        (replace(SMALL, part="contention", load="gemm", level=1.0), True),
        (replace(SMALL, part="anatomy"), False),
        (replace(LARGE, part="power"), False),
        (replace(SMALL, part="power"), True),
        (MeasurementCell("allreduce", backend="gloo", ranks=2, bytes=1024), True),
    ],
    ids=str,
)
def test_the_pace_of_cores_concerns_what_the_host_bounds(
    cell: MeasurementCell, concerned: bool
) -> None:
    assert is_host_bound(cell, STEPS) == concerned


def test_power_without_work_is_the_hosts_only_where_its_processor_is_counted() -> None:
    idle = MeasurementCell("power")
    for source, concerned in (("NVML", False), ("RAPL", True)):
        visits = [Visit(idle, 0, 0.0, {"watts": (122.0,)}, {"source": source})]
        assert is_host_bound(idle, visits) == concerned


def campaign(cell: MeasurementCell, launch: float, *paces: float) -> Samples:
    """Visits to one step of a GPU, one for each pace of the only core."""
    visits = tuple(
        visit(cell, k, pace, seconds=0.06, host=0.06, launch=launch) for k, pace in enumerate(paces)
    )
    stated = {"full": "tf32", "nominal_batch": 0}
    return Samples({"workload": stated, "plan": {"target": 0.02}}, visits)


def test_a_visit_at_an_unusual_pace_counts_where_the_device_bounds_the_step() -> None:
    paces = (1.3e-3, 1.3e-3, 2.4e-3)
    assert len(campaign(LARGE, 0.016, *paces).of(LARGE)) == 3
    assert len(campaign(SMALL, 0.058, *paces).of(SMALL)) == 2


def test_neighbours_are_remarked_for_cells_that_the_host_bounds_alone() -> None:
    paces = (1.3e-3, 1.3e-3, 2.4e-3)
    assert "neighbours" not in " ".join(remarks(campaign(LARGE, 0.016, *paces)))
    said = " ".join(remarks(campaign(SMALL, 0.058, *paces)))
    assert "around 1 of 3 visits the pace of a core differed" in said
    assert "1 of them do not count" in said


def test_unusual_visits_that_count_all_the_same_are_not_said_to_be_left_out() -> None:
    said = " ".join(remarks(campaign(SMALL, 0.058, 1e-3, 1.3e-3, 2e-3)))
    assert "around 2 of 3 visits" in said
    assert "0 of them do not count, the others are of cells with too few usual visits" in said


def timed(*seconds: float, cell: MeasurementCell = ON_CPU) -> tuple[Visit, ...]:
    return tuple(visit(cell, k, seconds=each, cpu=each) for k, each in enumerate(seconds))


def remarked(*visits: Visit) -> str:
    header = {
        "workload": {"full": "tf32", "nominal_batch": 0}, "plan": {"target": 0.02}
    }  # fmt: skip
    return " ".join(remarks(Samples(header, visits)))


def test_a_cell_of_one_visit_is_said_to_have_no_interval() -> None:
    said = remarked(*timed(0.1), *timed(0.1, 0.1, 0.1, cell=replace(ON_CPU, batch=16)))
    assert "one visit, no interval: 1 of 2 cells, such as step fp32 batch 8" in said
    assert "inf" not in said
    assert "intervals of" not in said


def test_an_interval_that_leaves_the_number_open_is_not_printed_to_the_percent() -> None:
    said = remarked(*timed(0.1, 0.3, 0.2))
    assert "the widest: step fp32 batch 8 over 50%" in said
    assert "the median interval is over 50% to either side" in said


def test_two_visits_do_not_tell_that_a_machine_is_noisy() -> None:
    said = remarked(*timed(0.1, 0.104))
    assert "only 2 visits" in said
    assert "noisy" not in said
