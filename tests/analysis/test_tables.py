"""Tables, notebooks and the answer: the numbers of a comparison and no others."""

import dataclasses
import html
import json
import math
import re

import numpy as np
import pandas as pd
import pytest

from simstrag.analysis.derived.ranking import Standings, standings
from simstrag.analysis.tables.comparison_tables import (
    behind_table,
    costs_table,
    differences_table,
    failures_table,
    ranking_table,
)
from simstrag.analysis.tables.origins import origins_data
from simstrag.analysis.tables.table import Number, Table, csv_data
from simstrag.analysis.text.answer import answer
from simstrag.analysis.text.cautions import cautions
from simstrag.analysis.text.gain_text import percent_of
from simstrag.analysis.text.number_format import MISSING, estimate, number, percent, seconds
from simstrag.analysis.text.remark import Severity
from simstrag.analysis.text.sensitivity_text import leader, turnover
from simstrag.analysis.text.spread_text import coverage
from simstrag.experiments import paired_statistics
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.paired_statistics import Estimate
from simstrag.scenario.scenario import Scenario
from tests.support import slowed_comparison
from tests.support.contention import durations, slow

POLICIES = ["bsp", "bsp:via=server", "asgd", "ssp", "backup", "amp_all", "korel"]


def scenario(**changes: object) -> Scenario:
    eight = {
        "workers": 8, "samples": 8 * 128 * 50, "target_progress": 30.0, "policies": POLICIES,
        "server": {"service": 5e-4, "push": 1e-3, "pull": 1e-3},
    }  # fmt: skip
    return slowed_comparison.scenario(**eight | changes)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(scenario(), sensitivity=False, jobs=1)


@pytest.fixture(scope="module")
def shown(comparison: Comparison) -> Standings:
    return standings(comparison)


def small(**changes: object) -> Standings:
    few = {"workers": 4, "samples": 4 * 128 * 12, "target_progress": None}
    return standings(compare(scenario(**few | changes), sensitivity=False, jobs=1))


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


def cells_of(table: Table) -> dict[str, dict[str, str]]:
    """The cells of a table by policy and header."""
    return {row[0]: dict(zip(table.headers, row, strict=True)) for row in table.rows}


