"""The program of a rank: it pins its core, runs the user's script, and reports errors in a line."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from typing import NoReturn

from simstrag.ddp.failures.diagnosis import listed
from simstrag.ddp.rendezvous import end_with_launcher, ended_ranks
from simstrag.documents.printable import printable
from simstrag.errors import InputError, SimstragError
from simstrag.processes.affinity import keep_memory, pin_rank
from simstrag.processes.signals import postpone_sigterm

INTERRUPTED = 130
"""The exit code of a rank that Ctrl-C ended."""

LAST_WORDS = 0.5
"""Seconds after SIGTERM in which a rank may report which rank died; torchrun sends it to all."""

NOTICE = 1.0
"""Seconds in which the launcher notices that a rank has ended."""


def main() -> None:
    """Make this process a rank, and run the script or module of its command line in it."""
    end_with_launcher()
    keep_memory()
    postpone_sigterm(LAST_WORDS)
    if os.environ.get("SIMSTRAG_PINNED") == "1":
        pin_rank(int(os.environ.get("LOCAL_RANK", "0")))
    script = sys.argv[1]
    try:
        if script == "-m":
            sys.argv = sys.argv[2:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = sys.argv[1:]
            if not sys.flags.safe_path:
                sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            sys.last_value = end  # as Python does for other errors; `Trainer` reads it
        raise
    except SimstragError as error:
        _fail(error, f"{_line_of(error, script)}{error}")
    except RuntimeError as error:
        if not (lost := _lost_before(error)):
            raise
        _fail(error, f"{lost} ended, and then a collective failed")
    except KeyboardInterrupt as error:
        sys.last_value = error
        raise SystemExit(INTERRUPTED) from None


def _fail(error: Exception, reason: str) -> NoReturn:
    """End this process with a reason in one line."""
    sys.last_value = error
    rank = os.environ.get("RANK")
    who = "the server" if rank is None else f"rank {rank}"
    print(f"error: {who}: {printable(reason)}\n", end="", file=sys.stderr)
    raise SystemExit(1) from None


def _lost_before(error: RuntimeError) -> str:
    """The ranks that ended before a collective of the script failed; empty for other errors."""
    from simstrag.ddp.failures.rank_failure import is_of_collective

    if not is_of_collective(error):
        return ""
    ended = sorted(ended_ranks(NOTICE))
    return listed(ended) if ended else ""


def _line_of(error: SimstragError, script: str) -> str:
    """The line of the script that raised an `InputError`, for its message."""
    if not isinstance(error, InputError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if each.filename == script]
    return f"{script}, line {lines[-1]}: " if lines else ""


if __name__ == "__main__":
    main()
