"""The HTML reports: whole, offline, escaped, and true to the numbers they are made from."""

import dataclasses
import html
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest

from simstrag.analysis.charts.comparison_charts import explain_missing_curves, tradeoff
from simstrag.analysis.derived.example_runs import examples_of
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.pages.report import render, render_run
from simstrag.analysis.text.assumptions import assumptions
from simstrag.analysis.text.cautions import cautions
from simstrag.analysis.text.number_format import estimate, number
from simstrag.contract import Plan, View
from simstrag.engine.simulate import simulate
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from simstrag.scenario.scenario import Scenario
from tests.support.html_page import Page
from tests.support.slowed_comparison import TRACE, scenario

EVIL = "<script>alert(1)</script>"
COMMAND = "simstrag compare demo.yaml --seeds 3 && echo '<done>'"


def small(**changes: object) -> Comparison:
    """A comparison with as little in it as a report needs."""
    few = {"samples": 4 * 128 * 10, "target_progress": None, "policies": ["bsp", "asgd"]}
    return compare(scenario(**few | changes), sensitivity=False, jobs=1)


def sheets_text(page: str) -> str:
    return page.split('id="sheets">')[1].split("</script>", maxsplit=1)[0]


def sheets_in(page: str) -> dict[str, Any]:
    """What the page can save, by name."""
    found: dict[str, Any] = json.loads(sheets_text(page))
    return found


@pytest.fixture(scope="module")
def bare() -> Comparison:
    return small(policies=["bsp"], trace_per_seed="shift")


@pytest.fixture(scope="module")
def bare_report(bare: Comparison) -> str:
    """The report of bsp alone, made by a command."""
    return render(bare, COMMAND)


@pytest.fixture(scope="module")
def without_trace() -> str:
    return render(small(trace=None))


@pytest.fixture(scope="module")
def report(comparison: Comparison) -> str:
    return render(comparison)


@pytest.fixture(scope="module")
def page(report: str) -> Page:
    return Page(report)


class TestWhole:
    def test_it_is_one_well_formed_file_of_moderate_size(self, report: str, page: Page) -> None:
        assert report.startswith("<!DOCTYPE html>")
        assert page.tags.count("html") == page.tags.count("body") == 1
        assert len(report.encode()) < 3_000_000

    def test_it_asks_nobody_for_anything(self, report: str, page: Page) -> None:
        assert all(a.startswith(("#", "data:image/png;base64,")) for a in page.addresses)
        assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
        assert "default-src 'none'" in report
        assert not re.search(r"@import|url\((?!#)", report)
        assert "http:" not in report
        assert "https:" not in report

    def test_ids_are_its_own_and_links_lead_somewhere(self, page: Page) -> None:
        assert len(page.ids) == len(set(page.ids))
        assert {a[1:] for a in page.addresses if a.startswith("#")} <= set(page.ids)

    def test_it_is_the_same_every_time_and_leaves_nothing_behind(
        self, bare: Comparison, bare_report: str
    ) -> None:
        before = dict(matplotlib.rcParams)
        assert render(bare, COMMAND) == bare_report
        assert dict(matplotlib.rcParams) == before

    def test_it_has_every_part(self, page: Page) -> None:
        for part in (
            "What was asked", "Ranking", "Paired differences", "Progress over time",
            "Workers over time", "Waiting between ranks", "Where time went", "Cost of staleness",
            "Speed against worth", "How stale gradients were",
            "Measured, fitted, assumed", "Assumptions of the simulation", "Run it again",
        ):  # fmt: skip
            assert part in page.text


