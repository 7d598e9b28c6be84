"""`simstrag record`: a command before the user's own, which records its ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import print_line, print_lines, warn
from simstrag.cli.options import Quiet, argument, out_option
from simstrag.documents.printable import shell_command
from simstrag.errors import InputError


def record(
    command: Annotated[list[str], argument("Such as torchrun train.py.", "COMMAND...")],
    out: Annotated[
        Path | None, out_option("New folder for the record; else runs/record-TIME.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run a training command, and record who was slow."""
    from simstrag.frameworks.launch import record_command

    folder = out or Path("runs") / time.strftime("record-%Y%m%d-%H%M%S")
    done = record_command(command, folder)
    if done.folder is None:
        warn([f"nothing was recorded: {done.reason}"])
    elif quiet:
        print_line(done.folder)
    else:
        _diagnose(done.folder)
    if done.code:
        raise typer.Exit(done.code)


def _diagnose(folder: Path) -> None:
    """Print the short diagnosis, without policies, and the command that also tries these."""
    from simstrag.analysis.text.diagnosis_text import brief
    from simstrag.whatif.diagnosis import diagnose

    lines = []
    try:
        lines = [each for each in brief(diagnose(folder, compare=[]), None) if each[0] != "next"]
    except InputError as error:  # such as too few steps
        warn([str(error)])
    print_lines([*lines, ("next", shell_command(["simstrag", "diagnose", str(folder)]))], "next")
