"""Figures for a paper: true to the comparison, one column wide, readable, distinct in grey."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text

from simstrag.analysis.charts import paper_figures
from simstrag.analysis.derived.example_runs import example
from simstrag.analysis.derived.ranking import standings
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from tests.support.slowed_comparison import scenario

Draw = Callable[[str], Axes]
GREY = to_hex("0.72")
CURVE = {"learner": {"curve": [[0, 0.1], [10, 0.6], [60, 0.9]]}}
ALL: dict[str, Callable[[Comparison], Axes]] = {
    "speedups": paper_figures.speedups,
    "progress": paper_figures.progress,
    "spent": paper_figures.spent,
    "sensitivity": paper_figures.sensitivity,
    "tradeoff": paper_figures.tradeoff,
    "timeline": lambda c: paper_figures.timeline(c.examples["backup"], c.scenario),
}


@pytest.fixture(scope="module")
def without_target() -> Comparison:
    return compare(scenario(target_progress=None, **CURVE), jobs=1)


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    matplotlib.use("Agg")
    yield
    plt.close("all")


def points(ax: Axes) -> dict[str, ErrorbarContainer]:
    """The error bars of a figure by their label."""
    return {str(c.get_label()): c for c in ax.containers if isinstance(c, ErrorbarContainer)}


def dot_of(container: Any) -> tuple[Any, list[float]]:
    """The dot of an error bar, and where the bar ends."""
    dot, _, (bar,) = container.lines
    return dot, list(bar.get_segments()[0][:, 0])


def bars(ax: Axes) -> list[tuple[str, float, float, float, float]]:
    """(colour, left, right, top, bottom) of every horizontal bar."""
    found = []
    for patch in ax.patches:
        for corners in patch.get_path().to_polygons():
            (left, top), (right, bottom) = np.min(corners, axis=0), np.max(corners, axis=0)
            found.append((to_hex(patch.get_facecolor()), left, right, top, bottom))
    return found


def widths(ax: Axes) -> list[tuple[str, int, float]]:
    """(colour, row, width) of every horizontal bar."""
    return [(color, round((low + high) / 2), b - a) for color, a, b, low, high in bars(ax)]


def words(ax: Axes) -> list[Any]:
    """All text that is shown."""
    return [t for t in ax.figure.findobj(Text) if t.get_text()]


@pytest.fixture(scope="module")
def drawn(comparison: Comparison) -> Draw:
    """A figure by its name, drawn once."""

    @functools.cache
    def draw(name: str) -> Axes:
        ax = ALL[name](comparison)
        ax.figure.canvas.draw()
        return ax

    return draw


@pytest.mark.parametrize("name", ALL)
class TestEvery:
    def test_it_is_one_column_wide_and_nothing_is_cut_off(self, drawn: Draw, name: str) -> None:
        figure = drawn(name).figure
        assert figure.get_figwidth() == 3.5
        box = figure.get_tightbbox()
        assert min(box.x0, box.y0) > -0.02
        assert box.x1 < 3.52
        assert box.y1 < figure.get_figheight() + 0.02

    def test_its_text_can_be_read(self, drawn: Draw, name: str) -> None:
        shown = words(drawn(name))
        assert len(shown) > 4
        assert min(t.get_fontsize() for t in shown) >= 6.5

    def test_it_has_no_title_and_both_axes_say_what_they_are(
        self, comparison: Comparison, drawn: Draw, name: str
    ) -> None:
        ax = drawn(name)
        assert ax.get_title() == ax.figure.get_suptitle() == ""
        rows = {t.get_text() for t in ax.get_yticklabels()}
        assert ax.get_xlabel()
        assert ax.get_ylabel() or rows <= {*comparison.policies, "bsp without contention"}

    def test_it_leaves_the_settings_of_matplotlib_alone(
        self, comparison: Comparison, name: str
    ) -> None:
        before = dict(matplotlib.rcParams)
        ALL[name](comparison)
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", [name for name in ALL if name != "timeline"])
class TestComparison:
    def test_it_draws_on_the_axes_it_is_given(self, comparison: Comparison, name: str) -> None:
        figure, (left, right) = plt.subplots(1, 2)
        assert getattr(paper_figures, name)(comparison, right) is right
        assert plt.get_fignums() == [figure.number]
        assert right.has_data()
        assert not left.has_data()

    def test_it_shows_the_policies_asked_for(self, comparison: Comparison, name: str) -> None:
        ax = getattr(paper_figures, name)(comparison, policies=["korel", "asgd"])
        shown = {t.get_text() for t in words(ax)}
        assert {"korel", "asgd"} <= shown
        assert not {"backup", "bsp:via=server"} & shown

    def test_a_policy_that_was_not_compared_is_refused(
        self, comparison: Comparison, name: str
    ) -> None:
        with pytest.raises(InputError, match=r"'korl' was not compared.*Did you mean 'korel'"):
            getattr(paper_figures, name)(comparison, policies=["korl"])


class TestSpeedups:
    def test_dots_and_intervals_are_those_of_the_ranking(
        self, comparison: Comparison, drawn: Draw
    ) -> None:
        ax, name = drawn("speedups"), "time_to_target_speedup"
        rows = comparison.ranking.query("policy != 'bsp'")
        assert [t.get_text() for t in ax.get_yticklabels()] == list(rows["policy"])
        for container, row in zip(ax.containers, rows.to_dict("records"), strict=True):
            dot, ends = dot_of(container)
            assert dot.get_xdata() == row[name]
            assert ends == pytest.approx([row[f"{name}_low"], row[f"{name}_high"]])

    def test_a_dot_is_hollow_where_no_difference_is_shown(self) -> None:
        same = {"allreduce": None, "server": None, "target_progress": None}
        found = compare(scenario(policies=["bsp:via=server", "korel"], **same), jobs=1)
        ax = paper_figures.speedups(found)
        hollow = {
            label.get_text(): c.lines[0].get_markerfacecolor() == "white"
            for label, c in zip(ax.get_yticklabels(), ax.containers, strict=True)
        }
        assert hollow == {"bsp:via=server": True, "korel": False}

    def test_one_seed_has_no_interval_and_shows_nothing(self) -> None:
        found = compare(scenario(seeds=1, target_progress=None), ["korel"], jobs=1)
        (container,) = paper_figures.speedups(found).containers
        dot, ends = dot_of(container)
        assert dot.get_markerfacecolor() == "white"
        assert np.ptp(ends) == 0

    def test_it_may_be_by_makespan(self, comparison: Comparison) -> None:
        ax = paper_figures.speedups(comparison, by="makespan")
        assert ax.get_xlabel() == "speed-up over bsp in makespan"
        with pytest.raises(InputError, match="known: time_to_target, makespan"):
            paper_figures.speedups(comparison, by="goodput")


class TestProgress:
    def test_a_line_is_the_mean_time_over_seeds_and_its_band_their_range(
        self, comparison: Comparison, drawn: Draw
    ) -> None:
        ax = drawn("progress")
        line = next(line for line in ax.lines if line.get_label() == "asgd")
        times, levels = (np.asarray(a, dtype=float) for a in line.get_data())
        curves = comparison.curves.query("policy == 'asgd'")
        seeds = [np.interp(levels, g["progress"], g["time"]) for _, g in curves.groupby("seed")]
        assert times == pytest.approx(np.mean(seeds, axis=0))
        band = ax.collections[comparison.policies.index("asgd")].get_paths()[0].get_extents()
        assert (band.x0, band.x1) == pytest.approx((np.min(seeds), np.max(seeds)))

    def test_a_curve_of_the_learner_makes_it_accuracy(self, without_target: Comparison) -> None:
        ax = paper_figures.progress(without_target)
        assert ax.get_ylabel() == "accuracy (0 to 1)"
        heights = np.concatenate([np.asarray(line.get_ydata()) for line in ax.lines])
        assert 0.1 <= np.nanmin(heights) < np.nanmax(heights) <= 0.9


class TestTimeline:
    def test_bars_are_as_long_as_the_rank_computed(self, comparison: Comparison) -> None:
        run = comparison.examples["bsp"]
        whole = {"start": 0.0, "end": run.summary["makespan"] * 2}
        ax = paper_figures.timeline(run, comparison.scenario, **whole)
        for rank, seconds in enumerate(run.summary["compute_by_rank"]):
            drawn = sum(w for color, row, w in widths(ax) if (color, row) == ("#0072b2", rank))
            assert drawn == pytest.approx(seconds)

    def test_reduced_precision_looks_different(self, comparison: Comparison) -> None:
        run = comparison.examples["korel"]
        ax = paper_figures.timeline(run, comparison.scenario, start=1.0, end=2.5)
        assert {row for color, row, _ in widths(ax) if color == "#e69f00"} == {3}

    def test_grey_lies_where_and_when_the_trace_slows(self, comparison: Comparison) -> None:
        """It needs no scenario, and shows no contention then."""
        run = comparison.examples["bsp"]
        ax = paper_figures.timeline(run, comparison.scenario, start=0.0, end=3.0)
        (shade,) = [bar[1:] for bar in bars(ax) if bar[0] == GREY]
        assert shade == (1.0, 2.5, 2.5, 3.5)
        without = bars(paper_figures.timeline(run, start=0.0, end=3.0))
        assert without
        assert not [bar for bar in without if bar[0] == GREY]

    def test_the_contention_of_another_run_is_refused(self, comparison: Comparison) -> None:
        with pytest.raises(InputError, match="another trace"):
            paper_figures.timeline(comparison.examples["clean"], comparison.scenario)
        clean = comparison.scenario.replaced(trace=None)
        assert paper_figures.timeline(comparison.examples["clean"], clean).patches

    def test_a_run_without_steps_says_so(self) -> None:
        made = scenario(target_progress=None)
        with pytest.raises(InputError, match="kept no table 'steps'"):
            paper_figures.timeline(simulate(made, "bsp"), made)


class TestSpent:
    def test_a_row_is_as_long_as_its_run_and_last_is_the_control(
        self, comparison: Comparison, drawn: Draw
    ) -> None:
        ax, ranked = drawn("spent"), [*comparison.ranking["policy"]]
        rows = [t.get_text() for t in ax.get_yticklabels()]
        assert rows == [*ranked, "bsp without contention"]
        for row, name in enumerate([*ranked, "clean"]):
            e = example(name, comparison.examples[name], None)
            assert sum(w for _, k, w in widths(ax) if k == row) == pytest.approx(e.end, rel=1e-9)

    @pytest.mark.parametrize(("policies", "is_there"), [(None, True), (["bsp"], False)])
    def test_only_policies_that_throw_work_away_have_such_a_part(
        self, comparison: Comparison, policies: list[str] | None, is_there: bool
    ) -> None:
        ax = paper_figures.spent(comparison, policies=policies)
        assert ("thrown away" in ax.get_legend_handles_labels()[1]) == is_there


class TestSensitivity:
    def test_points_are_the_mean_times_under_each_cost(
        self, comparison: Comparison, drawn: Draw
    ) -> None:
        s, found = standings(comparison), points(drawn("sensitivity"))
        assert list(found) == comparison.policies
        for name, container in found.items():
            line = container.lines[0]
            assert list(line.get_xdata()) == list(s.costs)
            assert list(line.get_ydata()) == [s.at_cost(name, c).mean() for c in s.costs]

    def test_without_a_target_it_is_refused(self, without_target: Comparison) -> None:
        with pytest.raises(InputError, match="declare target_progress"):
            paper_figures.sensitivity(without_target)


class TestTradeoff:
    def filled(self, ax: Axes) -> set[str]:
        lines = {name: c.lines[0] for name, c in points(ax).items()}
        return {n for n, line in lines.items() if line and line.get_markerfacecolor() != "white"}

    def undominated(self, found: Comparison, name: str, sign: float) -> set[str]:
        mean = {
            p: (found.column(p, "makespan").mean(), sign * found.column(p, name).mean())
            for p in found.policies
        }
        return {
            p
            for p, (x, y) in mean.items()
            if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in mean.values())
        }

    def test_it_sets_makespan_against_time_to_target(
        self, comparison: Comparison, drawn: Draw
    ) -> None:
        ax = drawn("tradeoff")
        assert ax.get_ylabel() == "time to target (s)"
        line = points(ax)["asgd"].lines[0]
        assert [line.get_xdata()[0], line.get_ydata()[0]] == [
            paired_statistics.mean(comparison.column("asgd", name)).value
            for name in ("makespan", "time_to_target")
        ]
        assert self.filled(ax) == self.undominated(comparison, "time_to_target", 1.0)

    def test_without_a_target_more_accuracy_is_better(self, without_target: Comparison) -> None:
        ax = paper_figures.tradeoff(without_target)
        assert ax.get_ylabel() == "accuracy (0 to 1)"
        front = self.filled(ax)
        assert front == self.undominated(without_target, "accuracy", -1.0)
        assert 1 < len(front) < len(without_target.policies)

    def test_one_number_twice_is_refused(self) -> None:
        found = compare(scenario(samples=None, seeds=1), ["asgd"], jobs=1)
        with pytest.raises(InputError, match="declare samples too"):
            paper_figures.tradeoff(found)


class TestLegend:
    @pytest.mark.parametrize(("letters", "columns"), [(5, 3), (16, 2), (40, 1)])
    def test_it_has_as_many_columns_as_fit(self, letters: int, columns: int) -> None:
        with paper_figures.axes_of(None, 2.0, 3) as ax:
            for k in range(3):
                ax.plot([0, 1], label=f"{k}" + "n" * letters)
        (legend,) = ax.figure.legends
        assert legend._ncols == columns  # type: ignore[attr-defined]


class TestLooks:
    def test_thirty_policies_differ_without_colour(self) -> None:
        names = [f"ssp:bound={k}" for k in range(1, 31)]
        made = scenario(samples=4 * 128, target_progress=None, seeds=1)
        styles = paper_figures.looks(compare(made, names, jobs=1))
        grey = {(str(look["linestyle"]), look["marker"]) for look in styles.values()}
        assert len(grey) == len(styles)

    def test_a_policy_looks_the_same_in_every_figure(
        self, comparison: Comparison, drawn: Draw
    ) -> None:
        look = paper_figures.looks(comparison)["korel"]
        (curve,) = (line for line in drawn("progress").lines if line.get_label() == "korel")
        for line in (curve, points(drawn("tradeoff"))["korel"].lines[0]):
            assert (line.get_color(), line.get_marker()) == (look["color"], look["marker"])
