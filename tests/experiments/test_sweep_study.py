"""Studies: what a file may say, and one message for all that cannot be."""

from pathlib import Path
from typing import Any

import pytest

import simstrag
from simstrag.experiments.study import Study
from tests.support.refusals import message_of, refusals

CASE: dict[str, Any] = {"workers": 4, "samples": 5120, "step": {"compute": 0.1, "cv": 0.1}}
SLOW = "time,node,resource,kind,value\n0.2,3,gpu,slowdown,2.0\n"


def of(folder: Path = Path(), **data: Any) -> Study:
    return Study.of({"scenario": CASE} | data, "study.yaml", folder)


def test_every_combination_is_a_point_and_the_last_key_varies_fastest() -> None:
    points = of(grid={"workers": [4, 8], "server.service": [0.1, 0.2]}).points()
    assert [tuple(point.values.values()) for point in points] == [
        (4, 0.1), (4, 0.2), (8, 0.1), (8, 0.2),
    ]  # fmt: skip
    assert [point.scenario.workers for point in points] == [4, 4, 8, 8]
    assert points[3].scenario.inputs.server.service == 0.2


def test_the_autocorrelation_of_noise_can_vary_without_a_section_in_the_scenario() -> None:
    points = of(grid={"noise.lag1": [0, 0.5]}).points()
    assert [p.scenario.inputs.step.noise.lag1 for p in points] == [0, 0.5]


def test_a_point_without_spread_may_stand_beside_a_stated_autocorrelation() -> None:
    points = of(scenario=CASE | {"noise": {"lag1": 0.5}}, grid={"step.cv": [0, 0.1]}).points()
    without, noisy = (p.scenario.inputs.step.noise for p in points)
    assert (without, noisy.lag1) == (None, 0.5)


def test_a_key_of_a_section_leaves_the_others_of_it_as_they_are() -> None:
    points = of(grid={"step.compute": [0.1, 0.2]}).points()
    assert [(p.scenario.step.compute, p.scenario.step.cv) for p in points] == [
        (0.1, 0.1), (0.2, 0.1),
    ]  # fmt: skip
    learner = {"kind": "real", "task": "digits", "optimizer": {"lr": 0.1, "momentum": 0.9}}
    nested = of(scenario=CASE | {"learner": learner}, grid={"learner.optimizer.lr": [0.1, 0.2]})
    found = [p.scenario.learner for p in nested.points()]
    assert [(one.optimizer.lr, one.optimizer.momentum) for one in found] == [(0.1, 0.9), (0.2, 0.9)]
    assert found[1].task == "digits"


def test_without_a_grid_there_is_one_point() -> None:
    assert [point.values for point in of().points()] == [{}]


def test_policies_and_seeds_stand_for_those_of_the_scenario() -> None:
    scenario = of(scenario=CASE | {"policies": ["bsp"]}, policies=["asgd"], seeds=3).points()[0]
    assert (scenario.scenario.policies, scenario.scenario.seed_list) == (("asgd",), (0, 1, 2))
    assert of(scenario=CASE | {"seeds": 2}).points()[0].scenario.seed_list == (0, 1)


def test_names_of_files_are_as_seen_from_the_file_they_stand_in(tmp_path: Path) -> None:
    for folder in ("cases", "traces", "studies"):
        (tmp_path / folder).mkdir()
    (tmp_path / "cases" / "own.csv").write_text(SLOW)
    (tmp_path / "traces" / "other.csv").write_text(SLOW.replace("2.0", "3.0"))
    case = "workers: 4\nsamples: 5120\nstep: {compute: 0.1}\ntrace: own.csv\n"
    (tmp_path / "cases" / "case.yaml").write_text(case)
    study = tmp_path / "studies" / "study.yaml"
    study.write_text("scenario: ../cases/case.yaml\n")
    (own,) = Study.read(study).points()
    assert own.scenario.inputs.trace.rows[0].value == 2.0
    study.write_text("scenario: ../cases/case.yaml\ngrid: {trace: [null, ../traces/other.csv]}\n")
    clean, other = Study.read(study).points()
    assert clean.scenario.inputs.trace is None
    assert other.scenario.inputs.trace.rows[0].value == 3.0


def test_a_trace_is_read_once_for_all_points_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "slow.csv").write_text(SLOW)
    points = of(tmp_path, grid={"trace": ["slow.csv", None], "workers": [4, 8]}).points()
    first, second, *clean = [point.scenario.inputs.trace for point in points]
    assert first is second is not None
    assert clean == [None, None]


@refusals("""
{grd: {}} | study.yaml: unknown key 'grd'. Did you mean 'grid'?; known: scenario,
{grid: {server.servce: [0]}} | study.yaml: unknown key 'server.servce' in the grid. Did you mean 'server.service'?
{grid: {workers: 8}} | study.yaml: grid.workers is 8: must be a list
{grid: {workers: []}} | study.yaml: grid.workers is []: must be a list of 1 or more
{grid: {workers: [8, 8]}} | study.yaml: grid.workers names 8 twice
{grid: {seeds: [1]}} | study.yaml: seeds is no part of the grid; it is a key of its
{seeds: [1, 1]} | study.yaml: seeds names a seed twice
{seeds: true} | study.yaml: seeds is True: must not be true or false
{policies: [bps]} | there is no policy 'bps'; known: amp_all,
{policies: [bsp, "bsp:via=allreduce"]} | bsp:via=allreduce is bsp; name it once
{scenario: case.yml} | case.yml: no such file or folder
{scenario: {workers: 4}} | study.yaml: nothing ends the run: give samples,
{grid: {trace: [slow.csv]}} | slow.csv: no such file or folder
{grid: {learner: [3], learner.c_tau: [1]}} | learner.c_tau cannot be varied: the scenario's learner is no section
{grid: {learner.optimizer: [adam], learner.optimizer.lr: [1]}} | learner.optimizer.lr cannot be varied: the scenario's learner.optimizer is no section
""")  # noqa: E501 - a row of the table is a line
def test_a_mistake_is_named_before_anything_runs(given: dict[str, Any], message: str) -> None:
    assert message in message_of(lambda: of(**given).points())


def test_all_points_that_cannot_be_are_told_at_once_each_mistake_with_its_first_point() -> None:
    with pytest.raises(simstrag.InputError) as error:
        of(grid={"step.cv": [0.1, -1], "workers": [4, 0, 8]}).points()
    assert str(error.value).splitlines() == [
        "study.yaml: workers is 0: must be 1 or more [point 1 (step.cv=0.1, workers=0)]",
        "study.yaml: step.cv is -1: must be 0 or more [point 3 (step.cv=-1, workers=4) and 1 more]",
        "study.yaml: workers is 0: must be 1 or more (and 1 more) "
        "[point 4 (step.cv=-1, workers=0)]",
    ]


def test_a_trace_of_more_nodes_than_a_point_has_workers_is_told_before_anything_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "slow.csv").write_text(SLOW)
    with pytest.raises(simstrag.InputError, match=r"names node 3, .* \[point 0 \(workers=2\)\]"):
        of(tmp_path, scenario=CASE | {"trace": "slow.csv"}, grid={"workers": [2, 4]}).points()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "a study is a mapping of keys, such as `scenario: demo.yaml`"),
        ("scenario: [", r"study.yaml, line 1: not valid YAML: "),
    ],
)
def test_a_file_that_is_no_study_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(simstrag.InputError, match=message):
        Study.read(tmp_path / "study.yaml")
