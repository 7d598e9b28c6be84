"""A profile shown: every number in words, and a picture with a panel for each thing it knows."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from typer.testing import CliRunner

from simstrag.analysis.charts.calibration_figure import draw, save
from simstrag.analysis.tables.profile_tables import tables
from simstrag.analysis.tables.table import Table
from simstrag.analysis.text.profile_text import LAWS, describe
from simstrag.cli import console
from simstrag.cli.calibrate_show import show
from simstrag.cli.output import AnswerCommand
from simstrag.errors import InputError
from simstrag.profile.batch_laws import seconds
from simstrag.profile.measurements import CONSTANTS
from simstrag.profile.profile import Profile
from tests.support.full_profile import ALPHA, BANDWIDTH, full_profile, without

SHIPPED = sorted((Path(__file__).parents[2] / "simstrag/calibration/profiles").glob("*.json"))
FULL = full_profile()
PARTS = (
    "step", "allreduce", "server", "cells", "batches", "responses", "collectives",
    "collective_fits", "transfers", "overlaps", "locksteps", "learning", "amp_ratios", "held_out",
    "skipped",
)  # fmt: skip


def call(*arguments: str) -> Any:
    app = typer.Typer()
    app.command(cls=AnswerCommand)(show)
    return CliRunner().invoke(app, list(arguments))


def only(*parts: str, **changes: Any) -> Profile:
    """`FULL` with these parts alone."""
    return without(FULL, *(part for part in PARTS if part not in parts), **changes)


def table(title: str, profile: Profile = FULL) -> Table:
    return next(each for each in tables(profile) if each.title == title)


@functools.cache
def whole() -> Figure:
    """The picture of `FULL`."""
    return draw(FULL)


def panel(title: str, figure: Figure | None = None) -> Axes:
    return next(ax for ax in (figure or whole()).axes if ax.get_title(loc="left") == title)


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(FULL.text)
    return path


# -- tables --------------------------------------------------------------------------------------


def test_there_is_a_table_for_each_part_that_a_profile_has_and_none_for_others() -> None:
    assert [each.title for each in tables(FULL)] == [
        "Steps", "Step against batch", "Under contention: laws",
        "Under contention: what was measured", "All-reduce, gloo",
        "All-reduce, gloo, beside load cpu 1", "All-reduce: fits", "Parameter server",
        "All-reduce hidden by backward", "Ranks in lockstep", "Gradient noise scale along training",
        "Gain of reduced precision", "What a simulation reads", "Predicted and held out", "Skipped",
    ]  # fmt: skip
    assert tables(only()) == []
    assert [each.title for each in tables(only("learning"))] == [
        "Gradient noise scale along training"
    ]


@pytest.mark.parametrize("profile", [FULL, *map(Profile.read, SHIPPED)], ids=lambda p: p.name)
def test_every_row_has_a_cell_per_header_and_drops_known_columns_only(profile: Profile) -> None:
    found = tables(profile)
    assert found
    for each in found:
        assert {len(row) for row in each.rows} == {len(each.headers)}, each.title
        assert set(each.least) <= set(each.headers), each.title
        assert each.headers[each.wraps] not in each.least, each.title


def test_a_step_is_shown_with_its_interval_and_its_gain_at_the_same_batch() -> None:
    steps = table("Steps")
    medians = {(c.precision, c.batch): c.seconds for c in FULL.cells}
    row = next(row for row in steps.rows if row[:2] == ("bf16", "8"))
    shown = dict(zip(steps.headers, row, strict=True))
    q = medians["bf16", 8]
    assert q.low is not None
    assert shown["median (ms)"].startswith(f"{1e3 * q.value:.1f} ({1e3 * q.low:.1f}")
    gain = medians["fp32", 8].value / q.value
    assert shown["gain"] == f"{gain:.2f}"


def test_held_out_cells_are_marked() -> None:
    steps = table("Steps")
    assert [row[1] for row in steps.rows if row[-1] == "held out"] == ["4", "16"] * 2
    levels = table("Under contention: what was measured")
    assert {row[2] for row in levels.rows if row[-1] == "held out"} == {"0.5", "3"}
    sizes = table("All-reduce, gloo")
    assert [row[0] for row in sizes.rows if row[1].endswith("*")] == ["4 MiB", "64 MiB"]
    assert "4 ranks ** (ms)" in sizes.headers  # more than cores


def test_a_law_is_written_out_and_says_where_it_is_extrapolated() -> None:
    row = table("Under contention: laws").rows[0]
    assert row[:5] == ("cpu", "gpu", "fp32", "1 + 0.900 u; slope 0.882 to 0.918", "3")
    assert row[5].split()[:2] == ["linear", "2.0,"]


def test_every_law_can_be_written_out() -> None:
    assert set(LAWS) == set(CONSTANTS)
    response = FULL.responses[0].model_dump(mode="json") | {"law": "none", "constants": {}}
    free = without(FULL, responses=[response])
    assert table("Under contention: laws", free).rows[0][3] == "1: no measurable slowdown"


def test_a_held_out_error_above_its_threshold_stands_out() -> None:
    held_out = FULL.held_out[0].model_dump(mode="json")
    assert table("Predicted and held out").rows[0][2:5] == ("1.00", "5.00", "yes")
    failed = without(FULL, held_out=[held_out | {"median": 0.06, "worst": 0.07}])
    assert table("Predicted and held out", failed).rows[0][4] == "NO"


def test_jobs_that_shared_a_device_are_listed_and_drawn() -> None:
    beside = {"slowdown_beside": {"resnet": {"lm": 1.5, "gan": None, "a3c": 3.5, "gnmt": 2.0}}}
    profile = only(recordings=beside)
    (found,) = tables(profile)
    assert found.rows == (("resnet", "3", "1.50", "2.00", "3.50", "1"),)
    curve = line(panel("Beside another job", draw(profile)), "3 pairs")
    assert curve == pytest.approx({100 / 3: 1.5, 200 / 3: 2.0, 100: 3.5})


def test_an_assumed_constant_is_called_so() -> None:
    profile = Profile.read(SHIPPED[0].parent / "intel-xeon-2-core-amx.json")
    rows = {row[0]: row[1:4] for row in table("What a simulation reads", profile).rows}
    assert rows["step.host_share"] == ("0", "", "assumed")
    assert rows["step.compute"] == ("47.3 (46.8–47.9)", "ms", "measured")  # noqa: RUF001


def test_a_notebook_shows_the_same_tables() -> None:
    html = FULL._repr_html_()
    assert html.count("<table") == len(tables(FULL))
    assert "<h4>Steps</h4>" in html
    assert "&lt;model&gt;" in without(FULL, name="<model>")._repr_html_()


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_profile_is_shown_and_drawn(path: Path, tmp_path: Path) -> None:
    done = call(str(path), "--plot", str(tmp_path / "p.png"))
    assert (done.exit_code, done.exception) == (0, None)
    assert Profile.read(path).name in done.output
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_a_measured_profile_says_when_and_how(file: Path) -> None:
    out = call(str(file)).output
    assert "a-cpu-encoder: measured on 2026-11-21 with: simstrag calibrate" in out
    assert "Device: kind cpu, model A Processor, cores 2" in out
    assert "out of memory at this batch" in out


def test_clocks_and_temperatures_are_said_where_they_were_seen() -> None:
    warm = without(FULL, conditions={"clock": (2100.0, 3400.0), "temperature": (41.0, 66.0)})
    assert "Conditions meanwhile: clock 2100 to 3400, temperature 41.0 to 66.0." in describe(warm)
    assert not any("Conditions" in text for text in describe(FULL))


def test_a_derived_profile_says_whose_measurements_and_what_is_missing(file: Path) -> None:
    derived = {"origin": "derived", "source": "somebody's, 2021", "missing": ["noise", "overlap"]}
    file.write_text(only("amp_ratios", **derived).text)
    out = call(str(file)).output
    assert "derived, not measured by this project" in out
    assert "Source: somebody's, 2021" in out
    assert "Missing: noise; overlap." in out


def test_machines_get_the_whole_profile_and_a_summary(file: Path) -> None:
    data = json.loads(call(str(file), "--json").stdout)
    assert Profile.model_validate(data["profile"]) == FULL
    assert data["summary"]["numbers"]["cells"] == len(FULL.cells)
    (held_out,) = data["summary"]["held_out"]
    assert (held_out["part"], held_out["holds"], held_out["threshold"]) == ("step", True, 0.05)


def test_a_folder_of_a_calibration_stands_for_its_profile(file: Path) -> None:
    assert call(str(file.parent)).output == call(str(file)).output
    file.unlink()
    done = call(str(file.parent))
    assert isinstance(done.exception, InputError)
    assert "has no profile.json" in str(done.exception)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_loses_columns_and_no_digits(
    file: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = {"width": width, "force_terminal": True, "color_system": None}
    monkeypatch.setattr(console, "console", lambda stderr=False: Console(**terminal))
    out = call(str(file)).output
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    assert "9.51 (9.41–9.60)" in out  # noqa: RUF001


@pytest.mark.parametrize("name", ["picture.gif", "picture"])
def test_a_picture_of_another_kind_is_refused_before_anything_is_written(
    file: Path, name: str
) -> None:
    done = call(str(file), "--plot", str(file.parent / name))
    assert isinstance(done.exception, InputError)
    assert "a name ending in .png or .svg" in str(done.exception)
    assert [path.name for path in file.parent.iterdir()] == ["profile.json"]


# -- the picture ---------------------------------------------------------------------------------


def test_there_is_a_panel_for_each_thing_a_profile_knows() -> None:
    assert titles(whole()) == [
        "Step against batch", "Under contention", "All-reduce: time", "All-reduce: bus bandwidth",
        "Parameter server, one worker", "How clean steps scatter",
        "Gradient noise scale along training", "Gain of reduced precision",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ("responses", ["Under contention"]),
        ("collectives", ["All-reduce: time", "All-reduce: bus bandwidth"]),
        ("amp_ratios", ["Gain of reduced precision"]),
        ("step", ["How clean steps scatter"]),
    ],
)
def test_a_profile_of_one_part_has_its_panels_alone(part: str, shown: list[str]) -> None:
    assert titles(draw(only(part))) == shown


def test_a_profile_without_anything_to_draw_is_refused() -> None:
    with pytest.raises(InputError, match="a-cpu-encoder has nothing to draw"):
        draw(only("overlaps"))


def line(ax: Axes, label: str) -> dict[float, float]:
    found = next(each for each in ax.lines if each.get_label() == label)
    x, y = (np.asarray(values, dtype=float).tolist() for values in found.get_data())
    return dict(zip(x, y, strict=True))


def test_points_are_the_measured_medians_and_hollow_where_held_out() -> None:
    ax = panel("Step against batch")
    in_fit = {c.batch: 1e3 * c.seconds.value for c in FULL.cells
              if c.precision == "fp32" and not c.held_out}  # fmt: skip
    assert line(ax, "fp32") == pytest.approx(in_fit)
    hollow = [each for each in ax.lines if each.get_markerfacecolor() == "white"]
    assert sorted({float(x) for each in hollow for x in each.get_xdata()}) == [4, 16]


def test_the_line_through_steps_is_the_fit_over_all_batches_measured() -> None:
    fit = FULL.batches[0]
    curves = [each for each in panel("Step against batch").lines if len(each.get_xdata()) == 100]
    x, y = (np.asarray(values, dtype=float) for values in curves[0].get_data())
    assert (x[0], x[-1]) == pytest.approx((1, 16))
    assert y == pytest.approx([1e3 * seconds(fit, batch) for batch in x])


def test_the_line_of_an_all_reduce_is_its_formula_and_reaches_what_was_held_out() -> None:
    (curve,) = [each for each in panel("All-reduce: time").lines if len(each.get_xdata()) == 200]
    x, y = (np.asarray(values, dtype=float) for values in curve.get_data())
    assert (x[0], x[-1]) == pytest.approx((1024, 64 << 20))
    assert y == pytest.approx(1e3 * (2 * ALPHA + x / BANDWIDTH))  # a ring of two


def test_a_fit_over_all_numbers_of_ranks_is_told_apart_from_that_of_one() -> None:
    fits = [fit.model_dump(mode="json") for fit in FULL.collective_fits]
    together = {**fits[0], "ranks": [2, 4]}
    ax = panel("All-reduce: time", draw(without(FULL, collective_fits=[*fits, together])))
    curves = [each for each in ax.lines if len(each.get_xdata()) == 200]
    assert [each.get_linestyle() for each in curves] == ["-", "--"]
    legend = ax.get_legend()
    assert legend is not None
    assert "fit over all numbers of ranks" in [text.get_text() for text in legend.get_texts()]


def test_bus_bandwidth_is_as_nccl_tests_define_it() -> None:
    ax = panel("All-reduce: bus bandwidth")
    cell = next(c for c in FULL.collectives if c.ranks == 4 and c.bytes == 1 << 20)
    expected = 2 * 3 / 4 * cell.bytes / cell.seconds.value / 1e9
    assert line(ax, "4 ranks (more than cores)")[1 << 20] == pytest.approx(expected)


def test_of_a_half_that_reduces_alone_only_its_members_count() -> None:
    cell = FULL.collectives[0].model_dump(mode="json") | {"ranks": 4, "group": "half"}
    ax = panel("All-reduce: bus bandwidth", draw(without(FULL, collectives=[cell])))
    (value,) = line(ax, "4 ranks, one half alone").values()
    assert value == pytest.approx(2 * 1 / 2 * cell["bytes"] / cell["seconds"]["value"] / 1e9)


def test_an_interpolated_response_is_drawn_no_further_than_its_levels() -> None:
    response = FULL.responses[0].model_dump(mode="json")
    changed = {**response, "law": "interpolated", "constants": {}}
    ax = panel("Under contention", draw(without(FULL, responses=[changed])))
    curve = next(each for each in ax.lines if len(each.get_xdata()) == 300)
    assert max(curve.get_xdata()) == pytest.approx(2.0)  # 3 is held out


def test_a_png_is_1200_pixels_wide_and_light_and_an_svg_keeps_its_text(tmp_path: Path) -> None:
    narrow = only("learning")
    for figure in (whole(), draw(narrow)):
        save(figure, tmp_path / "p.png", ".png")
        pixels = matplotlib.image.imread(tmp_path / "p.png")
        assert pixels.shape[1] == pytest.approx(1200, abs=1)
        assert pixels[0, 0, :3].tolist() == [1, 1, 1]
    save(draw(narrow), tmp_path / "a.svg", ".svg")
    save(draw(narrow), tmp_path / "b.svg", ".svg")
    assert "Gradient noise scale along training" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
