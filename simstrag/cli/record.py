"""`simstrag record`: a command before the user's own, which records its ranks."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import print_lines, redirect_stdout, warn
from simstrag.cli.options import argument, out_option
from simstrag.cli.output import emit, mode
from simstrag.documents.printable import shell_command
from simstrag.errors import InputError


def record(
    command: Annotated[list[str], argument("Such as torchrun train.py.", "COMMAND...")],
    out: Annotated[
        Path | None, out_option("New folder for the record; else runs/record-TIME.")
    ] = None,
) -> None:
    """Run a training command, and record who was slow."""
    from simstrag.ddp.frameworks.launch import record_command

    folder = out or Path("runs") / time.strftime("record-%Y%m%d-%H%M%S")
    with redirect_stdout() if mode().as_json else contextlib.nullcontext():
        done = record_command(command, folder)
    if done.folder is None and not mode().as_json:
        warn([f"nothing was recorded: {done.reason}"])
    elif done.folder is None or not mode().talks:
        document = {"code": done.code, "record": done.folder, "reason": done.reason}
        emit(document, record=done.folder)
    else:
        with redirect_stdout():  # stdout is the job's
            _diagnose(done.folder)
    if done.code:
        raise typer.Exit(done.code)


def _diagnose(folder: Path) -> None:
    """Print the short diagnosis, without policies, and the command that also tries these."""
    from simstrag.analysis.text.diagnosis_lines import brief
    from simstrag.whatif.diagnosis import diagnose

    lines = []
    try:
        lines = [each for each in brief(diagnose(folder, compare=[]), None) if each[0] != "next"]
    except InputError as error:  # such as too few steps
        warn([str(error)])
    print_lines([*lines, ("next", shell_command(["simstrag", "diagnose", str(folder)]))], "next")
