"""Excerpts: bounded, and true of the whole run wherever they say something."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.analysis.charts.timeline import BINS, mix_parts
from simstrag.analysis.derived.example_runs import describe_excerpts, example, examples_of
from simstrag.analysis.derived.steps import steps_of
from simstrag.analysis.derived.timeline_excerpt import Kept, choose, close_look, kept_of
from simstrag.analysis.pages.perfetto import write_timeline
from simstrag.analysis.pages.report import render
from simstrag.analysis.tables.run_tables import staleness_of
from simstrag.engine import simulate as engine
from simstrag.engine.excerpt import Excerpt, ranks_to_show
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.contention import Contention
from simstrag.trace.trace import Trace
from tests.support.trace_rows import slowed

WORKERS, MOST = 6, 400
RANKS = [0, 2, 5]
SLOW = [slowed(node, 1 + 2 * (k % 2), time=7.0 * k + node) for node in (2, 3) for k in range(40)]
WORLD = Scenario(
    workers=WORKERS, samples=WORKERS * 128 * 600, trace=SLOW, trace_end="loop",
    step={"compute": 0.2, "cv": 0.2, "amp_ratio": 0.6},
    allreduce={"alpha": 1e-3}, server={"service": 2e-3, "push": 1e-3, "pull": 1e-3}, seeds=1,
)  # fmt: skip
POLICIES = ("bsp", "asgd", "backup:b=1", "local_sgd:h=3", "korel", "ssp:bound=2")


SMALL = functools.partial(Excerpt, most=MOST)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Excerpts of very few steps."""
    monkeypatch.setattr(engine, "Excerpt", SMALL)


def both(policy: str) -> tuple[Run, Run]:
    """A run with all its steps, and with an excerpt."""
    whole = simulate(WORLD, policy, 3, record_steps=True, record_gradients=True)
    return whole, simulate(WORLD, policy, 3, excerpt=RANKS)


def rows(table: Any, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name] for name in names), strict=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_few_steps_are_all_kept(policy: str) -> None:
    whole, excerpt = both(policy)
    assert excerpt.excerpt is None
    assert (excerpt.updates, excerpt.steps) == (whole.updates, whole.steps)
    assert excerpt.gradients is None


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("policy", POLICIES)
def test_an_excerpt_is_bounded_and_all_of_its_windows(policy: str) -> None:
    whole, run = both(policy)
    assert run.excerpt is not None
    assert run.steps is not None
    assert whole.steps is not None
    period, window = run.excerpt["period"], run.excerpt["window"]
    assert run.excerpt["ranks"] == RANKS
    assert 2 * window <= period < run.summary["makespan"]
    assert MOST / 8 < len(run.steps["rank"]) <= MOST
    kept = [
        row for row in rows(whole.steps, *whole.steps)
        if row[0] in RANKS and row[4] % period < window
    ]  # fmt: skip
    assert rows(run.steps, *whole.steps) == kept
    every = rows(whole.updates, *whole.updates)
    found = rows(run.updates, *whole.updates)
    assert set(found) <= set(every)
    assert found == sorted(found, key=lambda row: row[1])
    assert {row for row in every if row[0] % period < window} <= set(found)
    assert found[-1] == every[-1]
    assert run.summary == whole.summary
    assert run.decisions is not None
    decided = [row[:2] for row in rows(whole.decisions, "time", "way")]
    assert set(rows(run.decisions, "time", "way")) <= set(decided)
    for began in np.arange(0.0, run.summary["makespan"], period):
        in_force = max(row for row in decided if row[0] <= began)
        assert in_force in rows(run.decisions, "time", "way")


@pytest.mark.usefixtures("small")
def test_decisions_are_bounded_too() -> None:
    world = WORLD.replaced(samples=WORKERS * 128 * 3000)
    runs = [simulate(world, "lb_bsp", 3, **keep) for keep in ({}, {"excerpt": RANKS})]
    every, kept = (len(run.decisions["batch"]) for run in runs if run.decisions is not None)
    assert every * (WORKERS + 1) > 8 * MOST
    assert 20 < kept <= 8 * MOST / WORKERS


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_said_of_a_step_is_what_the_whole_run_says_of_it(policy: str) -> None:
    whole, run = (steps_of(run) for run in both(policy))
    at = {pair: k for k, pair in enumerate(zip(whole.rank, whole.step, strict=True))}
    same = [at[pair] for pair in zip(run.rank, run.step, strict=True)]
    assert len(same) > MOST / 8
    for name in ("version", "amp", "start", "finish", "wait", "applied", "pulled_next", "gap_end",
                 "blocked", "kept"):  # fmt: skip
        assert np.array_equal(getattr(run, name), getattr(whole, name)[same]), name


def test_of_a_step_nothing_is_said_where_an_update_before_the_next_pull_is_not_kept() -> None:
    """It may be the one that holds its gradient."""
    whole = simulate(WORLD, "ssp:bound=2", 3, record_steps=True)
    missing = 1234
    updates = {name: [v for k, v in enumerate(column, start=1) if k != missing]
               for name, column in whole.updates.items()}  # fmt: skip
    every = steps_of(whole)
    some = steps_of(dataclasses.replace(whole, updates=updates, excerpt={}))
    known = (every.pulled_next < missing) | (every.version >= missing)
    known &= every.pulled_next >= 0
    assert not known.all()
    assert np.array_equal(some.applied, every.applied[known])
    assert np.array_equal(some.blocked, every.blocked[known])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("policy", POLICIES)
