"""`simstrag ddp`: real ranks under a policy, on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from simstrag.cli.console import table, text, written
from simstrag.cli.options import Policy
from simstrag.errors import InputError

__all__ = ["ddp"]

Fault = Literal["stop", "restart", "continue"]

STEPS = 200
"""Of each rank, unless samples are given."""


def ddp(
    what: Annotated[
        str,
        typer.Argument(
            help="Such as digits, module:function, or train.py.",
            metavar="WORKLOAD|SCRIPT",
            show_default=False,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Of the script.", metavar="[ARGUMENTS]...", hidden=True),
    ] = None,
    ranks: Annotated[int, typer.Option(help="How many.", min=1, metavar="N")] = 2,
    policy: Policy = "korel",
    samples: Annotated[
        int | None,
        typer.Option(help="Of all together; else 200 steps each.", metavar="N", show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Samples of a rank's batch.", metavar="N", show_default=False),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="What calibration found.", metavar="FILE", show_default=False),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(help="full, bf16, fp16, stand-in, ...", metavar="WORD"),
    ] = "auto",
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, metavar="N", hidden=True)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Run directory to write.", metavar="FOLDER", show_default=False
        ),
    ] = None,
    on_fault: Annotated[
        Fault, typer.Option(help="stop, restart or continue.", metavar="WORD")
    ] = "stop",
    checkpoint: Annotated[
        int, typer.Option(help="Steps between two checkpoints.", min=0, hidden=True)
    ] = 0,
    stall_limit: Annotated[
        float, typer.Option(help="Seconds of silence that end a rank.", hidden=True)
    ] = 60.0,
    pin: Annotated[bool, typer.Option(help="Give each rank a core, in turn.", hidden=True)] = True,
) -> None:
    """Train on real ranks of this machine under a policy."""
    from simstrag.ddp import launch
    from simstrag.ddp.training import Training, command
    from simstrag.workloads import load

    if what.endswith(".py"):
        if not Path(what).is_file():
            raise InputError(f"{what}: no such script")
        started = [what, *(arguments or [])]
    else:
        if arguments:
            raise InputError(f"'{arguments[0]}': arguments are for a script.py; '{what}' is none")
        workload = load(what)
        own = batch or workload.nominal
        if out is not None:
            _cleared(out)
        limit = samples or STEPS * ranks * own
        known, folder = (None if each is None else str(each) for each in (profile, out))
        training = Training(what, policy, limit, own, seed, precision, known, folder, checkpoint)
        started = command(training)
    code = launch.run(started, ranks, on_fault, stall_limit=stall_limit, pinned=pin)
    if out is not None and (out / "journal.jsonl").exists():
        _tell(out)
    if code:
        raise typer.Exit(1)


def _cleared(out: Path) -> None:
    """An earlier run there makes room, and nothing else does."""
    from simstrag.run import check_directory

    check_directory(out, "run.json")
    if out.exists():
        shutil.rmtree(out)


def _tell(out: Path) -> None:
    """Make the run of its journal, and say what it was."""
    from simstrag.ddp.replay import finish

    run = finish(out)
    shown = ("makespan", "updates", "samples", "throughput", "mean_staleness", "amp_share")
    table(["", ""], [[name, text(run.summary[name])] for name in shown])
    written("run", out)
