"""Recorded durations: they need no `step`, and their control is the median of each step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import simstrag
from simstrag import InputError, Scenario
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.tables.comparison_tables import ranking_table
from simstrag.analysis.text.cautions import cautions
from simstrag.engine.simulate import simulate
from tests.support.contention import durations, slow
from tests.support.refusals import message_of


def test_recorded_durations_alone_say_how_long_a_step_is() -> None:
    """Rank 0 takes 1, 2, 1 s and rank 1 takes 1, 1, 3 s: a barrier takes 1 + 2 + 3 s."""
    scenario = Scenario(workers=2, updates=3, trace=durations((1, 2, 1), (1, 1, 3)))
    assert simulate(scenario, "bsp").summary["makespan"] == 6.0


def test_durations_in_a_file_suffice_too_and_beside_a_profile_without_steps(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, updates=1, trace=durations((1,), (4,)))
    scenario.inputs.trace.write(tmp_path / "mine.csv")
    profile = {"name": "net", "date": "", "command": "", "device": {}, "software": {}}
    (tmp_path / "net.json").write_text(json.dumps(profile))
    for text in ("", "profile: net.json\n"):
        (tmp_path / "s.yaml").write_text(f"workers: 2\nupdates: 1\ntrace: mine.csv\n{text}")
        assert simulate(Scenario.read(tmp_path / "s.yaml"), "bsp").summary["makespan"] == 4.0


def test_a_rank_without_durations_is_named() -> None:
    scenario = Scenario(workers=3, updates=1, trace=durations((1,), (2,)))
    assert message_of(lambda: scenario.inputs) == (
        "scenario: nothing says how long the steps of rank 2 are: the trace records no duration of "
        "node 2: give step: {compute: ...}, a profile, or a trace with durations of every rank's "
        "node"
    )


def test_a_trace_of_slowdowns_alone_does_not_say_how_long_a_step_is() -> None:
    with pytest.raises(InputError, match="nothing says how long a step is: give step"):
        _ = Scenario(workers=2, updates=1, trace=[slow()]).inputs


def test_the_control_of_durations_takes_each_step_at_its_median_over_ranks() -> None:
    """Medians of (1, 2, 6), (3, 1, 2) and of (5, 3), which is all that recorded a third step."""
    rows = durations((1, 3, 5), (2, 1, 3), (6, 2))
    rows.append(slow(9.0, resource="net"))
    control = Scenario(workers=3, updates=3, trace=rows).without_contention()
    timing = control.timing(0)
    assert [timing.compute(rank, k, 0.0, amp=False) for rank in (0, 1) for k in range(3)] == [
        2.0, 2.0, 4.0, 2.0, 2.0, 4.0,
    ]  # fmt: skip
    assert timing.reduce((0, 1, 2), 0.0) == 0.0
    assert Scenario.of(json.loads(json.dumps(control.declared))).timing(0).compute(
        2, 1, 0.0, amp=False
    ) == 2.0  # fmt: skip


@pytest.mark.parametrize(
    ("host_share", "severity", "slow", "seconds"),
    [(0, 1, 3, 3 / 2), (1, 1, 3, 1 / 2 + 2), (0.25, 1, 3, 2.5 / 2 + 0.5), (1, 0.5, 2, 1 / 2 + 1)],
)
@pytest.mark.parametrize("engine", ["native", "plain"])
def test_reduced_precision_leaves_what_the_host_added_to_a_recorded_step(
    engine: str, host_share: float, severity: float, slow: float, seconds: float
) -> None:
    """Rank 2 takes 3 s where the others take 1 s; reduced precision is twice as fast."""
    scenario = Scenario(
        workers=3, updates=1, trace=durations((1,), (1,), (3,)),
        step={"compute": 1, "amp_ratio": 2},
        contention={"host_share": host_share, "severity": severity},
    )  # fmt: skip
    assert simulate(scenario, "bsp", engine=engine).summary["makespan"] == slow
    assert simulate(scenario, "amp_all", engine=engine).summary["makespan"] == seconds


def test_ranks_that_share_a_node_count_each_in_the_median() -> None:
    """Two ranks of 1 s and one of 5 s."""
    scenario = Scenario(workers=3, updates=1, trace=durations((1,), (5,)), nodes=(0, 0, 1))
    assert scenario.without_contention().timing(0).compute(2, 0, 0.0, amp=False) == 1.0


def test_the_control_begins_where_the_seed_does() -> None:
    """A shift moves the control's steps as it moves those of the trace."""
    scenario = Scenario(
        workers=2, updates=1, trace=durations((1, 2, 3), (3, 4, 5)), trace_per_seed="shift"
    )
    for seed in range(4):
        recorded, control = scenario.timing(seed), scenario.without_contention().timing(seed)
        first = [recorded.compute(rank, 0, 0.0, amp=False) for rank in (0, 1)]
        assert control.compute(0, 0, 0.0, amp=False) == sum(first) / 2


@pytest.mark.parametrize("step", [None, {"compute": 0.001}])
def test_a_comparison_of_durations_shows_no_gain_that_the_durations_do_not_hold(step: Any) -> None:
    """Steps of 1 and 2 s: bsp takes 2 s each, and at the median 1.5 s, whatever `step` says."""
    stated = {} if step is None else {"step": step}
    scenario = Scenario(
        workers=2, samples=2 * 128 * 10, trace=durations((1,) * 10, (2,) * 10), **stated
    )
    comparison = simstrag.compare(scenario, ["bsp"], jobs=1)
    assert comparison.column("bsp", "makespan", "clean").tolist() == [15.0]
    *_, last = ranking_table(standings(comparison)).controls
    assert last[0] == "bsp, each step at its median over ranks"
    assert not any("2000" in cell for cell in last)
    assert all(math.isnan(m) for m in comparison.ranking["makespan_mitigation"])


@pytest.mark.parametrize("step", [None, {"compute": 0.001, "cv": 0.1}])
def test_an_autocorrelation_beside_recorded_durations_is_said_to_have_no_effect(step: Any) -> None:
    stated = {} if step is None else {"step": step}
    case = Scenario(
        workers=2, samples=2 * 128 * 10, trace=durations((1,) * 10, (2,) * 10),
        noise={"lag1": 0.5}, **stated,
    )  # fmt: skip
    text = "noise.lag1 has no effect: all steps take their recorded durations, which have no noise"
    assert simulate(case, "bsp").warnings == (text,)
    comparison = simstrag.compare(case, ["bsp"], jobs=1)
    assert comparison.warnings == (text,)
    assert f"N{text[1:]}." in cautions(standings(comparison))
    assert simulate(case.replaced(noise={"lag1": 0}), "bsp").warnings == ()


def test_a_rank_without_durations_has_the_stated_autocorrelation() -> None:
    case = Scenario(
        workers=2, samples=2 * 128 * 10, trace=durations((1,) * 10), noise={"lag1": 0.5},
        step={"compute": 1.0, "cv": 0.1},
    )  # fmt: skip
    assert not case.replays
    assert simulate(case, "bsp").warnings == ()


def test_a_comparison_of_durations_alone_is_written_with_its_report(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, samples=2560, trace=durations((1,) * 10, (2,) * 10))
    comparison = simstrag.compare(scenario, ["bsp", "asgd"], jobs=1)
    page = (comparison.write(tmp_path / "report") / "report.html").read_text()
    assert "bsp, each step at its median over ranks" in page
    assert "takes each step at the median over ranks of that step" in page
    assert type(comparison).read(tmp_path / "report").scenario.inputs.trace is not None
