"""Schedules of load, and the injector that carries them out for real and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.calibration.benches import background_traffic
from simstrag.calibration.benches.background_load import SLICE
from simstrag.calibration.benches.bench import Skipped
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.profile.measurements import Level, Response
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import Quantity
from simstrag.validation.loadgen.injector import Injector
from simstrag.validation.loadgen.schedule import Episode, Schedule, response_to

HERE = Path(__file__).parent.parent.parent


def affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = affinity()
    yield
    assert multiprocessing.active_children() == []
    assert affinity() == before


def response(load: str, resource: str = "gpu", **more: Any) -> Response:
    """1 + slope u, as if it had been measured."""
    slope = Quantity(value=more.pop("slope", 1.0), kind="fitted")
    slowed = Level(level=1.0, slowdown=Quantity(value=2.0, kind="measured"))
    return Response.model_validate(
        {"resource": resource, "load": load, "law": "linear", "constants": {"slope": slope},
         "levels": (slowed,), **more}
    )  # fmt: skip


@pytest.fixture
def profile() -> Profile:
    """A real one, with responses that can be told apart."""
    found = Profile.read(HERE / "simstrag/calibration/profiles/intel-xeon-2-core-amx-mlp.json")
    answers = (
        response("cpu", slope=1.5, precision="bf16"), response("cpu", slope=0.5, precision="fp32"),
        response("memory", slope=0.1, precision="fp32"), response("net", "net", slope=2.0),
    )  # fmt: skip
    return found.model_copy(update={"responses": answers})


EPISODES = (
    Episode(0, "cpu", 2.0, 1.0, 3.0),
    Episode(1, "memory", 1.0, 2.0, 4.0),
    Episode(1, "net", 0.5, 4.0, 5.0),
)


def test_a_schedule_is_what_was_written_down(tmp_path: Path) -> None:
    schedule = Schedule(EPISODES, 10.0)
    schedule.write(tmp_path / "load.json")
    assert Schedule.read(tmp_path / "load.json") == schedule


@given(seed=st.integers(0, 1000), seconds=st.floats(10, 500), ranks=st.integers(1, 4))
def test_a_drawn_schedule_is_valid_and_that_of_a_rank_is_its_own(
    seed: int, seconds: float, ranks: int
) -> None:
    kinds, levels = ("cpu", "memory"), (0.5, 1.0, 2.0)
    found = Schedule.drawn(range(ranks), seconds, seed, kinds, levels, mean_on=5.0, mean_off=9.0)
    assert Schedule.of(found.document()) == found
    alone = Schedule.drawn([ranks - 1], seconds, seed, kinds, levels, mean_on=5.0, mean_off=9.0)
    assert alone.episodes == found.on(ranks - 1)
    assert all(each.stop - each.start > 0.99 for each in found.episodes)


def test_a_drawn_schedule_is_on_for_its_part_of_the_time() -> None:
    found = Schedule.drawn(range(40), 2000.0, 3, mean_on=20.0, mean_off=60.0, least=0.0)
    share = sum(each.stop - each.start for each in found.episodes) / 40 / 2000
    assert share == pytest.approx(0.25, abs=0.02)  # four standard errors


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([Episode(0, "cpu", 1.0, 5.0, 4.0)], "it must begin before it ends"),
        ([Episode(0, "cpu", 1.0, 5.0, 11.0)], r"within the 10 s of the schedule"),
        ([Episode(0, "cpu", 0.0, 1.0, 2.0)], "level 0; give a number above 0"),
        ([Episode(0, "cpus", 1.0, 1.0, 2.0)], "no such load"),  # type: ignore[arg-type]
        ([Episode(-1, "cpu", 1.0, 1.0, 2.0)], "rank -1"),
        (
            [Episode(0, "cpu", 1.0, 1.0, 3.0), Episode(0, "memory", 1.0, 2.0, 4.0)],
            "rank 0: load memory from 2 s on begins before cpu ends at 3 s",
        ),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(episodes: list[Episode], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule(tuple(episodes), 10.0)


def test_a_document_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown key .episodes.0.load. .and 4 more"):
        Schedule.of({"seconds": 3.0, "episodes": [{"rank": 1, "load": "cpu"}]})


def test_a_load_that_was_not_measured_is_refused(profile: Profile) -> None:
    with pytest.raises(InputError, match="no response to load gemm; it has cpu, memory, net;"):
        response_to("gemm", profile)


def test_the_response_is_that_of_full_precision(profile: Profile) -> None:
    assert response_to("cpu", profile).constants["slope"].value == 0.5


def busy(core: int, seconds: float) -> float:
    """The share of a core that was not idle."""
    before = psutil.cpu_times(percpu=True)[core]
    time.sleep(seconds)
    after = psutil.cpu_times(percpu=True)[core]
    idle = after.idle + after.iowait - before.idle - before.iowait
    return 1 - idle / (sum(after) - sum(before))


def test_load_comes_and_goes_as_planned_and_says_what_it_did() -> None:
    schedule = Schedule((Episode(0, "cpu", 1.0, 0.3, 1.5), Episode(1, "memory", 0.5, 0.5, 1.2)), 2)
    with Injector(schedule) as injector:
        zero = injector.go()
        did = injector.wait()
        assert time.monotonic() - zero < 5.0
        done = injector.done
    for planned, real in zip(schedule.episodes, did.episodes, strict=True):
        assert (real.rank, real.kind, real.level) == (planned.rank, planned.kind, planned.level)
        assert 0.0 <= real.start - planned.start < 0.3
        assert 0.0 <= real.stop - planned.stop < SLICE + 0.3
    assert did.seconds == 2
    for each in done:
        assert 0.1 < each.report["load_share"] <= 1.05  # of a core that others may use too
        seconds = each.episode.stop - each.episode.start
        assert each.report["load_seconds"] == pytest.approx(seconds, abs=SLICE + 0.1)


def test_load_is_on_the_core_of_its_rank_during_its_episode_alone() -> None:
    core = cores()[-1]
    mine = psutil.Process()
    others = mine.children()  # such as what multiprocessing makes processes with
    with Injector(Schedule((Episode(7, "cpu", 2.0, 0.0, 2.0),), 2.0), cores={7: core}) as injector:
        started = [each for each in mine.children() if each not in others]
        processes = [each for each in started if each.cpu_affinity() == [core]]
        before = sum(sum(each.cpu_times()[:2]) for each in processes)
        time.sleep(0.3)
        assert sum(sum(each.cpu_times()[:2]) for each in processes) - before < 0.1
        injector.go()
        assert len(processes) == 2
        assert busy(core, 0.5) > 0.9
        injector.wait()


def test_only_ranks_of_this_host_are_disturbed() -> None:
    schedule = Schedule((Episode(0, "cpu", 1.0, 0.0, 0.2), Episode(1, "cpu", 1.0, 0.0, 0.2)), 1.0)
    with Injector(schedule, ranks=[1]) as injector:
        injector.go()
        assert injector.wait().ranks == (1,)


def test_traffic_goes_over_the_link_while_it_is_planned() -> None:
    with Injector(Schedule((Episode(0, "net", 0.5, 0.0, 0.4),), 1.0)) as injector:
        injector.go()
        injector.wait()
        (done,) = injector.done
    assert done.report["bytes_per_second"] > 1e6
    assert 0.4 <= done.episode.stop < 0.4 + 10 * background_traffic.POLL


def test_what_is_left_early_ends_early() -> None:
    begun = time.monotonic()
    with Injector(Schedule((Episode(0, "cpu", 1.0, 0.0, 50.0),), 50.0)) as injector:
        injector.go()
        time.sleep(0.2)
    assert injector.done[0].episode.stop < 5.0
    assert time.monotonic() - begun < 40.0
    with pytest.raises(KeyboardInterrupt):
        _interrupted()


def _interrupted() -> None:
    with Injector(Schedule((Episode(0, "cpu", 1.0, 1.0, 50.0),), 50.0)) as injector:
        injector.go()
        raise KeyboardInterrupt


def test_a_load_that_dies_is_told() -> None:
    with Injector(Schedule((Episode(0, "cpu", 1.0, 0.2, 0.6),), 1.0)) as injector:
        for child in multiprocessing.active_children():
            child.kill()
        injector.go()
        with pytest.raises(Exception, match="the process of load 0 ended early"):
            injector.wait()


def test_a_load_that_dies_in_the_episode_in_which_the_run_ends_is_told() -> None:
    with Injector(Schedule((Episode(0, "cpu", 1.0, 0.0, 50.0),), 50.0)) as injector:
        injector.go()
        time.sleep(0.5)
        for child in multiprocessing.active_children():
            child.kill()
    with pytest.raises(Skipped, match="the process of load 0 ended early"):
        injector.check()


def test_loads_of_a_gpu_need_to_know_it() -> None:
    with pytest.raises(InputError, match="rank 0: loads gemm and copy need to know its GPU"):
        Injector(Schedule((Episode(0, "gemm", 1.0, 0.0, 1.0),), 1.0))


PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from simstrag.validation.loadgen.injector import Injector
from simstrag.validation.loadgen.schedule import Episode, Schedule, response_to

if __name__ == "__main__":
    episodes = Episode(0, "cpu", 2.0, 0.0, 60.0), Episode(1, "net", 1.0, 0.0, 60.0)
    schedule = Schedule(episodes, 60.0)
    with Injector(schedule) as injector:
        injector.go()
        print("works", flush=True)
        injector.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_load_ends_with_the_process_that_wanted_it(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "load.py")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4
        process.send_signal(number)
        process.communicate(timeout=30)
        _, left = psutil.wait_procs(children, timeout=3)
    assert left == []
