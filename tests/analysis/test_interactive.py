"""Interactive charts: true to the runs, bounded, the same bytes every time."""

import base64
import gzip
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simstrag.analysis.charts import interactive_charts, timeline
from simstrag.analysis.charts.bokeh_renderer import library, pack
from simstrag.analysis.charts.chart import PAGE
from simstrag.analysis.charts.comparison_charts import looks, progress_series
from simstrag.analysis.charts.timeline import PLAN, UPDATES, Scope, parts_of_steps
from simstrag.analysis.derived.example_runs import Example, examples_of
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.derived.steps import plan_changes
from simstrag.analysis.derived.timeline_excerpt import close_look
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from simstrag.runs.run import Run
from tests.support.slowed_comparison import scenario

SCENARIO = scenario(
    seeds=2, policies=["bsp", "ssp", "backup", "korel"], allreduce=None,
    step={"compute": 0.05, "amp_ratio": 1.6, "cv": 0.04, "amp_switch": 0.004},
)  # fmt: skip


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(SCENARIO, jobs=1)


@pytest.fixture(scope="module")
def examples(comparison: Comparison) -> dict[str, Example]:
    return {e.name: e for e in examples_of(comparison)}


def scope_of(examples: dict[str, Example], **most: int) -> Scope:
    every = list(examples.values())
    return timeline.scope_of(every, close_look(every), **most)


def drawn(example: Example, scope: Scope, color: str) -> list[dict[str, Any]]:
    """The data of the bars of one colour in a timeline."""
    above = interactive_charts.plot_timeline(example, scope).children[0]
    return [
        dict(r.data_source.data)
        for r in above.renderers
        if color in (getattr(r.glyph, "fill_color", None), getattr(r.glyph, "line_color", None))
    ]


@pytest.mark.parametrize("part", ["full", "amp", "wait", "blocked", "communication"])
@pytest.mark.parametrize("name", ["bsp", "ssp", "korel"])
def test_bars_last_as_long_as_the_parts_of_the_steps(
    examples: dict[str, Example], name: str, part: str
) -> None:
    e, scope = examples[name], scope_of(examples)
    spans = parts_of_steps(e.steps, e.phases)[part]
    found = [
        right - left
        for data in drawn(e, scope, str(PAGE.paints[part].face))
        for left, right, word in zip(data["left"], data["right"], data["what"], strict=True)
        if "for nothing" not in word
    ]
    assert sum(found) == pytest.approx(float(np.sum(spans.right - spans.left)), abs=2e-3)


def test_a_rank_is_blocked_as_long_as_others_held_it_at_the_bound(
    examples: dict[str, Example],
) -> None:
    ssp = examples["ssp"]
    assert ssp.steps.blocked.sum() == pytest.approx(ssp.waiting.blocked.sum())
    assert ssp.steps.blocked.sum() > 0.1
    assert not examples["bsp"].steps.blocked.any()


def test_every_update_and_every_change_of_plan_has_a_mark(examples: dict[str, Example]) -> None:
    korel = examples["korel"]
    above = interactive_charts.plot_timeline(korel, scope_of(examples)).children[0]
    marks = {r.glyph.y: r.data_source.data for r in above.renderers if hasattr(r.glyph, "marker")}
    assert len(marks[UPDATES]["time"]) == len(korel.run.updates["time"])
    assert marks[PLAN]["what"] == [c.what for c in plan_changes(korel.run)]
    assert "reduced precision: no rank → rank 3" in marks[PLAN]["what"]


def test_a_suspicion_is_drawn_over_the_time_that_it_lasts(examples: dict[str, Example]) -> None:
    korel = examples["korel"]
    above = interactive_charts.plot_timeline(korel, scope_of(examples)).children[0]
    words = [r.data_source.data for r in above.renderers if "what" in r.data_source.data]
    found = [d for d in words if "is suspected by the policy" in d["what"]]
    assert 3 in found[0]["rank"]
    assert 1.0 < found[0]["left"][found[0]["rank"].index(3)] < 2.5


def test_a_shade_names_its_rank_and_its_slowdown(examples: dict[str, Example]) -> None:
    above = interactive_charts.plot_timeline(examples["bsp"], scope_of(examples)).children[0]
    shade = above.renderers[0].data_source.data
    assert (shade["rank"], shade["left"], shade["right"]) == ([3], [1.0], [2.5])
    assert shade["what"] == ["takes 2 times as long over a step in full precision"]


