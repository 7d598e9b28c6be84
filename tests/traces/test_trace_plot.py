"""The picture of a trace: its values are means over intervals, and every trace can be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.analysis.charts.trace_heatmap import heatmap
from simstrag.trace.trace import Trace
from simstrag.traces.generate import on_off


def shown(trace: Trace) -> dict[str, Any]:
    """The image of each panel by its title."""
    return {
        axes.get_title(): axes.images[0]
        for axes in heatmap(trace).axes
        if axes.get_title() and axes.images
    }


def test_every_interval_shows_the_mean_of_what_held_in_it() -> None:
    rows = [(2.0, 4, "gpu", "slowdown", 3.0), (2.005, 4, "gpu", "slowdown", 1.0),
            (10.0, 7, "gpu", "slowdown", 1.0)]  # fmt: skip
    values = shown(Trace.from_rows(rows))["gpu slowdown"].get_array()
    assert values.shape == (2, 1000)  # 10 ms each
    assert values[0, 200] == pytest.approx(2.0)  # half of it at 3
    assert values.mean() == pytest.approx(1 + 2 * 0.005 / 20)  # nothing is lost


def test_utilisation_before_its_first_row_is_idle() -> None:
    rows = [(5.0, 0, "net", "utilisation", 0.5), (10.0, 0, "net", "utilisation", 0.0)]
    values = shown(Trace.from_rows(rows))["net utilisation"].get_array()
    assert values[0, :500].max() == 0
    assert values[0, 500:].min() == pytest.approx(0.5)


def test_durations_are_shown_step_by_step_and_those_that_are_missing_are_not() -> None:
    rows = [(k, 0, "step", "duration", 1.0 + k) for k in range(4)]
    rows += [(k, 1, "step", "duration", 2.0) for k in range(2)]
    values = shown(Trace.from_rows(rows))["step duration"].get_array()
    assert np.asarray(values)[0].tolist() == [1, 2, 3, 4]
    assert np.ma.getmaskarray(values)[1].tolist() == [False, False, True, True]


def test_more_steps_than_columns_are_averaged() -> None:
    rows = [(k, 0, "step", "duration", 1.0 + k % 2) for k in range(4001)]
    values = shown(Trace.from_rows(rows))["step duration"].get_array()
    assert values.shape == (1, 801)
    assert np.asarray(values)[0, 0] == pytest.approx((1 + 2 + 1 + 2 + 1) / 5)


def test_noise_of_a_few_percent_is_pale_and_a_wide_range_is_logarithmic() -> None:
    mild = shown(Trace.from_rows([(0, 0, "gpu", "slowdown", 1.05)]))["gpu slowdown"]
    assert (mild.norm.vmin, mild.norm.vmax) == (1, 3)
    rows = [(0, 0, "gpu", "slowdown", 20.0), (0, 1, "gpu", "slowdown", 1.0)]
    assert type(shown(Trace.from_rows(rows))["gpu slowdown"].norm).__name__ == "LogNorm"


@pytest.mark.parametrize("nodes", [1, 8, 512])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_few_and_many_nodes_can_be_drawn(nodes: int, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace.{suffix}"
    heatmap(on_off(nodes, 1000, seed=1)).savefig(path)
    assert path.stat().st_size > 5000


def test_no_figure_is_left_open() -> None:
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    heatmap(on_off(2, 1000, seed=1))
    assert pyplot.get_fignums() == before
