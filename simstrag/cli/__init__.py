"""The command `simstrag`: what it says of mistakes and of what ends it, and its exit code."""

from __future__ import annotations

import os
import sys
import threading
import warnings

from simstrag.cli.stopping import stoppable
from simstrag.cli.streams import UNREAD, let_go, opened

__all__ = ["main", "unheard"]

INTERRUPTED = 130
"""What some releases of Typer return where others raise."""
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
"""Those for which Typer writes completion."""


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit code 2."""
    opened()
    if threading.excepthook is threading.__excepthook__:  # nobody else listens
        threading.excepthook = unheard
    sys.path.append("")  # so that `module:Class` finds a policy in the working directory
    with stoppable() as stop:
        try:
            code = _code()
        except KeyboardInterrupt as interrupted:
            code = stop.code
            print(f"interrupted; {str(interrupted) or 'nothing was written'}", file=sys.stderr)
    raise SystemExit(code)


def unheard(failed: threading.ExceptHookArgs) -> None:
    """Say what ended a thread, but for joblib's manager of an interrupted comparison: at times it
    looks for a call that has just been taken away, and nothing is lost by its end."""
    named = failed.thread is not None and failed.thread.name == "ExecutorManagerThread"
    if not (named and failed.exc_type is KeyError):
        threading.__excepthook__(failed)


def _code() -> int:
    """The exit code of the command. Raises `KeyboardInterrupt` that says what is left."""
    import typer

    from simstrag.cli.commands import command
    from simstrag.cli.mistakes import Interrupted, UsageError, in_words
    from simstrag.errors import SimstragError

    # joblib's, of an interrupted comparison
    warnings.filterwarnings("ignore", ".* still being processed by the workers", UserWarning)
    try:
        _ask_for_a_shell(sys.argv[1:])
        code = command()(prog_name="simstrag", standalone_mode=False) or 0
        sys.stdout.flush()
    except (SimstragError, UsageError) as error:
        if message := in_words(error):  # there is none where the help was shown instead
            shown = message if message.startswith("Usage:") else f"error: {message}"
            print(shown, file=sys.stderr)
        return 2
    except BrokenPipeError:
        let_go()
        return UNREAD
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {where}cannot write: {error.strerror or error}", file=sys.stderr)
        return 2
    except (Interrupted, typer.Abort) as interrupted:
        raise KeyboardInterrupt(str(interrupted)) from None
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return int(code)


def _ask_for_a_shell(given: list[str]) -> None:
    """Let `--show-completion zsh` mean that shell: Typer's option knows the present one only.

    Raises `InputError` for a shell that Typer does not know.
    """
    from simstrag.errors import InputError

    if len(given) != 2 or given[0] != "--show-completion":
        return
    if given[1] not in SHELLS:
        known = ", ".join(SHELLS)
        raise InputError(f"--show-completion {given[1]}: is no shell known here: {known}")
    os.environ["_SIMSTRAG_COMPLETE"] = f"source_{given[1]}"
