"""The HTML report of a comparison, run, sweep or cluster: one file that loads nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simstrag.analysis.charts import (
    bokeh_renderer,
    comparison_charts,
    interactive_charts,
    run_charts,
    timeline,
)
from simstrag.analysis.charts.gains import gain_rows
from simstrag.analysis.charts.matplotlib_renderer import picture
from simstrag.analysis.derived.example_runs import Example, describe_excerpts, example, examples_of
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.derived.timeline_excerpt import CloseLook, close_look
from simstrag.analysis.pages import cluster_report, page_footer, sweep_report
from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables import comparison_tables, run_tables
from simstrag.analysis.tables.origins import origins_data, origins_table
from simstrag.analysis.tables.table import Number, Table, csv_data
from simstrag.analysis.text.answer import answer
from simstrag.analysis.text.assumptions import assumptions
from simstrag.analysis.text.cautions import cautions
from simstrag.analysis.text.lanes import CHANGED
from simstrag.analysis.text.number_format import join, number, percent
from simstrag.analysis.text.profile_text import describe
from simstrag.analysis.text.sensitivity_text import thresholds, turnover
from simstrag.analysis.text.spread_text import spread_table
from simstrag.cluster.runs import ClusterResults
from simstrag.documents.file_io import path_of, require_path, write_atomically
from simstrag.errors import InputError
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.sweep import Sweep
from simstrag.runs.run import UNITS, Run, plain
from simstrag.scenario.beyond_measured import doubts
from simstrag.scenario.scenario import Scenario


def report(
    folder: str | Path, out: str | Path | None = None, x: str | None = None, y: str | None = None
) -> Path:
    """Write the HTML report of a folder and return its path.

    folder: of a comparison, run, sweep or cluster study.

    x, y: keys of a sweep along the axes of its picture; by default those with most values.

    A training on real ranks that was killed is completed from its journal first.  A sweep or
    cluster study may be unfinished.  Raises `InputError` where `folder` is none of them, or `out`
    cannot be written.
    """
    from simstrag.ddp.journal.journal import NAME
    from simstrag.ddp.journal.run_from_journal import finish

    folder = require_path(path_of(folder, "a comparison, a sweep, a cluster study or a run"))
    if (folder / Sweep.MARKER).exists():
        page = sweep_report.render(Sweep.read(folder), x, y)
    elif x is not None or y is not None:
        raise InputError(f"{folder}: x and y are for a sweep, and it holds none")
    elif (folder / ClusterResults.MARKER).exists():
        page = cluster_report.render(ClusterResults.read(folder))
    elif (folder / "comparison.csv").exists():
        page = render(Comparison.read(folder))
    elif (folder / "run.json").exists():
        page = render_run(Run.read(folder))
    elif (folder / NAME).exists():
        page = render_run(finish(folder))
    else:
        raise InputError(
            f"{folder}: holds no comparison, run, sweep or cluster study; give a folder that "
            "`simstrag compare`, `simstrag sweep`, `simstrag cluster`, `simstrag run --out` or "
            "`simstrag ddp --out` wrote"
        )
    path = folder / "report.html" if out is None else path_of(out, "a page to write")
    write_atomically(path, lambda part: part.write_text(page, encoding="utf-8"))
    return path


def render(comparison: Comparison, command: str | None = None) -> str:
    """The report of a comparison as one HTML file.

    command: the command line that made the comparison; without one the report says how to repeat it
    from its scenario.
    """
    s, scenario = standings(comparison), comparison.scenario
    found, banner = answer(s), str(comparison.placeholders)
    workers, examples = scenario.workers, examples_of(comparison)
    runs = [run for name, run in comparison.examples.items() if name != "clean"]
    shown = close_look(examples)
    timelines, drawn = _timelines(examples, shown)
    parts = {e.name: e.parts() for e in examples}
    means = {e.name: e.mean_parts() for e in examples}
    longest = max(e.end for e in examples)
    stale = run_tables.staleness_of(examples)
    most = max((int(one.versions.max()) for one in stale), default=0)
    first = {s.policies[0].policy, found.decision.safe}
    traded, turned = comparison_charts.tradeoff(s), thresholds(s)
    described = () if scenario.inputs.profile is None else describe(scenario.inputs.profile)
    tables = {
        "ranking": comparison_tables.ranking_table(s),
        "spread-of-runs": spread_table(s),
        "accuracy": comparison_tables.accuracy_table(s),
        "failures": comparison_tables.failures_table(s),
        "paired-differences": comparison_tables.differences_table(s),
        "behind-the-ranking": comparison_tables.behind_table(s),
        "where-time-went": run_tables.time_table(means),
        "cost-of-staleness": comparison_tables.costs_table(s) if s.costs else None,
        "thresholds": turned.table,
        "staleness": run_tables.staleness_table(stale) if stale else None,
    }
    saved = (
        tables
        | _saved(examples, shown)
        | {
            "progress-over-time": comparison_charts.progress_table(s),
            "where-time-went-by-rank": run_tables.time_by_rank(parts),
            "staleness-by-rank": run_tables.staleness_by_rank(stale, workers) if stale else None,
            "trade-off": traded.table if traded else None,
            "measured-fitted-assumed": origins_data(scenario),
        }
    )
    charts = {
        "progress": comparison_charts.progress(s, at_first=first),
        "tradeoff": traded.chart(comparison_charts.looks(comparison.policies)) if traded else None,
        "costs": comparison_charts.costs(s) if s.costs else None,
        "spent": run_charts.time_spent(means, "seconds of a rank, mean over ranks"),
    }
    for name in ("progress", "tradeoff"):
        if (chart := charts[name]) is not None:
            drawn[name] = bokeh_renderer.pack(bokeh_renderer.plot(chart))
    return template("report.html").render(
        s=s,
        job=comparison.made.get("job", "this job"),
        made=page_footer.who_and_when(comparison.made),
        period=page_footer.log_period(scenario.inputs.trace),
        answer=found,
        gains=gain_rows(found.decision),
        clean=comparison.scenario.inputs.trace is not None,
        lanes=CHANGED,
        banner=banner,
        cautions=[*cautions(s), *doubts(scenario)],
        asked=page_footer.question(scenario),
        seed=scenario.seed_list[0],
        tables=tables,
        pictures={n: picture(c, n) if c else "" for n, c in charts.items()},
        tradeoff=traded,
        not_drawn=comparison_charts.explain_missing_curves(s),
        timelines=timelines,
        waits=run_charts.waiting_matrices(examples),
        spent_by_rank=[
            (name, picture(run_charts.time_spent_by_rank(name, own, longest), f"ranks{k}"))
            for k, (name, own) in enumerate(parts.items())
        ],
        stale=[
            (one.name, one.caption, picture(
                run_charts.staleness(one.name, one.quantiles(workers), most), f"stale{k}"
            )) for k, one in enumerate(stale)
        ],
        turnover=turnover(s),
        thresholds=turned,
        thresholds_picture=comparison_charts.thresholds_picture(turned.rows),
        origins=origins_table(scenario),
        data=csv_data(saved),
        profile=dict(text.split(": ", 1) for text in described),
        assumptions=assumptions(scenario, runs),
        command=command,
        provenance=page_footer.provenance(runs[0].provenance),
        scenario=page_footer.as_yaml(scenario.model_dump(mode="json", exclude_unset=True)),
        **bokeh_renderer.page_data(drawn),
    )  # fmt: skip


def render_run(run: Run) -> str:
    """The report of one run as one HTML file: its summary, timeline and where time went."""
    scenario, problem = (None, "") if run.recorded is not None else _scenario_of(run)
    workers = len(run.summary["wait_by_rank"])
    context: dict[str, Any] = dict.fromkeys(("timelines", "waits", "origins", "assumptions"))
    drawn: dict[str, bokeh_renderer.Packed] = {}
    tables = {"summary": _summary(run.summary), "where-time-went": _by_rank(run.summary)}
    learned = run_charts.accuracy(run)
    if learned is not None:
        drawn["accuracy"] = bokeh_renderer.pack(bokeh_renderer.plot(learned))
    saved: dict[str, Table | None] = {**tables, "accuracy-over-time": run_tables.accuracy(run)}
    if run.steps is not None:
        timing = None if scenario is None else scenario.timing(run.seed)
        examples = [example(run.policy, run, timing)]
        shown = close_look(examples)
        timelines, plots = _timelines(examples, shown)
        drawn |= plots
        context |= {"timelines": timelines, "waits": run_charts.waiting_matrices(examples)}
        saved |= _saved(examples, shown)
    if scenario is not None:
        context["origins"] = origins_table(scenario)
        context["assumptions"] = assumptions(scenario, [run])
        saved["measured-fitted-assumed"] = origins_data(scenario)
    names = {"full": "compute", "communication": "communication", "wait": "wait"}
    parts = {
        f"rank {r}": {part: run.summary[f"{name}_by_rank"][r] for part, name in names.items()}
        for r in range(workers)
    }
    return template("run.html").render(
        run=run,
        problem=problem,
        recorded=_recorded(run),
        tables=tables,
        learned=None if learned is None else picture(learned, "accuracy"),
        task=run.scenario.get("learner", {}).get("task"),
        spent=picture(run_charts.time_spent(parts, "time (s)"), "spent"),
        provenance=page_footer.provenance(run.provenance),
        scenario=page_footer.as_yaml(run.scenario),
        data=csv_data(saved),
        **context,
        **bokeh_renderer.page_data(drawn),
    )


def _timelines(
    examples: Sequence[Example], shown: CloseLook
) -> tuple[dict[str, Any], dict[str, bokeh_renderer.Packed]]:
    """The timelines on one axis: the values of the template, and the plots by name."""
    scope, workers = timeline.scope_of(examples, shown), examples[0].workers
    entries, drawn = [], {}
    for k, e in enumerate(examples):
        near = timeline.timeline(e, shown.ranks, shown.start, shown.end)
        strip = timeline.run_strip(e, scope.until, shown)
        entries.append((e.name, picture(near, f"window{k}"), picture(strip, f"strip{k}")))
        plot = interactive_charts.plot_timeline(e, scope, whole=strip)
        drawn[f"window{k}"] = bokeh_renderer.pack(plot)
    slowed = next((e.timing for e in examples if e.timing and e.timing.contention.slowdowns), None)
    contention = ""
    if slowed is not None:
        strip = timeline.contention_strip(slowed, workers, scope.until, shown)
        contention = picture(strip, "contention")
        drawn["contention"] = bokeh_renderer.pack(
            bokeh_renderer.overview(strip, interactive_charts.time_axis(scope))
        )
    values = {
        "shown": shown,
        "left_out": workers - len(shown.ranks),
        "excerpts": describe_excerpts(examples),
        "contention": contention,
        "entries": entries,
        "switch": max((e.timing.step.amp_switch for e in examples if e.timing), default=0.0),
        "undrawn": scope.left_out,
        "assumed": join([e.name for e in examples if e.phases.assumed.any()]),
    }
    return values, drawn


def _saved(examples: Sequence[Example], shown: CloseLook) -> dict[str, Table | None]:
    return {
        "steps-of-the-close-look": run_tables.steps_table(examples, shown),
        "slowdown-of-ranks": run_tables.slowdown_table(examples, shown),
        "waiting-between-ranks": run_tables.waits_table(examples),
    }


def _scenario_of(run: Run) -> tuple[Scenario | None, str]:
    """The scenario of a run with its original inputs, or the reason for its absence."""
    try:
        scenario = Scenario.of(run.scenario, source="run.json")
        inputs = scenario.inputs
    except InputError as error:
        return None, f"Its trace or profile is not at hand ({error}), so contention is not shown."
    recorded = run.provenance.get("sha256", {})
    for name, source in (("trace", inputs.trace), ("profile", inputs.profile)):
        if source is not None and recorded.get(name) not in (None, source.sha256):
            return None, f"The {name} has changed since the run, so contention is not shown."
    return scenario, ""


def _recorded(run: Run) -> dict[str, str]:
    """Facts of the record of a real run; empty for a simulated one."""
    if run.recorded is None:
        return {}
    record: Mapping[str, Any] = {**run.recorded.get("asked", {}), **run.recorded}
    facts = {
        "workload": record.get("workload"),
        "ranks": f"{record['world_size']}, each with {record['batch']} samples per gradient",
        "cores": record.get("cores"),
        "precision": record.get("precision"),
        "gain of reduced precision": record.get("gain") and number(record["gain"]),
        "local times by": record.get("clock"),
        "collectives by": record.get("backend"),
    }
    return {word: str(fact) for word, fact in facts.items() if fact is not None}


def _by_rank(summary: Mapping[str, Any]) -> Table:
    columns = (summary[f"{name}_by_rank"] for name in ("compute", "communication", "wait"))
    rows = tuple(
        (Number.of(rank), *(Number.of(float(value), 4) for value in row))
        for rank, row in enumerate(zip(*columns, strict=True))
    )
    return Table(("rank", "computing (s)", "communication (s)", "waiting (s)"), rows)


def _summary(summary: Mapping[str, Any]) -> Table:
    """A run's summary with units; lists are by rank."""
    rows = []
    for name, value in plain(summary).items():
        unit = UNITS.get(name, "").replace("share", "%")
        if isinstance(value, str):
            shown = value
        elif isinstance(value, list):
            shown = ", ".join(map(number, value))
        else:
            shown = percent(value) if unit == "%" else number(value, 4)
        rows.append((name.replace("_", " "), shown, unit))
    note = (
        "A dash stands for what is not defined: no target, no curve, no suspects, no progress "
        "where models are averaged or gradients weighed or damped."
    )
    return Table(("", "value", "unit"), tuple(rows), 3, (), (note,))
