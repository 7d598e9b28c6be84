"""The commands of `simstrag`: thin shells around the Python calls of the same names."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperOption
from typer.main import get_command

from simstrag.cli import profiles
from simstrag.cli.calibrate import calibrate, check, derive, workloads
from simstrag.cli.calibrate import import_ as import_log
from simstrag.cli.compare import compare
from simstrag.cli.ddp import ddp
from simstrag.cli.doctor import doctor
from simstrag.cli.examples import examples
from simstrag.cli.init import init
from simstrag.cli.policies import policies
from simstrag.cli.report import report
from simstrag.cli.run import run
from simstrag.cli.schema import schema
from simstrag.cli.sensitivity import sensitivity
from simstrag.cli.sweep import sweep
from simstrag.cli.trace import describe, generate, import_, resample
from simstrag.cli.validate import validate

__all__ = ["command"]

ONCE = ("install_completion", "show_completion")
"""Typer's own; docs/cli.md tells of them."""

ABOUT = """\b
Compare straggler-mitigation policies for data-parallel training.
Start: simstrag init slow.csv. Exit codes: 0 done, 1 part failed, 2 mistake."""

PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # no boxes: a help fits a screen
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(
    name="simstrag",
    help=ABOUT,
    pretty_exceptions_enable=False,
    **PLAIN,
)
calibrate_app = typer.Typer(
    help="Measure this machine; look at, check and compare profiles.",
    **(PLAIN | {"no_args_is_help": False}),
)
trace_app = typer.Typer(help="Look into a contention trace, or make one.", **PLAIN)

app.command(epilog=examples("run"))(run)
app.command(epilog=examples("compare"))(compare)
app.command(epilog=examples("sensitivity"))(sensitivity)
app.command(epilog=examples("sweep"))(sweep)
app.command(epilog=examples("validate"))(validate)
app.command(epilog=examples("policies"))(policies)
app.command(epilog=examples("ddp"))(ddp)
app.command(epilog=examples("report"))(report)
app.command(epilog=examples("init"))(init)
app.command(epilog=examples("schema"), hidden=True)(schema)
app.command(epilog=examples("doctor"))(doctor)
app.add_typer(trace_app, name="trace")
app.add_typer(calibrate_app, name="calibrate", epilog=examples("calibrate"))
calibrate_app.callback(invoke_without_command=True)(calibrate)
calibrate_app.command(epilog=examples("calibrate show"))(profiles.show)
calibrate_app.command(epilog=examples("calibrate compare"))(profiles.compare)
calibrate_app.command(epilog=examples("calibrate check"))(check)
calibrate_app.command(epilog=examples("calibrate derive"))(derive)
calibrate_app.command("import", epilog=examples("calibrate import"))(import_log)
calibrate_app.command(epilog=examples("calibrate workloads"))(workloads)
trace_app.command(epilog=examples("trace describe"))(describe)
trace_app.command(epilog=examples("trace generate"))(generate)
trace_app.command("import", epilog=examples("trace import"))(import_)
trace_app.command(epilog=examples("trace resample"))(resample)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"simstrag {installed('simstrag')}")
        raise typer.Exit


def command() -> Any:
    """What runs the command line; the help leaves out the options that one needs once."""
    made = get_command(app)
    for option in made.params:
        if isinstance(option, TyperOption) and option.name in ONCE:
            option.hidden = True
    return made