class TestFormats:
    def test_an_interval_says_how_many_digits_there_are(self) -> None:
        assert estimate(12.3456, 12.1, 12.6) == "12.3 (12.1–12.6)"  # noqa: RUF001
        assert estimate(0.45678, 0.4561, 0.4573) == "0.4568 (0.4561–0.4573)"  # noqa: RUF001

    def test_both_ends_of_an_interval_are_told_apart(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(500):
            low = float(rng.normal() * 10.0 ** rng.integers(-3, 4))
            high = low + float(rng.random() * 10.0 ** rng.integers(-5, 3)) + 1e-6
            shown = estimate((low + high) / 2, low, high)
            ends = re.findall(r"[\d.]+", shown)[1:]
            assert (ends and (ends[0] != ends[1] or low * high < 0)) or high - low < 2e-3 * abs(low)

    def test_no_number_has_more_than_four_digits_after_its_first_zeros(self) -> None:
        assert estimate(273.8, 273.8 - 1e-12, 273.8 + 1e-12) == "273.8"
        assert estimate(35.598, 35.593, 35.601) == "35.60 (35.59–35.60)"  # noqa: RUF001
        assert estimate(0.001, -1.0, 1.0) == "0 (−1 to 1)"  # noqa: RUF001

    def test_an_end_that_is_not_zero_is_not_shown_as_zero(self) -> None:
        assert estimate(9.12, 0.023, 22.13) == "9 (0.02–22)"  # noqa: RUF001
        assert estimate(-9.12, -22.13, -0.023, sign=True) == "−9 (−22 to −0.02)"  # noqa: RUF001
        assert estimate(9.1, 0.0, 22.1) == "9 (0–22)"  # noqa: RUF001

    def test_a_percentage_has_at_most_one_decimal(self) -> None:
        assert estimate(0.8676, 0.8675, 0.8677, percent=True) == "86.8"
        assert estimate(0.8617, math.nan, math.nan, percent=True) == f"86.2 ({MISSING})"
        assert estimate(0.0003, 0.0002, 0.0004, percent=True) == "0.03 (0.02–0.04)"  # noqa: RUF001
        assert percent_of(Estimate(0.8676, 0.8675, 0.8677)) == "86.8 %"

    def test_what_is_no_number_is_a_dash(self) -> None:
        nan = math.nan
        assert number(nan) == number(None) == estimate(nan, nan, nan) == percent(None) == MISSING
        assert estimate(2.0, nan, nan) == f"2.00 ({MISSING})"

    def test_units_go_with_the_size(self) -> None:
        assert (seconds(0.0015), seconds(2.0), seconds(0.0)) == ("1.50 ms", "2.00 s", "0 s")


class TestRanking:
    def test_rows_hold_the_numbers_of_the_ranking(self, comparison: Comparison) -> None:
        cells = cells_of(ranking_table(standings(comparison)))
        for row in comparison.ranking.to_dict(orient="records"):
            for name, header, scale in (
                ("time_to_target", "time to target (s)", 1),
                ("time_to_target_mitigation", "M (%)", 100),
                ("time_to_target_speedup", "speed-up", 1),
            ):
                if row["policy"] != "bsp" or name == "time_to_target":
                    ends = (row[name], row[f"{name}_low"], row[f"{name}_high"])
                    assert cells[row["policy"]][header] == estimate(*ends, percent=scale == 100)

    def test_the_makespan_beside_a_time_to_target_stands_behind_the_ranking(
        self, comparison: Comparison
    ) -> None:
        cells = cells_of(behind_table(standings(comparison)))
        for row in comparison.ranking.to_dict(orient="records"):
            ends = (row["makespan"], row["makespan_low"], row["makespan_high"])
            assert cells[row["policy"]]["makespan (s)"] == estimate(*ends)
            assert cells[row["policy"]]["updates through"] == row["architecture"]

    def test_the_clean_control_is_the_last_row_and_no_policy(self, comparison: Comparison) -> None:
        table = ranking_table(standings(comparison))
        assert [row[0] for row in table.rows] == list(comparison.ranking["policy"])
        (control,) = table.controls
        assert control[0] == "bsp without contention"
        clean = comparison.column("bsp", "time_to_target", "clean")
        assert estimate(*paired_statistics.mean(clean)) in control

    def test_bsp_as_the_baseline_alone_stands_below_the_policies(self) -> None:
        failures = {"events": [{"time": 0.2, "rank": 1}], "on_fault": "continue"}
        s = small(policies=["backup"], failures=failures, seeds=1)
        asked = small(policies=["backup", "bsp"], failures=failures, seeds=1)
        ranking, failed, behind = (
            table(s) for table in (ranking_table, failures_table, behind_table)
        )
        assert [row[0] for row in ranking.controls] == ["bsp", "bsp without contention"]
        assert ranking.controls[0][2] == Number.estimate(s.baseline["makespan"])
        assert {*failed.rows, *failed.controls} == {*failures_table(asked).rows}
        assert behind.controls[0] in behind_table(asked).rows

    def test_every_row_has_a_cell_per_header(self, shown: Standings) -> None:
        tables = (ranking_table(shown), differences_table(shown), behind_table(shown))
        for table in (*tables, costs_table(shown)):
            assert {len(row) for row in table.rows} == {len(table.headers)}
            assert all(len(row) == len(table.headers) for row in table.controls)

    def test_places_that_differences_leave_open_are_ranges(self) -> None:
        twins = small(policies=["bsp", "ssp:bound=inf", "asgd"], samples=4 * 128 * 40)
        places = {row[0]: row[1] for row in ranking_table(twins).rows}
        assert places["asgd"] == places["ssp:bound=inf"] == "1–2"  # noqa: RUF001
        assert places["bsp"] == "3"

    def test_server_policies_stand_beside_bsp_through_the_server(self, shown: Standings) -> None:
        cells, server = cells_of(differences_table(shown)), "bsp:via=server"
        beside = {name: row[f"makespan against {server} (s)"] for name, row in cells.items()}
        assert beside["korel"] == beside[server] == ""
        makespans = (shown.comparison.column(name, "makespan") for name in ("asgd", server))
        gap = paired_statistics.difference(*makespans)
        assert beside["asgd"] == estimate(*gap, sign=True)

    def test_mitigation_is_a_dash_with_its_reason_where_nothing_is_to_mitigate(self) -> None:
        table = ranking_table(small(trace=None, policies=["bsp", "asgd"]))
        assert {row[-1] for row in table.rows} == {MISSING}
        assert any("not defined" in note and "0.5 %" in note for note in table.notes)

    @pytest.mark.parametrize("ends", [(-3.87, 2.72), (math.nan, math.nan)])
    def test_mitigation_of_hardly_any_delay_is_a_dash_with_its_number_in_the_file(
        self, shown: Standings, ends: tuple[float, float]
    ) -> None:
        first, *others = shown.policies
        vague = dict.fromkeys(shown.times, Estimate(-2.59, *ends))
        first = dataclasses.replace(first, mitigation=vague)
        table = ranking_table(dataclasses.replace(shown, policies=(first, *others)))
        assert table.rows[0][-1] == MISSING
        assert table.rows[0][-1].value == -259
        assert any(note.startswith(f"{MISSING} for M of {first.policy}:") for note in table.notes)
        assert not any(MISSING in row[-1][:2] for row in table.rows[1:])

    def test_one_seed_has_no_interval_and_says_so(self) -> None:
        table = ranking_table(small(seeds=1, policies=["bsp", "asgd"]))
        assert table.rows[0][2].endswith(f"({MISSING})")
        assert any("one seed gives no interval" in note for note in table.notes)

    def test_a_target_without_samples_is_one_time_and_not_two(self) -> None:
        s = standings(compare(scenario(samples=None, policies=["bsp", "asgd"]), jobs=1))
        table = ranking_table(s)
        assert "makespan (s)" not in table.headers
        assert any("Makespan is the same number" in note for note in table.notes)

    def test_html_says_what_the_terminal_says(self, comparison: Comparison) -> None:
        text = text_of(comparison._repr_html_())
        table = ranking_table(standings(comparison))
        for row in (*table.rows, *table.controls, table.notes):
            for cell in row:
                assert cell in text


class TestBehind:
    def test_it_holds_the_means_of_the_runs(self, shown: Standings) -> None:
        cells = cells_of(behind_table(shown))
        ranking = shown.comparison.ranking.set_index("policy")
        for policy in POLICIES:
            row = cells[policy]
            assert row["goodput (samples/s)"] == number(ranking["goodput"][policy])
            assert row["S_stale/b (gradients)"] == number(ranking["effective_staleness"][policy])
            assert row["in reduced precision (%)"] == percent(ranking["amp_share"][policy])
            assert row["detection: recall (%)"] == percent(ranking["detection_recall"][policy])
        assert float(cells["backup"]["steps thrown away (%)"]) > 10

    def test_what_a_deadline_cut_is_a_column_where_one_did(self, shown: Standings) -> None:
        late = "dropcompute:theta=0.04"
        s = small(policies=["bsp", late, "dropcompute"], microbatches=8)
        cells, column = cells_of(behind_table(s)), s.comparison.column
        assert cells["bsp"]["samples cut (%)"] == "0"
        cut = column(late, "cut_share").mean()
        assert cells[late]["samples cut (%)"] == percent(cut)
        assert 0.05 < cut < 0.5
        assert set(column(late, "theta")) == {0.04}
        assert math.isnan(column("dropcompute", "theta")[0])
        assert "samples cut (%)" not in behind_table(shown).headers

    def test_half_of_a_step_that_is_stopped_after_two_of_four_micro_batches_is_cut(self) -> None:
        half = {"step": {"compute": 0.04}, "trace": None, "microbatches": 4}
        made = small(policies=["bsp", "dropcompute:theta=0.015"], **half).comparison
        assert made.column("dropcompute:theta=0.015", "cut_share").tolist() == [0.5] * 3
        assert made.column("bsp", "cut_share").tolist() == [0.0] * 3

    def test_a_deadline_that_was_chosen_is_in_the_summary(self) -> None:
        s = small(samples=4 * 128 * 80, policies=["bsp", "dropcompute"], microbatches=8)
        assert np.all(s.comparison.column("dropcompute", "theta") > 0)
        assert set(s.comparison.column("dropcompute", "cuttable")) == {1}

    def test_costs_are_of_the_simulated_sensitivity(self, shown: Standings) -> None:
        table = costs_table(shown)
        at = {row[0]: row for row in table.rows}
        means = shown.comparison.sensitivity.groupby(["policy", "c_tau"])["time_to_target"].mean()
        for k, c_tau in enumerate((0.5, 1.0, 4.0), start=1):
            value = float(at["asgd"][k].split(" ")[0])
            assert value == pytest.approx(means["asgd", c_tau], rel=0.01)


class TestSaved:
    def test_a_csv_file_holds_what_a_table_rounds(self, shown: Standings) -> None:
        saved = csv_data({"ranking": ranking_table(shown)})["ranking"]
        rows = [dict(zip(saved["columns"], row, strict=True)) for row in saved["rows"]]
        for row, known in zip(rows, shown.comparison.ranking.to_dict("records"), strict=False):
            for end, column in (("", ""), ("_low", ", low"), ("_high", ", high")):
                assert row[f"time to target (s){column}"] == known[f"time_to_target{end}"]
                mitigation = known[f"time_to_target_mitigation{end}"]
                assert row[f"M (%){column}"] == pytest.approx(100 * mitigation)
            assert isinstance(row["place, high"], int)

    def test_the_control_is_its_last_row_with_nothing_where_the_table_has_nothing(
        self, shown: Standings
    ) -> None:
        last = {header: column[-1] for header, column in ranking_table(shown).fields()}
        assert last["policy"] == "bsp without contention"
        assert last["M (%)"] is last["M (%), low"] is None

    def test_quantities_keep_their_unit_in_a_column_of_its_own(self) -> None:
        step = cells_of(origins_data(scenario()))["step in full precision, idle machine"]
        assert (step["value"], step["unit"]) == (0.05, "s")


class TestAnswer:
    def test_it_is_sentences(self, shown: Standings) -> None:
        for s in (shown, small(seeds=1), small(trace=None), small(policies=["bsp"])):
            for text in answer(s).sentences:
                assert text.endswith(".")
                assert text == text.strip()

    def test_policies_that_made_the_same_runs_are_told_so(self) -> None:
        s = small(policies=["bsp", "korel", "asgd"], trace=None)
        assert any("bsp and korel made the same runs" in note for note in ranking_table(s).notes)
        twins = small(policies=["bsp", "asgd", "ssp:bound=inf"], samples=4 * 128 * 40)
        assert "No difference from it is shown for ssp:bound=inf" in answer(twins).lanes["C"]

    def test_one_seed_is_enough_where_nothing_is_random(self) -> None:
        sure = {"step": {"compute": 0.05, "amp_ratio": 1.6}, "policies": ["bsp", "amp_all", "asgd"]}
        s = small(seeds=1, **sure)
        assert "un mixed precision on every worker (amp_all): 37.1 % sooner" in answer(s).choice
        assert "Nothing is random here, so one seed is enough" in answer(s).conditions
        rows = ranking_table(s).rows
        assert [row[1] for row in rows] == ["1", "2", "3"]
        two = ranking_table(small(seeds=2, **sure)).rows
        assert [row[:4] for row in rows] == [row[:4] for row in two]
        assert not any("no difference can be shown" in note for note in ranking_table(s).notes)
        shifted = small(seeds=1, trace_per_seed="shift", **sure)
        assert answer(shifted).choice.startswith("No difference can be shown with one seed")

    @pytest.mark.parametrize(
        ("policy", "but"),
        [
            ("p_reduce", "But the worth of its samples is unknown, because it averages"),
            ("asgd", "But its gradients are stale"),
        ],
    )
    def test_samples_of_unknown_worth_are_no_safe_choice(self, policy: str, but: str) -> None:
        found = answer(small(samples=4 * 128 * 40, policies=["bsp", policy]))
        assert found.decision.best("C") is not None
        assert found.decision.safe == "bsp"
        assert but in found.lanes["C"]
        assert "declare a target" in found.choice

    def test_a_mean_that_is_better_by_chance_shows_no_difference(
        self, comparison: Comparison
    ) -> None:
        runs = comparison.runs.copy()
        asgd = runs["policy"] == "asgd"
        bsp = runs[runs["policy"] == "bsp"]["time_to_target"].to_numpy()
        runs.loc[asgd, "time_to_target"] = bsp + np.array([-3.0, 0.5, 0.5])
        keep = runs["policy"].isin(["bsp", "asgd"])
        noisy = dataclasses.replace(comparison, runs=runs[keep].reset_index(drop=True))
        found = answer(standings(noisy))
        text = "C, which changes the algorithm: asgd is not shown to be faster than bsp."
        assert found.lanes["C"] == text

    def test_one_seed_shows_nothing(self) -> None:
        found = answer(small(seeds=1, policies=["bsp", "asgd"]))
        assert found.choice.startswith("No difference can be shown with one seed")
        assert "There are no intervals" in found.conditions

    @pytest.mark.parametrize("names", [["bsp", "backup:b=3"], ["backup:b=3"]])
    def test_bsp_need_not_be_compared_to_be_compared_with(self, names: list[str]) -> None:
        found = answer(small(trace=None, policies=names, target_progress=2.0))
        assert found.choice.startswith("Change nothing: every policy compared takes longer than")

    def test_it_says_what_a_fixed_trace_cannot_show(self, shown: Standings) -> None:
        assert "say nothing about another day" in answer(shown).conditions
        shift = small(trace_per_seed="shift", policies=["bsp", "asgd"])
        assert "cover 3 starting moments in this one trace, not other traces" in coverage(shift)

    def test_without_noise_all_seeds_are_one_run(self) -> None:
        s = small(step={"compute": 0.05}, policies=["bsp", "asgd"])
        assert "one and the same run" in coverage(s)

    def test_equals_under_another_cost_of_staleness_are_named(self, shown: Standings) -> None:
        words = "the cost of staleness (c_tau) stays above a value between 0.5 and 1"
        assert f"as long as {words}" in answer(shown).conditions
        others = rf"The best mean is that of (?!{leader(shown, 1)})\S+ at c_tau [\d. and,]*0.5 and "
        assert re.match(others, turnover(shown))

    def test_nothing_turns_over_where_nothing_is_stale(self) -> None:
        s = standings(compare(scenario(policies=["bsp", "amp_all"]), jobs=1))
        assert turnover(s) == "The best mean is that of amp_all."

    def test_without_a_target_there_is_no_sensitivity(self) -> None:
        assert turnover(small(policies=["bsp"])).startswith("No target is declared")


class TestCautions:
    def test_without_a_target_what_a_sample_is_worth_comes_first(self, shown: Standings) -> None:
        slowed, larger, stale, averaged, *_ = cautions(
            small(policies=["bsp", "asgd", "local_sgd", "p_reduce"])
        )
        assert slowed.startswith("No step was slowed")
        assert "makespans are of more work: local_sgd by 33 %" in larger
        assert "asgd applied stale gradients" in stale
        assert "Declare a target" in stale
        assert "p_reduce and local_sgd (it averages private models)" in averaged
        assert "stale gradients" not in " ".join(cautions(shown))
        assert "stale gradients" not in " ".join(cautions(small(policies=["bsp", "amp_all"])))

    def test_rows_are_for_json_and_the_most_severe_come_first(self, shown: Standings) -> None:
        found = cautions(shown)
        assert [f.severity for f in found] == sorted(f.severity for f in found)
        (row,) = [f.to_dict() for f in found if f.kind == "model of progress"]
        assert json.loads(json.dumps(row)) == row
        assert row["severity"] == "doubt"
        assert row["values"]["noise"] == 500
        assert row["text"] in cautions(shown)

    def test_a_deadline_that_can_cut_nothing_is_told(self) -> None:
        policies = ["bsp", "dropcompute:theta=0.05", "dropcompute", "dropcompute:theta=inf"]
        (text,) = [t for t in cautions(small(policies=policies)) if "microbatches" in t]
        assert "dropcompute:theta=0.05 and dropcompute are bsp here: microbatches is 1" in text
        cut = small(policies=policies[:2], microbatches=8)
        assert "microbatches" not in " ".join(cautions(cut))

    @pytest.mark.parametrize(
        ("policies", "what"),
        [
            (["bsp", "amp_all"], "an all-reduce"), (["bsp:via=server", "asgd"], "the server"),
            (["bsp", "asgd"], "an all-reduce and the server"),
            (["bsp", "local_sgd"], "an all-reduce"),
        ],
    )  # fmt: skip
    def test_free_communication_is_told_of_what_somebody_uses(
        self, policies: list[str], what: str
    ) -> None:
        found = cautions(small(allreduce=None, server=None, policies=policies))
        assert any(text.startswith(f"Communication through {what} takes no") for text in found)

    def test_a_server_that_nobody_uses_may_be_free(self) -> None:
        s = small(server=None, policies=["bsp", "amp_all"])
        assert "takes no time" not in " ".join(cautions(s))

    def test_a_free_server_beside_a_known_all_reduce_decides(self) -> None:
        words = "Communication through the server takes no time"
        reduced = {"allreduce": {"alpha": 1e-3}, "policies": ["bsp", "asgd"]}
        found = cautions(small(server=None, **reduced))
        assert found[1].startswith(words), "after that no step was slowed"
        assert sum(text.startswith(words) for text in found) == 1
        least = small(server=None, allreduce=None)
        assert [f.severity for f in cautions(least) if f.startswith("Comm")] == [Severity.DOUBT]
        assert words not in " ".join(cautions(small(server={"service": 1e-3}, **reduced)))

    def test_times_to_target_are_told_to_rest_on_a_model(self, shown: Standings) -> None:
        text = " ".join(cautions(shown))
        assert "the noise scale of 500 samples (learner.noise_scale, assumed;" in text
        assert "and c_tau 1, the cost of staleness (learner.c_tau, assumed (d" in text
        assert "`simstrag fit` finds it for a small task of yours" in text
        assert "For amp_all and korel, times to target also assume" in text
        assert "model of progress" not in " ".join(cautions(small(policies=["bsp", "amp_all"])))

    def test_who_moves_samples_is_told_to_have_no_fixed_part_of_a_step(self) -> None:
        rows = [slow(node=3)]
        text = " ".join(cautions(small(trace=rows, policies=["bsp", "lb_bsp"])))
        assert "would slow down lb_bsp" in text
        assert "slow down" not in " ".join(cautions(small(policies=["bsp", "asgd"])))

    def test_work_beyond_what_was_asked_for_is_told(self) -> None:
        """Three updates of 8 x 4 gradients hold 96 gradients where 80 were asked for."""
        s = small(samples=4 * 128 * 20, policies=["bsp", "local_sgd"])
        (text,) = [text for text in cautions(s) if "overshoot" in text]
        assert text.endswith("of more work: local_sgd by 20 %.")

    @pytest.mark.parametrize(
        ("resource", "reason"), [("host", "host_share is 0"), ("net", "no transfer takes any time")]
    )
    def test_contention_that_nothing_feels_is_told(self, resource: str, reason: str) -> None:
        rows = [slow(node=1, resource=resource)]
        free = {"allreduce": None, "server": None}
        text = " ".join(cautions(small(trace=rows, policies=["bsp"], **free)))
        assert f"The trace's {resource} rows have no effect: {reason}." in text
        felt = {"step": {"compute": 0.05, "host_share": 0.5}, "allreduce": {"alpha": 1e-3}}
        assert "no effect" not in " ".join(cautions(small(trace=rows, policies=["bsp"], **felt)))

    def test_time_beyond_the_trace_is_told(self) -> None:
        s = small(trace=[slow(2.0, 0.1, 3)], policies=["bsp"])
        assert any("beyond the end of the trace" in text for text in cautions(s))

    def test_recorded_durations_make_no_claim_of_mitigation(self) -> None:
        rows = durations(*((0.05 * (1 + n),) * 30 for n in range(4)))
        s = small(trace=rows, policies=["bsp", "amp_all"])
        assert any("no M is claimed" in text for text in cautions(s))
        assert answer(s).bill.startswith("Stragglers cost this job ")


@pytest.mark.parametrize(("untrained", "limits"), [(0.1, (0.0, 1.0)), (-0.2, (-math.inf, 1.0))])
def test_the_interval_of_an_accuracy_ends_at_what_an_accuracy_can_be(
    untrained: float, limits: tuple[float, float]
) -> None:
    """Three seeds give an interval far wider than from 0 to 1; an R² may be below 0."""
    made = small(policies=["bsp", "asgd"]).comparison
    final = np.array([0.1, 0.99, 0.9])
    runs = made.runs.assign(accuracy=[*(1 - final), *final])
    evaluated = pd.DataFrame({"accuracy": [untrained, *final]})
    s = standings(dataclasses.replace(made, runs=runs, evaluations=evaluated))
    mean, gap = s.accuracy("asgd"), s.accuracy_gap("asgd")
    whole = paired_statistics.difference(final, np.zeros(3))
    assert mean == (whole.value, max(whole.low, limits[0]), 1.0)
    assert whole.low < 0
    assert whole.high > 1
    assert gap.low == pytest.approx(max(2 * whole.low - 1, limits[0] - 1))
    assert gap.high == pytest.approx(min(2 * whole.high - 1, 1 - limits[0]))