class TestTrue:
    def test_it_contains_the_numbers_of_the_ranking(
        self, comparison: Comparison, page: Page
    ) -> None:
        for row in comparison.ranking.to_dict(orient="records"):
            for name, scale in (
                ("makespan", 1), ("time_to_target", 1), ("time_to_target_speedup", 1),
                ("time_to_target_mitigation", 100),
            ):  # fmt: skip
                if row["policy"] == "bsp" and name not in ("makespan", "time_to_target"):
                    continue
                ends = (row[name], row[f"{name}_low"], row[f"{name}_high"])
                assert estimate(*ends, percent=scale == 100) in page.text

    def test_curves_that_are_not_drawn_are_named_with_the_reason(self, page: Page) -> None:
        text = explain_missing_curves(standings(small(policies=["bsp", "p_reduce", "local_sgd"])))
        why = "p_reduce and local_sgd (it averages private models)"
        assert text == f"Not drawn, because their progress is unknown: {why}."
        assert "Not drawn" not in page.text

    def test_the_legend_of_a_strip_has_a_colour_for_lost_work(self, page: Page) -> None:
        assert "computed for nothing (dropped or aborted)the same in the whole run" in page.text

    def test_a_mitigation_that_is_not_defined_is_explained(self, without_trace: str) -> None:
        text = Page(without_trace).text
        assert "– for M: not defined" in text  # noqa: RUF001
        assert "There is no contention, so no gain is mitigation" in text

    def test_the_interval_is_said_to_cover_what_it_covers(
        self, page: Page, bare_report: str
    ) -> None:
        assert "3 seeds over one fixed trace" in page.text
        assert "trace_per_seed: same" in page.text
        shifted = Page(bare_report).text
        assert "starting moments in this one trace, not other traces" in shifted
        assert "trace_per_seed: shift" in shifted

    def test_hashes_versions_and_commands_are_there(
        self, comparison: Comparison, page: Page, bare_report: str
    ) -> None:
        assert comparison.scenario.inputs.trace.sha256 in page.text
        provenance = comparison.examples["bsp"].provenance
        for name in ("simstrag", "numpy", "python"):
            assert f"{name}{provenance[name]}" in page.text.replace(" ", "")
        assert "simstrag compare scenario.yaml" in page.text
        assert COMMAND in Page(bare_report).text

    def test_its_scenario_is_the_scenario(
        self, comparison: Comparison, report: str, tmp_path: Path
    ) -> None:
        shown = html.unescape(report.rsplit("<pre>", 1)[1].split("</pre>", 1)[0])
        path = tmp_path / "scenario.yaml"
        path.write_text(shown)
        assert Scenario.read(path).model_dump() == comparison.scenario.model_dump()

    def test_assumptions_follow_from_the_scenario(self, page: Page) -> None:
        assert "assumed (declared in the scenario)" in page.text
        assert "reduced precision is worth as much as one in full" in page.text
        assert "both assumed" in page.text
        few = {"samples": 4 * 128 * 10, "target_progress": None}
        made = scenario(**few)
        bare = " ".join(assumptions(made, [simulate(made, "bsp")]))
        assert "reduced precision is worth" not in bare
        assert "at no cost" not in bare
        name = "backup:via=allreduce"
        backup = " ".join(assumptions(made, [simulate(made, name)]))
        assert f"get the parameters at no cost; {name} would pay" in backup

    def test_a_profile_tells_measured_from_fitted_from_assumed(self, tmp_path: Path) -> None:
        text = Page(render(with_profile(tmp_path))).text
        for word in ("measured", "fitted", "assumed", "99.0 ms to 0.101 s", "timed by hand"):
            assert word in text
        assert "successive steps of a rank have an autocorrelation of 0.31" in text
        assert "autocorrelation of successive ones0.310measured" in text
        assert "Measured noise lasts over steps" not in text, "it is simulated"
        assert "stand-in" in text

    def test_measured_noise_that_is_not_simulated_is_a_caution(self, tmp_path: Path) -> None:
        found = with_profile(tmp_path, noise={"lag1": 0})
        made = " ".join(assumptions(found.scenario, [found.examples["bsp"]]))
        assert "independent of the steps before" in made
        text = " ".join(cautions(standings(found)))
        assert "autocorrelation 0.31), simulated noise does less (0, by `noise.lag1`)" in text

    @pytest.mark.usefixtures("no_page")
    def test_it_reads_back_what_was_written(
        self, comparison: Comparison, bare: Comparison, bare_report: str, tmp_path: Path
    ) -> None:
        def read_back(found: Comparison) -> Comparison:
            found.write(tmp_path / "out")
            return dataclasses.replace(Comparison.read(tmp_path / "out"), made={})  # who wrote it

        texts = (Page(each).text for each in (render(read_back(bare)), bare_report))
        again, before = (text.split("Run it again")[0] for text in texts)
        assert again == before
        read = read_back(comparison)
        for name in ("runs", "controls", "sensitivity", "curves", "waiting", "evaluations"):
            tables = (getattr(of, name).astype(object) for of in (read, comparison))
            pd.testing.assert_frame_equal(*(each.where(each.notna(), None) for each in tables))
        for name, run in comparison.examples.items():
            kept = read.examples[name]
            assert (kept.updates, kept.steps) == (dict(run.updates), run.steps)


