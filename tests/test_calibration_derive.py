"""Calibration: seeded schedules, estimators that find known answers, a recorder that records."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.calibration import estimate
from simstrag.calibration.benches.burner import KINDS, Episode, Kind, burners, schedule
from simstrag.calibration.derive import profile, trace_rows, write
from simstrag.calibration.recording import Recording, Series, Span, read_recording
from simstrag.processes.affinity import cores
from simstrag.profile.profile import Profile
from simstrag.trace.trace import Trace

CALIBRATION = Path(__file__).parent.parent / "calibration"
RECORDED = Path(__file__).parent.parent / "traces" / "recorded"
MEASUREMENTS = sorted(CALIBRATION.glob("measurements/*/series-0.csv.gz"))


def synthetic(
    number: int = 0,
    slowdown: float = 2.0,
    gain: float = 1.5,
    noise: float = 0.02,
    repeats: int = 1,
) -> Series:
    """A series of 40 ms steps, 12 full and 6 amp in turn, contended from 20 s to 40 s of 60 s.

    repeats: how many successive steps share a draw of noise.
    """
    rng = np.random.default_rng(number)
    rows: list[tuple[float, float, bool, bool]] = []
    now, step, speed, draw = 0.0, 0, 1.0 + 0.1 * number, 1.0
    while now < 60.0:
        place = step % 18
        if step % repeats == 0:
            draw = rng.lognormal(-(noise**2) / 2, noise)
        amp, first = place >= 12, place in (0, 12)
        seconds = 0.04 * speed * draw / (gain if amp else 1.0)
        seconds *= slowdown if 20.0 <= now < 40.0 else 1.0
        seconds += 0.003 if first else 0.0
        rows.append((now, seconds, amp, first))
        now, step = now + seconds, step + 1
    start, seconds_, amp_, first_ = (np.array(column) for column in zip(*rows, strict=True))
    zero = np.zeros(len(rows))
    return Series(
        number, 60.0, (Span(20.0, 40.0, "spin"),), start, seconds_, seconds_, amp_, ~first_,
        np.cumsum(first_), zero, zero,
    )  # fmt: skip


def synthetic_recording(*series: Series) -> Recording:
    rng = np.random.default_rng(1)
    samples = {
        size: (2e-4 + size / 1e9) * rng.lognormal(0, 0.01, 200)
        for size in (256, 65536, 1 << 20, 8 << 20)
    }
    described: dict[str, Any] = {
        "date": "2000-01-01",
        "command": "record",
        "device": {"model": "none", "cores": 2, "flags": ""},
        "software": {},
        "workload": {"name": "none", "parameters": 2 << 20, "shape": {"batch": 8}},
        "precisions": {"full": "fp32", "amp": "bf16 autocast", "stand_in": False},
    }
    server = np.array([[0.001, 0.004, 0.0005]] * 50)
    return Recording(
        described,
        {
            "command": "talk",
            "gradient_bytes": 8 << 20,
            "foreign_load": {"allreduce": 0.0, "server": 0.0},
        },
        series,
        samples,
        server,
        {},
    )


def test_a_schedule_depends_on_its_seed_only() -> None:
    assert schedule(5, 185.0) == schedule(5, 185.0)
    assert schedule(5, 185.0) != schedule(6, 185.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_begins_clean_and_its_episodes_lie_apart(seed: int) -> None:
    episodes = schedule(seed, 185.0)
    assert 2 <= len(episodes) <= 7
    assert episodes[0].start >= 15.0
    assert episodes[-1].stop <= 180.0
    for one, other in pairwise(episodes):
        assert one.stop + 10.0 <= other.start + 1e-9
    assert all(8.0 <= e.stop - e.start + 1e-3 <= 40.01 for e in episodes)
    assert len({e.kind for e in episodes}) == len(episodes)


def test_a_slowdown_of_2_is_found() -> None:
    (episode,) = estimate.episodes(synthetic(slowdown=2.0))
    assert episode.slowdown == pytest.approx(2.0, rel=0.01)
    assert episode.amp_slowdown == pytest.approx(2.0, rel=0.01)
    assert episode.amp_ratio == pytest.approx(1.5, rel=0.01)
    assert episode.early == pytest.approx(episode.late, rel=0.02)


def test_an_episode_that_changes_within_shows_it() -> None:
    series = synthetic()
    late = (series.start >= 30.0) & (series.start < 40.0)
    series = replace(series, seconds=np.where(late, 2 * series.seconds, series.seconds))
    (episode,) = estimate.episodes(series)
    assert episode.late == pytest.approx(2 * episode.early, rel=0.02)
    assert episode.high > 1.5 * episode.low


def test_steps_at_an_edge_are_neither_clean_nor_contended() -> None:
    series = synthetic()
    where = estimate.place(series)
    ended = series.start + series.seconds
    for edge in (20.0, 40.0):
        near = (ended > edge - 0.1) & (series.start < edge + 0.1)
        assert near.any()
        assert (where[near] == -2).all()


def test_noise_has_mean_1_as_the_simulator_draws_it() -> None:
    table = estimate.noise_quantiles(
        [estimate.clean(synthetic(number=k, noise=0.2)) for k in range(3)]
    )
    draws = np.interp(np.linspace(0, 1, 200_001), np.linspace(0, 1, len(table)), table)
    assert draws.mean() == pytest.approx(1.0, abs=1e-4)
    assert (np.diff(table) >= 0).all()


def test_nothing_counts_twice() -> None:
    calm = [synthetic(number=k, slowdown=1.0) for k in range(3)]
    wild = [synthetic(number=k, slowdown=3.0) for k in range(3)]
    tables = [
        estimate.noise_quantiles([estimate.clean(s) for s in group]) for group in (calm, wild)
    ]
    assert tables[0] == pytest.approx(tables[1], rel=0.02)  # contention is not in the noise
    assert tables[1][-1] < 1.15  # nor are the speeds of series (1, 1.1, 1.2), nor switches
    slowdowns = [estimate.episodes(s)[0].slowdown for s in wild]
    assert slowdowns == pytest.approx(
        [3.0] * 3, rel=0.01
    )  # nor is a series' speed in its slowdowns


def test_a_switch_costs_its_3_ms() -> None:
    for to_amp in (True, False):
        found = estimate.switch_seconds(synthetic(), to_amp)
        assert np.median(found) == pytest.approx(0.003, rel=0.1)


def test_lag1_sees_independent_and_repeated_noise() -> None:
    assert abs(estimate.lag1([synthetic(noise=0.05)])) < 0.15
    assert estimate.lag1([synthetic(noise=0.05, repeats=2)]) == pytest.approx(0.5, abs=0.1)


def test_a_stretch_beside_undeclared_load_is_not_clean() -> None:
    series = synthetic()
    tail = series.start >= 40.0
    slower = np.where(tail, 1.1 * series.seconds, series.seconds)  # CPU time stays as it was
    start = np.concatenate([[0.0], np.cumsum(slower)[:-1]])
    disturbed = replace(series, start=start, seconds=slower, length=float(slower.sum()))
    assert (estimate.place(disturbed)[start >= 41.0] == estimate.DISTURBED).all()
    assert estimate.clean_median(disturbed) == pytest.approx(0.04, rel=0.01)


def test_the_ring_fit_finds_its_constants() -> None:
    samples = {size: np.full(9, 2 * 1e-4 + size / 2e9) for size in (256, 65536, 1 << 20, 1 << 23)}
    assert estimate.ring_fit(samples, 1 << 23) == pytest.approx((1e-4, 2e9))
    with pytest.raises(ValueError, match="no bandwidth"):
        estimate.ring_fit(dict.fromkeys(samples, samples[256]), 1 << 23)


def test_load_that_no_schedule_declares_is_seen() -> None:
    series = synthetic(slowdown=1.25)
    between = 0.25 * series.seconds[(series.start > 20.1) & (series.start < 39.9)].sum() / 1.25
    assert estimate.foreign_share(series, series.spans[0]) == pytest.approx(0.0, abs=0.01)
    contended = (series.start >= 20.0) & (series.start < 40.0)
    cpu = np.where(contended, series.seconds / 1.25, series.seconds)
    undeclared = replace(series, cpu_seconds=cpu)
    assert estimate.foreign_share(undeclared, series.spans[0]) == pytest.approx(0.2, abs=0.01)
    declared = replace(series.spans[0], burner_seconds=between)
    assert estimate.foreign_share(undeclared, declared) == pytest.approx(0.0, abs=0.01)
    assert estimate.foreign_share(undeclared, series.clean_stretches[0]) == pytest.approx(
        0, abs=0.01
    )


def test_a_derived_profile_is_accepted_and_a_trace_never_goes_backwards(tmp_path: Path) -> None:
    recording = synthetic_recording(synthetic(0), synthetic(1, slowdown=0.9))
    made = Profile.model_validate(json.loads(json.dumps(profile(recording, "none"))))
    assert made.step.amp_ratio.value == pytest.approx(1.5, rel=0.01)
    assert made.step.compute.value == pytest.approx(0.042, rel=0.03)
    assert made.allreduce.bandwidth.value == pytest.approx(1e9, rel=0.02)
    assert made.server.pull.value == 0.0005
    rows = trace_rows(recording)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    trace = Trace.from_rows(rows)
    assert trace.end == 60.0
    assert [value for _, value in trace.series(0, "gpu", "slowdown")] == pytest.approx(
        [2, 1, 1], rel=0.01
    )
    assert [value for _, value in trace.series(1, "gpu", "slowdown")] == [1.0, 1.0, 1.0]  # clamped


def test_burners_burn_and_none_is_left() -> None:
    core = cores()[-1]
    episodes = (Episode(0.0, 0.2, Kind("two", count=2)), Episode(0.1, 60.0, Kind("long")))
    with burners(episodes[:1], core) as load:
        load.go(time.monotonic())
        reports = load.reports()
    assert len(reports) == 2
    assert all(report["cpu_seconds"] > 0 for report in reports)
    with suppress(KeyboardInterrupt), burners(episodes, core) as load:
        load.go(time.monotonic())
        raise KeyboardInterrupt
    assert all(child.poll() is not None for _, child in load.children)


def test_the_recorder_and_the_timers_of_communication_work_here(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch

    from simstrag.calibration.communication import SMALL_SIZES, measure
    from simstrag.calibration.record import Plan, record
    from simstrag.workloads import STAND_IN, Precisions, Shape

    tiny = Shape(width=16, layers=1, heads=2, hidden=16, classes=4, batch=2, sequence=4)
    plan = Plan(
        seconds=1.5, core=cores()[-1], full_block=4, amp_block=3, warm_up=0.05,
        lead=(0.4, 0.4), span=(0.6, 0.6), gap=(0.5, 0.5),
    )  # fmt: skip
    before, threads = cores(), torch.get_num_threads()
    try:
        record(tmp_path, 2, plan, tiny, Precisions(*STAND_IN, stand_in=True, probed_gain=1.0))
        first = (tmp_path / "series-0.csv.gz").stat().st_mtime_ns
        (tmp_path / "series-1.csv.gz").unlink()
        record(tmp_path, 2, plan, tiny)  # keeps series 0, records series 1 again
        assert (tmp_path / "series-0.csv.gz").stat().st_mtime_ns == first
        measure(tmp_path, tiny, repetitions=3, rounds=20)
    finally:
        torch.set_num_threads(threads)
    assert cores() == before
    recording = read_recording(tmp_path)
    assert [series.number for series in recording.series] == [0, 1]
    for series in recording.series:
        assert len(series.spans) == 1
        assert (series.seconds > 0).all()
        assert (np.diff(series.start) >= series.seconds[:-1] - 1e-6).all()
    assert set(recording.allreduce) > set(SMALL_SIZES)
    assert (recording.server > 0).all()
    assert str(tmp_path) not in (tmp_path / "recording.json").read_text()


def test_kinds_have_different_names() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("first", MEASUREMENTS, ids=[path.parent.name for path in MEASUREMENTS])
def test_committed_profile_and_trace_follow_from_the_committed_recording(
    first: Path, tmp_path: Path
) -> None:
    name = first.parent.name
    write(first.parent, tmp_path / f"{name}.json", tmp_path / f"{name}.csv")
    made = json.loads((tmp_path / f"{name}.json").read_text())
    kept = json.loads((CALIBRATION / "profiles" / f"{name}.json").read_text())
    assert Profile.read(CALIBRATION / "profiles" / f"{name}.json").name == name
    for one, other in zip(_leaves(made), _leaves(kept), strict=True):
        assert one == (pytest.approx(other, rel=1e-5) if isinstance(other, float) else other)
    made_rows = Trace.read(tmp_path / f"{name}.csv").rows
    kept_rows = Trace.read(RECORDED / f"{name}.csv").rows
    assert [row[:4] for row in made_rows] == [row[:4] for row in kept_rows]
    assert [row.value for row in made_rows] == pytest.approx(
        [row.value for row in kept_rows], rel=1e-4
    )


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]
