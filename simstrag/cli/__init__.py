"""The command `simstrag`: one file per command. Start with `commands`, which lists them.

A command checks its arguments, calls the Python function of the same name and prints the result.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings

from simstrag.cli.console import UNREAD, discard_stdout, print_line, replace_closed_streams
from simstrag.processes.signals import interrupt_on_stop

INTERRUPTED = 130
"""Some releases of Typer return this exit code, others raise."""
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
"""The shells that Typer writes completion for."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 part failed, 2 mistake, 128 + n by signal n."""
    replace_closed_streams()
    if threading.excepthook is threading.__excepthook__:  # no other hook is set
        threading.excepthook = report_thread_error
    sys.path.append("")  # `module:Class` finds a policy in the working directory
    with interrupt_on_stop() as stop:
        try:
            code = _run()
        except KeyboardInterrupt as interrupt:
            code = stop.code
            print_line(f"interrupted; {str(interrupt) or 'nothing was written'}", stderr=True)
    raise SystemExit(code)


def report_thread_error(failure: threading.ExceptHookArgs) -> None:
    """Report an uncaught exception of a thread, except a harmless one of joblib.

    After an interrupt joblib's manager thread may look for a call that has just been removed.
    """
    manager = failure.thread is not None and failure.thread.name == "ExecutorManagerThread"
    if not (manager and failure.exc_type is KeyError):
        threading.__excepthook__(failure)


def _run() -> int:
    """The exit code of the command line. Raises `KeyboardInterrupt` that says what is kept."""
    import typer

    from simstrag.cli.commands import command
    from simstrag.cli.errors import Interrupted, UsageError, describe_error, describe_missing
    from simstrag.errors import SimstragError

    # a warning of joblib after an interrupt
    warnings.filterwarnings("ignore", ".* still being processed by the workers", UserWarning)
    try:
        _choose_shell(sys.argv[1:])
        code = command()(prog_name="simstrag", standalone_mode=False) or 0
        sys.stdout.flush()
    except (SimstragError, UsageError) as error:
        return _fail(describe_error(error))
    except ModuleNotFoundError as error:
        if message := describe_missing(error):
            return _fail(message)
        raise
    except BrokenPipeError:
        discard_stdout()
        return UNREAD
    except OSError as error:
        file = "" if error.filename is None else f"{error.filename}: "
        return _fail(f"{file}cannot write: {error.strerror or error}")
    except (Interrupted, typer.Abort) as interrupt:
        raise KeyboardInterrupt(str(interrupt)) from None
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return int(code)


def _fail(message: str) -> int:
    """Print a mistake on stderr; the message is empty if help was shown instead."""
    if message:
        prefix = "" if message.startswith("Usage:") else "error: "
        for line in [message] if prefix else message.splitlines():
            print_line(f"{prefix}{line}", stderr=True)
    return 2


def _choose_shell(arguments: list[str]) -> None:
    """Make `--show-completion zsh` write for that shell; Typer's option takes no shell.

    Raises `InputError` for a shell that Typer does not know.
    """
    from simstrag.errors import InputError

    if len(arguments) != 2 or arguments[0] != "--show-completion":
        return
    shell = arguments[1]
    if shell not in SHELLS:
        raise InputError(f"--show-completion {shell}: unknown shell; known: {', '.join(SHELLS)}")
    os.environ["_SIMSTRAG_COMPLETE"] = f"source_{shell}"