class TestNumbers:
    """What the page's script sorts by and saves."""

    def test_a_cell_sorts_by_the_number_that_it_shows(
        self, comparison: Comparison, report: str
    ) -> None:
        table = report[report.index('<table class="ranking') :].split("</tbody>", maxsplit=1)[0]
        rows = table.split("<tr>")[2:]
        for row, known in zip(rows, comparison.ranking.to_dict(orient="records"), strict=True):
            values = [float(value) for value in re.findall(r'data-value="([^"]*)"', row)]
            assert known["time_to_target"] in values
            assert known["time_to_target_speedup"] in values

    def test_what_is_no_number_has_none_to_sort_by(self, without_trace: str) -> None:
        cells = re.findall('<td class="number"[^>]*>–</td>', without_trace)  # noqa: RUF001
        assert cells
        assert not any("data-value" in cell for cell in cells)
        assert 'data-value="nan"' not in without_trace

    def test_every_part_that_saves_has_a_sheet_with_rows(self, report: str) -> None:
        sheets = sheets_in(report)
        wanted = set(re.findall(r'data-sheet="([^"]*)"', report))
        assert wanted == set(sheets)
        for sheet in sheets.values():
            assert {len(row) for row in sheet["rows"]} == {len(sheet["columns"])}

    def test_curves_are_saved_as_they_are_drawn(self, comparison: Comparison, report: str) -> None:
        rows = sheets_in(report)["progress-over-time"]["rows"]
        assert {row[0] for row in rows} == {*comparison.policies, "bsp without contention"}
        last = max((row for row in rows if row[0] == "asgd"), key=lambda row: row[-1])
        assert last[2] <= last[1] <= last[3]

    def test_saved_waiting_is_what_the_sentence_says(
        self, comparison: Comparison, report: str
    ) -> None:
        rows = sheets_in(report)["waiting-between-ranks"]["rows"]
        total = sum(seconds for name, _, _, seconds in rows if name == "bsp")
        assert total == pytest.approx(sum(comparison.examples["bsp"].summary["wait_by_rank"]))


class TestTradeoff:
    def test_two_times_show_who_is_best_in_both(self, comparison: Comparison) -> None:
        found = tradeoff(standings(comparison))
        best = {name for name, front in zip(found.policies, found.on_front, strict=True) if front}
        for times in (found.makespan, found.outcome):
            assert found.policies[int(np.argmin([e.value for e in times]))] in best
        assert all(name in found.sentence for name in best)

    def test_without_a_target_accuracy_is_what_work_is_worth(self) -> None:
        curve = [[0.0, 0.1], [50.0, 0.9]]
        found = tradeoff(standings(small(learner={"noise_scale": 500, "curve": curve})))
        assert found.axis == "accuracy (0 to 1)"
        assert found.on_front[int(np.argmax([e.value for e in found.outcome]))]

    def test_one_time_alone_is_no_tradeoff(self, bare: Comparison, bare_report: str) -> None:
        assert tradeoff(standings(bare)) is None
        assert "Speed against worth" not in bare_report


