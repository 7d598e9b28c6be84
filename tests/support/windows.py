"""`python -m tests.support.windows COMMAND...`: commands on a system that says it is Windows.

Prints as JSON the exit code and the stderr of each.

It lacks the modules and functions that Windows lacks, and all optional packages.  Libraries are
imported before, since theirs are the ones of this system.
"""

# ruff: noqa: F401
from __future__ import annotations

import asyncio
import contextlib
import io
import json
import multiprocessing.shared_memory
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
from importlib import metadata

import bokeh.embed
import bokeh.plotting
import joblib.externals.loky
import matplotlib.pyplot
import numpy
import pandas
import psutil
import pyarrow.csv
import pyarrow.parquet
import pydantic
import rich.progress
import ruamel.yaml
import scipy.cluster.hierarchy
import scipy.optimize
import scipy.stats
import simpy
import typer

EXTRAS = (
    "torch", "ray", "dask", "distributed", "transformers", "sklearn", "accelerate", "sphinx",
    "IPython", "pytest",
)  # fmt: skip
MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "termios", "tty")
FUNCTIONS = {
    os: (
        "chown fchmod fork getegid geteuid getgid getloadavg getpgid getpgrp getpriority "
        "getuid killpg memfd_create mkfifo nice openpty pidfd_open sched_getaffinity "
        "sched_setaffinity setpgid setpriority setsid statvfs sysconf uname wait3 wait4"
    ),
    signal: (
        "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 SIG_BLOCK "
        "SIG_SETMASK alarm pidfd_send_signal pthread_sigmask setitimer sigwait"
    ),
}


def main() -> None:
    """Hide what such a system lacks, and run the commands in this process alone."""
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # joblib's workers would start as on Windows
    platform.platform()  # it remembers what it found
    subprocess.Popen.kill = subprocess.Popen.terminate  # type: ignore[method-assign]  # as there
    for name in (*EXTRAS, *MODULES):
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in FUNCTIONS.items():
        for name in names.split():
            with contextlib.suppress(AttributeError):
                delattr(module, name)
    sys.platform = "win32"
    print(json.dumps([run(command) for command in sys.argv[1:]]))


def run(command: str) -> tuple[object, str]:
    """Exit code and stderr of a command."""
    from simstrag.cli import main

    sys.argv = ["simstrag", *shlex.split(command)]
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            return ended.code, said.getvalue()
    return 0, said.getvalue()


if __name__ == "__main__":
    main()
