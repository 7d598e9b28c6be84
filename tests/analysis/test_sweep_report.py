"""The report of a sweep: the winner of each point, its picture, and what is not there yet."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from simstrag import Sweep, compare, sweep
from simstrag.analysis.charts.chart import PAGE
from simstrag.analysis.charts.comparison_charts import looks
from simstrag.analysis.charts.sweep_charts import fastest, pictures
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.derived.sweep_cells import Axis, SweepCells, sweep_cells
from simstrag.analysis.pages.report import report
from simstrag.analysis.pages.sweep_report import render
from simstrag.analysis.text.sweep_text import cautions, describe, outcome, sentences
from simstrag.errors import InputError
from simstrag.experiments.study import Study
from tests.experiments.test_sweep import STUDY
from tests.support.commands import Call
from tests.support.html_page import Page
from tests.support.refusals import message_of

SLOW = [{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}]
CERTAIN: dict[str, Any] = {
    "scenario": {"workers": 4, "samples": 12 * 128, "step": {"compute": 0.1}, "server": {}},
    "grid": {"trace": [None, SLOW], "step.compute": [0.2, 0.1]},
    "policies": ["bsp", "backup"],
    "seeds": 1,
}
"""One rank of four takes twice as long, or none does.

12 batches of 128 samples are 3 updates of bsp and 4 of backup, which leaves one rank out: 3 steps
against 4 where no rank is slow, 6 against 4 where one is.
"""
NOISY: dict[str, Any] = {
    "scenario": {
        "workers": 4, "samples": 10240, "target_progress": 6, "learner": {"noise_scale": 128},
        "step": {"compute": 0.1, "cv": 0.1}, "trace": SLOW, "server": {"push": 0.002},
    },
    "grid": {"learner.c_tau": [4, 0.5, 1], "server.service": [0.001, 0.02]},
    "policies": ["bsp", "asgd", "backup", "ssp"],
    "seeds": 3,
}  # fmt: skip


def run(folder: Path, **changes: Any) -> SweepCells:
    return sweep_cells(sweep(CERTAIN | changes, folder, jobs=1))


@pytest.fixture(scope="module")
def certain(tmp_path_factory: pytest.TempPathFactory) -> SweepCells:
    return run(tmp_path_factory.mktemp("certain"))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> SweepCells:
    return sweep_cells(sweep(NOISY, tmp_path_factory.mktemp("noisy"), jobs=1))


@pytest.fixture(scope="module")
def three_keys(tmp_path_factory: pytest.TempPathFactory) -> SweepCells:
    grid = CERTAIN["grid"] | {"trace_end": ["hold", "loop"]}
    return run(tmp_path_factory.mktemp("three"), grid=grid)


def test_the_winner_of_each_point_is_the_one_by_construction(certain: SweepCells) -> None:
    assert [cell.winner for cell in certain.cells] == ["bsp", "bsp", "backup", "backup"]


def test_times_and_gains_are_those_of_the_closed_form(certain: SweepCells) -> None:
    best = [cell.best for cell in certain.cells]
    assert [p and p.time.value for p in best] == pytest.approx([0.6, 0.3, 0.8, 0.4])
    assert [p and p.saved.value for p in best] == pytest.approx([0.0, 0.0, 1 / 3, 1 / 3])


def test_a_tie_by_construction_has_no_clear_winner(tmp_path: Path) -> None:
    """With one microbatch, a deadline has nowhere to stop a step: dropcompute is bsp."""
    found = run(tmp_path, policies=["bsp", "dropcompute"])
    assert {outcome(cell) for cell in found.cells} == {"no clear winner: bsp and dropcompute"}
    assert sentences(found) == ("At no point is one policy shown to be faster than every other.",)
    assert "no clear winner</text>" in fastest(found)


def test_one_seed_with_noise_shows_no_winner(tmp_path: Path) -> None:
    found = sweep_cells(sweep(NOISY | {"seeds": 1}, tmp_path, jobs=1))
    assert [cell.winner for cell in found.cells] == [None] * 6
    assert any(text.startswith("One seed gives no interval") for text in cautions(found))


@pytest.mark.parametrize("study", [NOISY, CERTAIN], ids=["noisy", "certain"])
def test_the_ranking_of_a_point_is_that_of_compare(
    study: dict[str, Any], noisy: SweepCells, certain: SweepCells
) -> None:
    cells = (noisy if study is NOISY else certain).cells
    for cell, point in zip(cells, Study.of(study).points(), strict=True):
        s = standings(compare(point.scenario, jobs=1))
        assert [(p.policy, p.place) for p in cell.ranking] == [
            (p.policy, p.place) for p in s.policies
        ]
        for own, p in zip(cell.ranking, s.policies, strict=True):
            assert (own.time, own.speedup) == (p.time[s.decides], p.speedup[s.decides])
        best = s.policies[0]
        assert cell.winner == (best.policy if best.place == (1, 1) else None)


# -- the picture ---------------------------------------------------------------------------------


def test_a_policy_has_the_colour_that_it_has_in_a_comparison(noisy: SweepCells) -> None:
    drawn = fastest(noisy)
    winners = {cell.winner for cell in noisy.cells} - {None}
    for policy, look in looks(["bsp", "asgd", "backup", "ssp"]).items():
        assert (f"fill: {PAGE.look(look)['color']}" in drawn) == (policy in winners)


def test_policies_that_share_a_colour_differ_by_hatching() -> None:
    areas = [PAGE.area(look)[:4] for look in range(24)]
    assert len(set(areas)) == 24


def test_numbers_are_sorted_and_words_stay_as_in_the_study(certain: SweepCells) -> None:
    assert certain.axes["step.compute"].values == (0.1, 0.2)
    assert certain.axes["trace"].labels[0] == "null"


@pytest.mark.parametrize(
    ("values", "even"),
    [([1, 2, 4, 8], True), ([10, 20, 30], True), ([1, 10, 20], False), (["a", "b", "c"], True)],
)
def test_values_are_even_on_the_axis_that_suits_them(values: list[Any], even: bool) -> None:
    assert Axis.of("key", values).even is even


def test_equal_values_of_many_points_are_found_without_comparing_each_with_each() -> None:
    class Rows(list[int]):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

    values = [Rows([1]), Rows([2]), Rows([1])]
    assert Axis.of("trace", values).labels == ("[1]", "[2]")
    assert Axis.of("trace", [None, "null", None]).values == (None, "null")


def test_long_values_that_begin_alike_have_different_labels(tmp_path: Path) -> None:
    slower = [SLOW[0] | {"value": 3.0}]
    axis = run(tmp_path, grid={"trace": [SLOW, slower]}).axes["trace"]
    assert axis.labels == ('1: [{"time": 0, "node": 0,…', '2: [{"time": 0, "node": 0,…')


def test_every_point_is_drawn_and_none_averaged_over_a_third_key(three_keys: SweepCells) -> None:
    drawn = fastest(three_keys)
    assert [drawn.count(f"trace_end: {end}</text>") for end in ("hold", "loop")] == [1, 1]
    assert drawn.count(">33 %</text>") == 4
    assert drawn.count(">bsp</text>") == 4 + 1  # and in the legend


@pytest.mark.parametrize(
    "asked", [("trace_end", "trace"), ("trace", None), (None, "trace"), (None, None)]
)
def test_the_axes_are_the_keys_asked_for(
    three_keys: SweepCells, asked: tuple[str | None, str | None]
) -> None:
    x, y, others = three_keys.choose(*asked)
    for axis, key in zip((x, y), asked, strict=True):
        assert key in (None, axis.key)
    assert {x.key, y.key, *(axis.key for axis in others)} == {"trace", "step.compute", "trace_end"}


def test_over_one_key_speed_ups_are_drawn_too(tmp_path: Path) -> None:
    found = run(tmp_path, grid={"trace": [None, SLOW]})
    (strip, lines) = pictures(found)
    assert "speed-up over bsp" in lines
    assert strip.count(">33 %</text>") == 1


def test_without_bsp_times_are_drawn_and_the_page_says_how_to_know_the_gain(tmp_path: Path) -> None:
    found = run(tmp_path, grid={"trace": [None, SLOW]}, policies=["backup", "ssp"])
    assert "mean time (s)" in pictures(found)[1]
    assert any(text.startswith("bsp is not among the policies") for text in cautions(found))


# -- the page ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text(noisy: SweepCells) -> str:
    return render(noisy.sweep)


def test_the_page_is_whole_and_loads_nothing(noisy: SweepCells, text: str) -> None:
    page = Page(text)
    assert [address for address in page.addresses if not address.startswith("#")] == []
    assert len(set(page.ids)) == len(page.ids)
    for sentence in sentences(noisy):
        assert sentence in page.text


def test_versions_and_the_study_come_last(text: str) -> None:
    ids = ("points", "rankings", "asked", "fixed", "again")
    places = [text.index('class="answer"'), *(text.index(f'id="{name}"') for name in ids)]
    assert places == sorted(places)


def test_what_was_fixed_leaves_out_what_was_varied(certain: SweepCells) -> None:
    fixed = render(certain.sweep).split('id="fixed"')[1].split("</pre>")[0]
    assert "workers: 4" in fixed
    assert "compute" not in fixed
    assert "trace" not in fixed.split("<pre>")[1]


def test_an_unfinished_study_is_reported_with_its_gaps(tmp_path: Path) -> None:
    whole = run(tmp_path).sweep
    (tmp_path / "runs" / f"{whole.runs[-1].key}.json").unlink()
    found = sweep_cells(Sweep.read(tmp_path))
    assert [outcome(cell) for cell in found.cells] == [
        "bsp", "bsp", "backup", "no result: 1 has not ended",
    ]  # fmt: skip
    gaps = "1 of 4 points has no result: of 8 runs 1 has not ended. "
    assert sentences(found)[2].startswith(gaps)
    assert "no result</text>" in render(found.sweep)


def test_a_shard_shows_the_whole_sweep(tmp_path: Path) -> None:
    sweep(CERTAIN, tmp_path, jobs=1)
    part = sweep(CERTAIN, tmp_path, jobs=1, shard=(1, 3))
    assert [cell.winner for cell in sweep_cells(part).cells] == ["bsp", "bsp", "backup", "backup"]


def test_a_warning_that_differs_in_numbers_is_shown_once(tmp_path: Path) -> None:
    trace = [
        {"time": t, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 1 + t}
        for t in (0, 0.1)
    ]
    found = run(
        tmp_path, scenario=CERTAIN["scenario"] | {"trace": trace}, grid={"step.compute": [0.2, 0.1]}
    )
    assert len(found.warnings) == 2
    assert {text.split(":")[0] for text in found.warnings} == {"bsp", "backup"}


def test_a_policy_that_fails_is_named_and_the_others_are_ranked(tmp_path: Path) -> None:
    grid = {"workers": [2, 4], "step.compute": [0.1, 0.2]}
    found = run(tmp_path, grid=grid, policies=["bsp", "backup:b=2"])
    assert [cell.winner for cell in found.cells] == ["bsp"] * 4
    said = cautions(found)[0]
    assert said.startswith("backup:b=2 failed at 2 of 4 points and has no place there: ")
    assert said.endswith("(workers: 2, step.compute: 0.1).")


def trained(folder: Path, scenario: dict[str, Any], **changes: Any) -> SweepCells:
    """A sweep of a real learner; scenario: more of its keys."""
    pytest.importorskip("torch")
    learner = {"kind": "real", "task": "tabular", "batch": 4, **scenario.pop("learner", {})}
    case = {"workers": 2, "samples": 64, "step": {"compute": 0.1, "cv": 0.3}, "learner": learner}
    return run(folder, scenario=case | scenario, **changes)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"target_accuracy": 0.999}, "bsp has no time to target at all 2 points and has no place"),
        ({}, "by the time of equal samples, among the policies whose final accuracy is shown to"),
    ],
)
def test_a_sweep_of_a_real_learner_says_what_its_places_are_of(
    target: dict[str, float], words: str, tmp_path: Path
) -> None:
    scenario = {"step": {"compute": 0.1}} | target
    found = trained(tmp_path, scenario, grid={"workers": [2, 4]}, policies=["bsp"])
    said = " ".join(cautions(found))
    assert words in said
    assert "nothing was trained" not in said
    assert "None" not in said


def test_without_a_target_a_real_learner_ranks_policies_as_accurate_as_bsp(tmp_path: Path) -> None:
    """The servers of k_async:x=all make the updates of bsp; asgd makes others, and is faster."""
    policies = ["bsp", "asgd", "k_async"]
    grid = {"learner.optimizer.lr": [0.5, 1e-9]}
    found = trained(tmp_path, {}, grid=grid, policies=policies, seeds=3)
    learning, standing = found.cells
    assert {ranked.policy for ranked in learning.ranking} == {"bsp", "k_async"}
    assert learning.inaccurate == {
        "asgd": "final accuracy is not shown to be within 0.5 points of bsp's"
    }
    assert {ranked.policy for ranked in standing.ranking} == {*policies}
    said = " ".join(cautions(found))
    assert "asgd may be less accurate than bsp at 1 of 2 points and has no place there" in said
    assert "of those shown to be as accurate as bsp" in sentences(found)[0]
    assert "one seed" not in sentences(found)[0]


def test_one_seed_of_a_real_learner_shows_no_other_policy_to_be_as_accurate(tmp_path: Path) -> None:
    scenario = {"learner": {"optimizer": {"lr": 0.5}}}
    grid = {"server.service": [0.001, 0.002]}
    found = trained(tmp_path, scenario, grid=grid, policies=["bsp", "asgd"], seeds=1)
    assert "one seed cannot show it of another: run more" in sentences(found)[0]


def test_a_policy_of_unknown_progress_is_named_with_the_reason_and_the_point(
    certain: SweepCells,
) -> None:
    first, *others = certain.cells
    unknown = dataclasses.replace(first, unknown={"backup": "models are averaged"})
    said = cautions(dataclasses.replace(certain, cells=(unknown, *others)))[0]
    assert said == (
        f"backup has no time to target at 1 of {len(certain.cells)} points and has no place there: "
        f"models are averaged ({describe(first, certain)})."
    )


@pytest.mark.parametrize(("value", "slight"), [(1.36, 1), (1.5, 0)])
def test_a_gain_below_the_known_error_is_named(tmp_path: Path, value: float, slight: int) -> None:
    """backup takes 4 steps, bsp 3 that are stretched: 1 - 4 / (3 * 1.36) is 2 %."""
    found = run(tmp_path, grid={"trace": [None, [SLOW[0] | {"value": value}]]})
    assert [cell.winner for cell in found.cells] == ["bsp", "backup"]
    assert len([text for text in cautions(found) if "known error" in text]) == slight


def test_a_notebook_shows_the_sentences_the_picture_and_the_points(certain: SweepCells) -> None:
    shown = certain.sweep._repr_html_()
    Page(shown)
    assert shown.count("<svg") == 1
    assert sentences(certain)[0] in shown


def test_a_notebook_shows_a_single_point_as_a_table(tmp_path: Path) -> None:
    shown = run(tmp_path, grid={}).sweep._repr_html_()
    assert "<svg" not in shown
    assert "<td" in shown


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("step.compte", None), "x step.compte: the study did not vary it. Did you mean 'step.com"),
        ((None, "workers"), "y workers: the study did not vary it; varied: trace, step.compute"),
        (("trace", "trace"), "x and y are both trace; choose two keys"),
    ],
)
def test_a_key_that_cannot_be_an_axis_is_named(
    certain: SweepCells, asked: tuple[str | None, str | None], message: str
) -> None:
    assert message_of(lambda: certain.choose(*asked)).startswith(message)


def test_the_only_key_lies_along_x(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="y trace: only this key was varied, so it lies along x"):
        run(tmp_path, grid={"trace": [None, SLOW]}).choose(None, "trace")


def test_a_study_of_one_point_has_no_report_and_the_error_says_what_has(tmp_path: Path) -> None:
    run(tmp_path, grid={})
    with pytest.raises(InputError, match="a study of one point has no picture; list more values"):
        report(tmp_path)


def test_a_folder_that_is_no_study_says_what_would_be(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="holds no comparison, run, sweep or cluster study; give a"
    ):
        report(tmp_path)
    with pytest.raises(InputError, match="x and y are for a sweep, and it holds none"):
        report(tmp_path, x="workers")


# -- the command ---------------------------------------------------------------------------------


def test_sweep_writes_the_page_and_report_draws_it_with_other_axes(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(json.dumps(CERTAIN))
    code, out, err = call("sweep", "study.yaml", "--jobs", "1")
    assert (code, out.splitlines()[-1], err) == (0, "report: reports/study/report.html", "")
    first = Path("reports/study/report.html").read_text()
    assert "The fastest policy over step.compute and trace" in first
    asked = ("report", "reports/study", "--x", "trace", "--out", "page.html")
    assert call(*asked) == (0, "report: page.html\n", "")
    assert "The fastest policy over trace and step.compute" in Path("page.html").read_text()


@pytest.mark.usefixtures("no_page")
def test_a_shard_writes_the_page_once_all_runs_have_ended(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(json.dumps(STUDY))
    for part, there in (("1/2", False), ("2/2", True)):
        assert call("sweep", "study.yaml", "--jobs", "1", "--out", "s", "--shard", part)[0] == 0
        assert Path("s/report.html").exists() == there


def test_a_study_of_one_point_is_swept_without_a_page(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(json.dumps(CERTAIN | {"grid": {}}))
    code, out, _ = call("sweep", "study.yaml", "--jobs", "1")
    assert (code, "report: " in out) == (0, False)