class TestEscaped:
    def test_names_of_policies_and_traces_are_text(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        @dataclasses.dataclass(frozen=True)
        class Named:
            label: str = ""

            def plan(self, view: View) -> Plan:
                return Plan()

        module = types.ModuleType("strangers")
        module.Named = Named  # type: ignore[attr-defined]
        Named.__module__, Named.__qualname__ = "strangers", "Named"
        monkeypatch.setitem(sys.modules, "strangers", module)
        trace = "<b onclick=x>&.csv"
        Scenario.of({**SMALL, "trace": TRACE}).inputs.trace.write(tmp_path / trace)  # type: ignore[union-attr]
        data = {**SMALL, "trace": trace, "policies": ["bsp", f"strangers:Named:label={EVIL}"]}
        found = compare(Scenario.of(data, folder=tmp_path), jobs=1)
        written = render(found)
        for name in (EVIL, trace):
            assert name not in written
            assert name in Page(written).text
        assert EVIL not in found._repr_html_()
        assert f"strangers:Named:label={EVIL}" in str(sheets_in(written)["ranking"])


class TestRun:
    def test_a_run_has_its_numbers_and_pictures(self, comparison: Comparison) -> None:
        run = comparison.examples["korel"]
        found = Page(render_run(run))
        assert found.tags.count("svg") == 5
        for name in ("makespan", "time_to_target", "goodput"):
            assert number(run.summary[name], 4) in found.text
        assert "--seed 0" in found.text
        assert not any(a.startswith("http") for a in found.addresses)

    def test_a_run_without_steps_says_how_to_get_them(self) -> None:
        made = scenario(target_progress=None, samples=4 * 128 * 5)
        found = Page(render_run(simulate(made, "asgd", 1)))
        assert "The run kept no steps" in found.text

    def test_a_run_far_from_its_trace_shows_no_contention(self, tmp_path: Path) -> None:
        Scenario.of({**SMALL, "trace": TRACE}).inputs.trace.write(tmp_path / "t.csv")  # type: ignore[union-attr]
        made = Scenario.of({**SMALL, "trace": "t.csv"}, folder=tmp_path)
        run = simulate(made, "ssp", record_steps=True)
        found = Page(render_run(run)).text
        assert "not at hand" in found
        assert "For which rank is not shown" in found

    def test_a_run_whose_trace_has_changed_says_so(self) -> None:
        run = simulate(Scenario.of({**SMALL, "trace": TRACE}), "bsp", record_steps=True)
        other = dataclasses.replace(run, provenance={"sha256": {"trace": "0" * 64}})
        assert "The trace has changed since the run" in Page(render_run(other)).text


def with_profile(folder: Path, **changes: object) -> Comparison:
    (folder / "profile.json").write_text(json.dumps(PROFILE))
    data = {
        "workers": 4, "samples": 4 * 128 * 10, "profile": "profile.json", "seeds": 2,
        "policies": ["bsp", "amp_all"], **changes,
    }  # fmt: skip
    return compare(Scenario.of(data, folder=folder), sensitivity=False, jobs=1)


SMALL = {"workers": 4, "samples": 4 * 128 * 10, "step": {"compute": 0.05}, "policies": ["bsp"]}


def quantity(value: float, kind: str = "assumed", **more: object) -> dict[str, object]:
    return {"value": value, "kind": kind, **more}


PROFILE = {
    "name": "test device", "date": "2025-01-01", "command": "nothing", "device": {"cores": 2},
    "software": {"torch": "none"},
    "workload": {
        "name": "mlp", "parameters": 10, "batch": 128, "full": "fp64", "amp": "fp32",
        "stand_in": True,
    },
    "step": {
        "compute": quantity(0.1, "measured", low=0.099, high=0.101, n=50, note="timed by hand"),
        "host_share": quantity(0.1), "amp_ratio": quantity(1.5, "measured"),
        "amp_switch": quantity(0.0),
        "noise": {
            "kind": "measured", "quantiles": [0.9, 1.0, 1.1], "n": 50, "lag1_autocorrelation": 0.31,
        },
    },
    "allreduce": {
        "alpha": quantity(1e-4, "fitted"), "bandwidth": quantity(1e9, "fitted"),
        "bytes": quantity(1e6, "measured"), "overlap": quantity(0.0),
    },
    "server": {name: quantity(1e-3, "measured") for name in ("service", "push", "pull")},
}  # fmt: skip


def test_every_rank_did_something_all_the_time_of_its_run(comparison: Comparison) -> None:
    """By rank, the seconds of a run are computing, communication and waiting, and nothing else."""
    workers = comparison.scenario.workers
    for e in examples_of(comparison):
        seconds = sum(e.parts().values())
        assert seconds == pytest.approx(np.full(workers, e.end), rel=1e-9)
