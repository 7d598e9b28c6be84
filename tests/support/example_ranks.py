"""Runs examples of frameworks on two ranks each (`-m tests.support.example_ranks FOLDER NAME...`).

Importing torch and the frameworks is most of what an example costs, so one process imports them all
and forks the ranks.  The ranks record on a virtual clock: sleep counts as computing, and nothing
else takes time.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.support.virtual_time import virtual_time

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOW, WORLD = 1, 2


def main() -> None:
    folder, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    for name in names:  # its imports
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="imported")
    gc.freeze()  # else each rank's collection copies what it shares with the others
    failed = [name for name in names if not run(name, Path(folder) / name)]
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


def run(name: str, out: Path) -> bool:
    """Whether an example ends well on each of its ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(WORLD))
    ranks = [fork(name, out, rank) for rank in range(WORLD)]
    return sum(os.waitpid(each, 0)[1] for each in ranks) == 0


def fork(name: str, out: Path, rank: int) -> int:
    if process := os.fork():
        return process
    code = 1
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = [name, "--out", str(out), "--slow", str(SLOW)]
        with virtual_time() as clock:
            sleep = time.sleep

            def compute_or_sleep(seconds: float) -> None:
                is_own = sys._getframe(1).f_globals["__name__"] == "__main__"
                (clock.compute if is_own else sleep)(seconds)

            time.sleep = compute_or_sleep
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
            atexit._run_exitfuncs()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