def test_where_time_went_is_told_of_all_steps(policy: str) -> None:
    whole, run = (example(policy, run, None) for run in both(policy))
    for name, seconds in run.parts().items():
        expected = whole.parts()[name]
        assert seconds == pytest.approx(expected, abs=1.0), name  # of steps in flight at the end
    assert (run.parts()["lost"].sum() > 5) == (policy == "backup:b=1")


@pytest.mark.usefixtures("small")
def test_an_excerpt_is_written_and_read(tmp_path: Path) -> None:
    _, run = both("asgd")
    again = Run.read(run.write(tmp_path / "run"))
    assert again.excerpt == run.excerpt
    assert (again.steps, again.updates) == (run.steps, run.updates)


def test_an_excerpt_stays_in_memory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ask for `excerpt` or for `out`"):
        simulate(WORLD, "bsp", excerpt=RANKS, out=tmp_path / "run")


@pytest.mark.usefixtures("small")
def test_a_timeline_for_perfetto_needs_every_step(tmp_path: Path) -> None:
    _, run = both("bsp")
    with pytest.raises(InputError, match="kept an excerpt of them; simulate it with record_steps"):
        write_timeline(run, tmp_path / "t.json", None)


# -- which ranks


def test_ranks_that_are_slowed_are_shown_first() -> None:
    rows = [(5.0, r, "gpu", "slowdown", 1.0 + r / 100) for r in range(1, 900, 3)]
    slow = Contention.of(Trace.from_rows(rows), 1000)
    shown = ranks_to_show(slow, 1000, most=20)
    assert {0, 999} < set(shown)
    assert set(range(898, 868, -3)) < set(shown)
    assert len(shown) <= 20
    assert ranks_to_show(slow, 20, most=20) == list(range(20))


# -- in a report


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Excerpt", SMALL)
        return compare(WORLD, ["bsp", "asgd"], jobs=1)


@pytest.mark.usefixtures("no_page")
def test_a_comparison_keeps_excerpts(comparison: Comparison, tmp_path: Path) -> None:
    read = Comparison.read(comparison.write(tmp_path / "report"))
    for name, run in comparison.examples.items():
        assert run.excerpt is not None, name
        assert read.examples[name].steps == run.steps
        assert read.examples[name].excerpt == run.excerpt


def test_the_close_look_lies_in_what_all_kept(comparison: Comparison) -> None:
    found = examples_of(comparison)
    shown = close_look(found)
    low, high = kept_of(found, 0.2).around(shown.start)
    assert low <= shown.start < shown.end <= high
    assert "slowdown of rank" in shown.why
    for e in found:
        for rank in shown.ranks:
            own = e.steps.start[e.steps.rank == rank]
            gaps = np.diff(own[(own >= shown.start) & (own < shown.end)])
            assert len(gaps) > 2, e.name
            assert gaps.max() < 2.5, e.name


def test_a_close_look_begins_in_a_window() -> None:
    changes = ((40.0, 3, 3.0), (66.0, 5, 9.0), (67.0, 3, 4.0))
    trace = Trace.from_rows([(t, r, "gpu", "slowdown", v) for t, r, v in changes])
    kept = Kept(64.0, 8.0, frozenset({0, 3}), margin=0.5)
    shown = choose(Contention.of(trace, 8), 8, 0.2, 100.0, kept)
    assert "goes from 3 to 4 at 67 s" in shown.why
    assert 64.5 <= shown.start < 67 < shown.end <= 71.5
    assert shown.ranks == (0, 3)


def test_the_picture_of_the_whole_run_repeats_its_windows(comparison: Comparison) -> None:
    e = next(e for e in examples_of(comparison) if e.name == "asgd")
    assert e.run.excerpt is not None
    rgba = mix_parts(e, range(WORKERS), e.end)
    assert rgba.shape == (WORKERS, BINS, 4)
    middle = (np.arange(BINS) + 0.5) * e.end / BINS
    of_period = np.floor(middle / e.run.excerpt["period"])
    for k in np.unique(of_period):
        assert (rgba[:, of_period == k] == rgba[:, of_period == k][:, :1]).all()
    assert rgba[..., 3].min() > 0.9


def test_a_report_says_what_was_kept(comparison: Comparison) -> None:
    page, found = render(comparison), examples_of(comparison)
    sentence = describe_excerpts(found)
    assert sentence.startswith("Only some steps were kept: of ")
    assert sentence in page
    assert "For which rank is not shown: only an excerpt of its steps was kept" in page
    assert "The steps that were kept are in the folder" in page
    (stale,) = staleness_of([e for e in found if e.name == "asgd"])
    assert stale.caption in page
    whole = compare(WORLD.replaced(samples=128 * 60), ["asgd"], jobs=1)
    assert describe_excerpts(examples_of(whole)) == ""
