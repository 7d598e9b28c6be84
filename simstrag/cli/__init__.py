"""The command `simstrag`: a thin shell around the Python calls of the same names."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from simstrag.cli.compare import compare
from simstrag.cli.doctor import doctor
from simstrag.cli.examples import examples
from simstrag.cli.init import init
from simstrag.cli.mistakes import Interrupted, UsageError, in_words
from simstrag.cli.policies import policies
from simstrag.cli.report import report
from simstrag.cli.run import run
from simstrag.cli.sensitivity import sensitivity
from simstrag.cli.trace import describe, generate
from simstrag.errors import SimstragError

__all__ = ["app", "main"]

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""

END = """\b
Start: simstrag init slow.csv, then simstrag compare scenario.yaml
Exit codes: 0 done; 2 a mistake, said in one line on stderr; 130 Ctrl-C."""

PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # no boxes: a help fits a screen
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(
    name="simstrag",
    help="Compare straggler-mitigation policies for data-parallel training.",
    epilog=END,
    pretty_exceptions_enable=False,
    **PLAIN,
)
trace_app = typer.Typer(help="Look into a contention trace, or make one.", **PLAIN)

app.command(epilog=examples("run"))(run)
app.command(epilog=examples("compare"))(compare)
app.command(epilog=examples("sensitivity"))(sensitivity)
app.command(epilog=examples("policies"))(policies)
app.command(epilog=examples("report"))(report)
app.command(epilog=examples("init"))(init)
app.command(epilog=examples("doctor"))(doctor)
app.add_typer(trace_app, name="trace")
trace_app.command(epilog=examples("trace describe"))(describe)
trace_app.command(epilog=examples("trace generate"))(generate)


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit code 2."""
    sys.path.append("")  # so that `module:Class` finds a policy in the working directory
    left = "nothing was written"
    try:
        code = app(standalone_mode=False)
    except (SimstragError, UsageError) as error:
        if message := in_words(error):  # there is none where the help was shown instead
            shown = message if message.startswith("Usage:") else f"error: {message}"
            print(shown, file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(f"error: cannot write: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Interrupted as interrupted:
        left, code = str(interrupted), INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # releases of Typer differ: some raise, some return it
        print(f"interrupted; {left}", file=sys.stderr)
    raise SystemExit(code)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"simstrag {installed('simstrag')}")
        raise typer.Exit
