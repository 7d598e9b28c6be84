"""`simstrag demo`: compare the policies of the scenario that ships with simstrag."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from simstrag.cli.compare import compare_scenario
from simstrag.cli.console import print_line, warn
from simstrag.cli.options import OUTPUT, JobsOption, VerboseOption, flag, out_option
from simstrag.cli.output import mode, on_interrupt
from simstrag.cli.read_inputs import read_scenario
from simstrag.documents.printable import shell_word


def demo(
    out: Annotated[
        Path | None, out_option("Folder to write; a new one for temporary files by default.")
    ] = None,
    open_: Annotated[bool, flag("Open the report in a browser.", "--open", group=OUTPUT)] = False,
    jobs: JobsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Compare policies on eight H200 whose GPUs others use, too.

    The folder gets the scenario, its trace and its profile, for you to edit.
    """
    from simstrag.scenario.demo import copy_demo

    with _choose_folder(out) as folder:
        file = copy_demo(folder)
        page = compare_scenario(
            read_scenario(file), file, folder / "comparison",
            jobs=jobs, verbose=verbose,
        )  # fmt: skip
    if mode().talks:
        scenario = shell_word(str(file))
        print_line(f"next: edit {scenario}, then simstrag compare {scenario}")
    if open_ and not _open(page):
        warn([f"there is no browser to open here; copy {page} to a machine that has one"])


@contextmanager
def _choose_folder(out: Path | None) -> Iterator[Path]:
    """The folder of the demo: `out`, or a new temporary one, which is removed after a failure."""
    if out is not None:
        with on_interrupt(lambda _: f"{out} keeps what is finished; the same command goes on"):
            yield out
        return
    folder = Path(tempfile.mkdtemp(prefix="simstrag-demo-"))
    try:
        with on_interrupt(lambda _: "nothing was written"):
            yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _open(page: Path) -> bool:
    """Show a page in a browser with windows; returns whether there is one."""
    screen = sys.platform in ("darwin", "win32")
    screen = screen or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return screen and webbrowser.open(page.resolve().as_uri())
