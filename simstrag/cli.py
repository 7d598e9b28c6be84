"""The command `simstrag`: a thin shell around the Python calls of the same names."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simstrag.errors import SimstragError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from simstrag.policies import Description

__all__ = ["app", "main"]

app = typer.Typer(
    name="simstrag",
    help="Compare straggler-mitigation policies for data-parallel training.",
    epilog="Example: simstrag compare examples/demo.yaml --out reports/demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
trace_app = typer.Typer(help="Look into a contention trace, or make one.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")

ScenarioFile = Annotated[Path, typer.Argument(help="A scenario in YAML.", show_default=False)]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        help="Instead of the scenario's; may be given several times.",
        show_default=False,
    ),
]


UsageError: Any = typer.BadParameter.__base__
"""Click's own, of which Typer passes on this one kind."""


INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit code 2."""
    sys.path.append("")  # so that `module:Class` finds a policy in the working directory
    try:
        code = app(standalone_mode=False)
    except SimstragError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except UsageError as error:
        if message := error.format_message():  # there is none where the help was shown instead
            print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # releases of Typer differ: some raise, some return it
        print("interrupted; nothing was written", file=sys.stderr)
    raise SystemExit(code)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"simstrag {installed('simstrag')}")
        raise typer.Exit


@app.command(
    epilog="Example: simstrag run examples/demo.yaml --policy korel --seed 3 --out runs/korel-3"
)
def run(
    scenario: ScenarioFile,
    policy: Annotated[str, typer.Option("--policy", "-p", help="Such as ssp:bound=5.")] = "bsp",
    seed: Annotated[int, typer.Option("--seed", "-s", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run directory to write.", show_default=False)
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Also write steps.parquet.")] = False,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Also write gradients.parquet.")
    ] = False,
) -> None:
    """Simulate one policy under one seed and print the summary."""
    from simstrag.engine import simulate
    from simstrag.run import check_directory, plain
    from simstrag.scenario import Scenario

    _find_policies_beside(scenario)
    if out is not None:
        check_directory(out, "run.json")
    result = simulate(
        Scenario.read(scenario), policy, seed, record_steps=steps, record_gradients=gradients
    )
    rows = [[key, _text(value)] for key, value in plain(result.summary).items()]
    _table(["", f"{result.policy}, seed {seed}"], rows)
    _warn(result.warnings)
    if out is not None:
        print(f"run: {result.write(out)}")


@app.command(
    epilog="Example: simstrag compare examples/demo.yaml -p bsp -p korel --seeds 5 -o reports/two"
)
def compare(
    scenario: ScenarioFile,
    policy: Policies = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds instead of the scenario's.", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; reports/<scenario> by default."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Processes; all cores by default.", min=1)
    ] = None,
) -> None:
    """Compare policies under the same seeds and contention; write tables and an HTML report."""
    from simstrag.analysis.tables import ranking_rows
    from simstrag.comparison import compare as run_comparison
    from simstrag.run import check_directory

    _find_policies_beside(scenario)
    folder = out or Path("reports") / scenario.stem
    check_directory(folder, "comparison.csv")
    with _progress() as (bar, task):
        comparison = run_comparison(
            scenario,
            policy,
            seeds=seeds,
            jobs=jobs,
            on_progress=lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            ),
        )
        bar.update(task, description="writing the report")
        comparison.write(folder, shlex.join(["simstrag", *sys.argv[1:]]))
    _table(*ranking_rows(comparison))
    _warn(comparison.warnings)
    print(f"report: {folder / 'report.html'}")


@app.command(epilog="Example: simstrag policies ssp:bound=5")
def policies(
    policy: Annotated[
        str | None, typer.Argument(help="A policy to explain, such as korel.", show_default=False)
    ] = None,
) -> None:
    """List the built-in policies, or say what one decides, plans and takes, and whose it is."""
    from simstrag.policies import describe

    if policy is not None:
        _explain(describe(policy))
        return
    rows = [[d.name, d.architecture, _in_short(d)] for d in describe()]
    _table(["policy", "via", "what it decides; its parameters; its paper"], rows, wraps=2)
    print("more of one: simstrag policies NAME")
    print("your own: package.module:Class, with parameters in the same way")


def _in_short(described: Description) -> str:
    """What a policy decides; on lines of their own its parameters, if few, and its paper."""
    named = [f"{p.name}={p.default}" for p in described.parameters[:SHOWN]]
    left = len(described.parameters) - SHOWN
    given = ", ".join([*named, f"and {left} more"] if left > 0 else named)
    return "\n".join(line for line in (described.sentence, given, described.paper) if line)


SHOWN = 4
"""Parameters of a policy that the list of all names."""


def _explain(described: Description) -> None:
    print(f"{described.name} ({described.architecture})")
    _paragraphs(described.sentence, *described.details)
    _table(["plan", "its first, for 8 ranks"], [list(line) for line in described.plan], wraps=1)
    if described.parameters:
        print()
        _table(["parameter", "default", "meaning; values"], list(_rows(described)), wraps=2)
    _paragraphs(described.source, *described.remarks)


def _rows(described: Description) -> Iterator[list[str]]:
    """One per parameter; what several mean together is said once."""
    before = ""
    for p in described.parameters:
        meaning = "" if p.meaning == before else f"{p.meaning}\n"
        yield [p.name, p.default, f"{meaning}{p.allowed}"]
        before = p.meaning


@trace_app.command(epilog="Example: simstrag trace describe slow.csv")
def describe(
    file: Annotated[Path, typer.Argument(help="A CSV or parquet trace.", show_default=False)],
) -> None:
    """Check a trace and say what is in it."""
    from simstrag.trace import Trace
    from simstrag.traces.describe import describe as describe_trace

    description = describe_trace(Trace.read(file))
    print(description.text)
    for table in (description.slowdowns, description.others):
        if len(table):
            rows = table.astype(object).itertuples(index=False)
            _table(list(table.columns), [[_text(value) for value in row] for row in rows])


@trace_app.command(
    epilog="Example: simstrag trace generate --nodes 8 --seconds 3600 --severity uniform:1.2:3 "
    "--out slow.csv"
)
def generate(
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV, or parquet by its name.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of the trace.")] = 3600.0,
    seed: Annotated[int, typer.Option("--seed", "-s")] = 0,
    resource: Annotated[str, typer.Option(help="gpu, host, net or step.")] = "gpu",
    severity: Annotated[
        str, typer.Option(help="fixed:S, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA.")
    ] = "fixed:2",
    mean_interarrival: Annotated[
        float, typer.Option(help="Mean clean seconds before an episode, beyond the gap.")
    ] = 240.0,
    duration_mean: Annotated[float, typer.Option(help="Mean seconds of an episode.")] = 120.0,
    duration_sd: Annotated[float, typer.Option(help="Their standard deviation.")] = 20.0,
    gap: Annotated[float, typer.Option(help="Clean seconds after every episode.")] = 60.0,
) -> None:
    """Draw fail-slow episodes, the same ones for the same seed."""
    from simstrag.traces.generate import generate as generate_trace

    trace = generate_trace(
        nodes, seconds, seed, resource, mean_interarrival, duration_mean, duration_sd, gap, severity
    )
    trace.write(out)
    print(f"trace: {out}")


@app.command(epilog="Example: simstrag report reports/demo")
def report(
    folder: Annotated[Path, typer.Argument(help="What compare or run wrote.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file; report.html in the folder by default."),
    ] = None,
) -> None:
    """Write the HTML report of a comparison or run directory anew."""
    from simstrag.reports import report as write_report

    print(f"report: {write_report(folder, out)}")


def _find_policies_beside(scenario: Path) -> None:
    """So that `module:Class` finds a policy in a file beside the scenario."""
    sys.path.append(str(scenario.absolute().parent))


@contextmanager
def _progress() -> Iterator[tuple[Progress, TaskID]]:
    """A bar on stderr; silent where nobody watches."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield bar, bar.add_task("reading", total=None)


def _table(headers: list[str], rows: list[list[str]], wraps: int | None = None) -> None:
    """A table as wide as the terminal; where it is too narrow, column `wraps` alone gives way."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, header in enumerate(headers):
        table.add_column(header, no_wrap=wraps not in (None, column))
    for row in rows:
        table.add_row(*row)
    _console().print(table, markup=False)


def _paragraphs(*texts: str) -> None:
    """Each as wide as the terminal, with a line before and one after them all."""
    console = _console()
    console.print()
    for text in texts:
        console.print(text, "", sep="\n", markup=False, highlight=False)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    return str(value)