def test_the_drawn_part_of_long_runs_is_bounded_and_named(examples: dict[str, Example]) -> None:
    whole, part = scope_of(examples), scope_of(examples, most=900)
    assert whole.left_out == ""
    assert part.left_out.startswith("Single steps are drawn from ")
    assert (part.start, part.end) != (whole.start, whole.end)
    assert part.start <= part.shown.start < part.shown.end <= part.end
    near = [r.data_source.data for r in _bars(examples["bsp"], part)]
    count = sum(len(data["left"]) for data in near)
    assert 0 < count < sum(len(r.data_source.data["left"]) for r in _bars(examples["bsp"], whole))


def _bars(e: Example, scope: Scope) -> list[Any]:
    above = interactive_charts.plot_timeline(e, scope).children[0]
    return [r for r in above.renderers if "left" in r.data_source.data]


def test_an_axis_of_time_does_not_leave_what_is_drawn(examples: dict[str, Example]) -> None:
    scope = scope_of(examples)
    axis = interactive_charts.time_axis(scope)
    assert (axis.start, axis.end) == (scope.shown.start, scope.shown.end)
    assert axis.bounds == (0.0, scope.until)
    assert axis.name == interactive_charts.SHARED


def test_the_timelines_of_policies_are_moved_together(comparison: Comparison) -> None:
    axes = [
        policy.children[0].x_range for policy in interactive_charts.timelines(comparison).children
    ]
    assert len(axes) == 5
    assert all(one is other for one, other in pairwise(axes))


def test_curves_look_and_lie_as_in_the_picture(comparison: Comparison) -> None:
    s = standings(comparison)
    series, look = progress_series(s), looks(comparison.policies)
    made = interactive_charts.progress(comparison)
    lines = [r for r in made.renderers if type(r.glyph).__name__ == "Line"]
    assert [r.data_source.data["name"][0] for r in lines] == list(series)
    for line, (name, one) in zip(lines, series.items(), strict=True):
        assert line.glyph.line_color == PAGE.look(look[name])["color"]
        assert line.data_source.data["x"] == pytest.approx(one.mean.tolist(), rel=1e-5)


def test_every_policy_has_a_point_with_its_numbers(comparison: Comparison) -> None:
    made = interactive_charts.tradeoff(comparison)
    names = {r.data_source.data["name"][0] for r in made.renderers if "name" in r.data_source.data}
    assert names == set(comparison.policies)


def test_a_tradeoff_of_one_number_is_refused() -> None:
    found = compare(SCENARIO.replaced(target_progress=None), ["bsp"], seeds=1, jobs=1)
    with pytest.raises(InputError, match="declare samples and a target"):
        interactive_charts.tradeoff(found)


def test_a_run_of_another_trace_is_refused(comparison: Comparison) -> None:
    with pytest.raises(InputError, match="met another trace"):
        interactive_charts.timeline(comparison.examples["clean"], SCENARIO)


def test_a_run_of_an_older_version_has_a_timeline_without_its_decisions() -> None:
    import dataclasses

    run = simulate(SCENARIO, "korel", record_steps=True)
    old: Run = dataclasses.replace(run, decisions=None)
    marks = [
        r.glyph.y
        for r in interactive_charts.timeline(old, SCENARIO).children[0].renderers
        if hasattr(r.glyph, "marker")
    ]
    assert marks == [UPDATES]


def test_the_same_plot_is_the_same_text(comparison: Comparison) -> None:
    first, second = (pack(interactive_charts.progress(comparison)) for _ in range(2))
    assert first == second
    assert len(first.text) < 60_000


def unpacked(text: str) -> str:
    """What a page unpacks of a packed text."""
    return gzip.decompress(base64.b64decode(text)).decode()


def test_a_plot_runs_no_code_of_its_own_and_asks_nobody(comparison: Comparison) -> None:
    for made in (
        interactive_charts.progress(comparison),
        interactive_charts.timelines(comparison).children[0],
    ):
        text = unpacked(pack(made).text)
        assert "http" not in text
        assert "CustomJS" not in text
        assert {tool["logo"] for tool in _toolbars(json.loads(text))} == {None}


def _toolbars(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for item in value for found in _toolbars(item)]
    if not isinstance(value, dict):
        return []
    own = [value["attributes"]] if value.get("name") == "Toolbar" else []
    return own + [found for item in value.values() for found in _toolbars(item)]


def test_of_bokeh_its_core_alone_is_carried() -> None:
    code = unpacked(library())
    assert "models/plots/" in code
    assert "widgets/data_table" not in code
    assert len(library()) < 600_000
