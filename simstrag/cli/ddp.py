"""`simstrag ddp`: real ranks under a policy, on this machine."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simstrag.cli import console
from simstrag.cli.console import format_cell, print_json, print_line, warn
from simstrag.cli.options import argument, given_options, option, out_option, policy_option
from simstrag.cli.output import emit, mode, on_interrupt
from simstrag.cli.progress import show_training
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.runs.run import Run
    from simstrag.validation import Schedule
    from simstrag.validation.loadgen.limited_link import Behind

OnFault = Literal["stop", "restart", "continue"]
PrecisionName = Literal["auto", "full", "bf16", "tf32+bf16", "fp16", "stand-in"]

STEPS = 200
"""Steps of each rank without --samples."""

TURN, HOUR = 5.0, 3600.0
"""Mean seconds with and without load; length in seconds of a drawn schedule."""

OF_RANKS, OF_WORKLOAD = "Ranks", "Training of a workload; a script has options of its own"
OF_WORKLOADS = (
    "policy", "samples", "batch", "profile", "precision", "seed", "out", "checkpoint", "load",
    "shards",
)  # fmt: skip
"""Options for workloads, refused with a script."""

SHOWN = (
    "makespan", "updates", "samples", "throughput", "mean_staleness", "amp_share", "accuracy",
    "progress", "noise_scale", "noise_scale_low", "noise_scale_high",
)  # fmt: skip


def ddp(
    context: typer.Context,
    what: Annotated[str, argument("digits, module:function or train.py.", "WORKLOAD|SCRIPT")],
    arguments: Annotated[
        list[str] | None, argument("Arguments of the script, after --.", "ARGUMENTS")
    ] = None,
    ranks: Annotated[int, option("Number of ranks.", "N", min=1, group=OF_RANKS)] = 2,
    shards: Annotated[
        int, option("Ranks that shard a replica's model.", "N", min=1, group=OF_WORKLOAD)
    ] = 1,
    policy: Annotated[str, policy_option("Such as ssp:bound=5.", OF_WORKLOAD)] = "korel",
    samples: Annotated[
        int | None,
        option("Samples of all ranks; else 200 steps each.", "N", min=1, group=OF_WORKLOAD),
    ] = None,
    batch: Annotated[
        int | None, option("Samples of a rank's batch.", "N", min=1, group=OF_WORKLOAD)
    ] = None,
    profile: Annotated[
        Path | None, option("Calibration for hints.", "FILE", group=OF_WORKLOAD)
    ] = None,
    precision: Annotated[
        PrecisionName,
        option("full, bf16, tf32+bf16, fp16 or stand-in.", "WORD", group=OF_WORKLOAD),
    ] = "auto",
    seed: Annotated[
        int,
        option("Seed of weights and batches.", "N", "--seed", "-s", min=0, group=OF_WORKLOAD),
    ] = 0,
    out: Annotated[Path | None, out_option("Run directory to write.")] = None,
    on_fault: Annotated[
        OnFault, option("stop, restart or continue.", "WORD", group=OF_RANKS)
    ] = "stop",
    checkpoint: Annotated[
        int, option("Steps between two; 0: none.", "N", min=0, group=OF_WORKLOAD)
    ] = 0,
    stall_limit: Annotated[
        float, option("Seconds of silence that end a rank.", "S", group=OF_RANKS)
    ] = 60.0,
    load: Annotated[
        str | None,
        option(
            "Real load beside these, such as 0,1, or a schedule.", "RANKS|FILE", group=OF_WORKLOAD
        ),
    ] = None,
    pin: Annotated[bool, option("Pin rank r to core r, modulo the cores.", group=OF_RANKS)] = True,
) -> None:
    """Train on real ranks of this machine under a policy."""
    from simstrag.ddp import launch, policy_support

    launch.require_startable(ranks, stall_limit)
    policy_support.check_torch()

    def run(command: list[str], network: Behind | None = None) -> bool:
        """Run a command on the ranks; returns whether it failed."""
        with console.redirect_stdout() if mode().as_json else contextlib.nullcontext():
            code = launch.run(
                command, ranks, on_fault, stall_limit=stall_limit, pinned=pin, network=network
            )
        return bool(code)

    if what.endswith(".py"):
        _refuse(context, what)
        with on_interrupt(lambda _: "all ranks have ended; files of the script are kept"):
            failed = run([what, *(arguments or [])])
        if mode().as_json:
            print_json({"failed": failed})
    elif arguments:
        raise InputError(f"'{arguments[0]}': arguments are for a script.py; '{what}' is none")
    else:
        if checkpoint and out is None:
            raise InputError(f"--checkpoint {checkpoint}: needs a folder; give one with --out")
        from simstrag import workloads
        from simstrag.ddp.journal.journal import attempt_folder
        from simstrag.ddp.workload_rank import Training, command, prepare
        from simstrag.profile.profile import find_profile

        workload = workloads.load(what)
        own = batch or workload.nominal
        workers = _replicas(ranks, shards)
        limit = samples or STEPS * workers * own
        known = None if profile is None else find_profile(profile)
        _check_policy(policy, workers, known, own, limit)
        schedule = None if load is None else _schedule(load, ranks, seed, pin)
        with contextlib.ExitStack() as stack:
            folder = out or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="simstrag-"))
            )
            training = Training(
                what, policy, limit, own, seed, precision, None if known is None else str(known),
                str(folder), checkpoint, shards=shards,
            )  # fmt: skip
            training, done = prepare(training, folder, ranks)
            if mode().talks:
                begin = f"{_describe_workers(workers, shards)} train {what} under {policy}:"
                begin = f"going on at {done} of" if done else begin
                print_line(f"{begin} {limit} samples", stderr=True)
            record = attempt_folder(folder, training.attempt)
            with (
                on_interrupt(lambda _: _describe_interrupted(out)),
                _loaded(schedule, record) as network,
                show_training(folder, own, limit),
            ):
                failed = run(command(training), network)
            _report(folder, out, limit, failed)
    if failed:
        raise typer.Exit(1)


def _replicas(ranks: int, shards: int) -> int:
    """The workers of the policy. Raises `InputError` where ranks do not form equal replicas."""
    if ranks % shards or (shards > 1 and ranks == shards):
        raise InputError(
            f"--shards {shards}: {ranks} ranks are not two or more replicas of {shards}; give "
            f"--ranks {2 * shards}"
        )
    return ranks // shards


def _describe_workers(workers: int, shards: int) -> str:
    return f"{workers} ranks" if shards == 1 else f"{workers} replicas of {shards} ranks"


def _refuse(context: typer.Context, script: str) -> None:
    """Raise `InputError` for options for workloads, which a script does not get."""
    if not Path(script).is_file():
        raise InputError(f"{script}: no such script")
    if given := given_options(context, OF_WORKLOADS):
        raise InputError(
            f"{', '.join(given)}: for workloads only, and {script} is a script; write its own "
            f"options after two dashes, such as simstrag ddp {script} -- --policy asgd"
        )


def _check_policy(policy: str, ranks: int, profile: Path | None, batch: int, samples: int) -> None:
    """Raise `InputError` for a policy that does not exist or cannot run on real ranks."""
    from simstrag import policies
    from simstrag.contract import View
    from simstrag.ddp import policy_support

    hints = policy_support.profile_hints(profile, batch, samples)
    first = View(ranks, hints=hints, noise_scale=hints.noise_scale)
    policy_support.check_policy(policies.load(policy), policy, first)


def _schedule(load: str, ranks: int, seed: int, pinned: bool) -> Schedule:
    """The schedule of a file, or one drawn for the listed ranks. Raises `InputError`."""
    from simstrag.validation import Schedule
    from simstrag.validation.loadgen import limited_link

    if not pinned:
        raise InputError("--load needs ranks that have a core each; leave out --no-pin")
    if load.endswith(".json"):
        schedule = Schedule.read(load)
        wanted = list(schedule.ranks)
    else:
        words = [word.strip() for word in load.split(",")]
        if not all(map(str.isdecimal, words)):
            raise InputError(f"--load {load}: give ranks, such as 1 or 0,1, or a schedule.json")
        wanted = [int(word) for word in words]
        if len(set(wanted)) < len(wanted):
            raise InputError(f"--load {load}: names a rank twice")
        schedule = Schedule.drawn(wanted, HOUR, seed, mean_on=TURN, mean_off=TURN, least=0.0)
    if not schedule.episodes:
        raise InputError(f"--load {load}: has no episodes, so there would be no load")
    if any(device == "cpu" for device in _gpus(schedule).values()):
        raise InputError(f"--load {load}: gemm and copy are loads of a GPU, and torch sees none")
    limited = {each.rank for each in schedule.episodes if each.kind == "link"}
    if len(limited) > 1 or 0 in limited:
        raise InputError(
            f"--load {load}: give episodes of kind link to one rank, and not to rank 0"
        )
    if beyond := [rank for rank in wanted if rank >= ranks]:
        raise InputError(f"--load {load}: there is no rank {beyond[0]} of {ranks}")
    if limited and (why := limited_link.probe()):  # before an old run is removed
        raise InputError(f"--load {load}: {why}")
    return schedule


def _gpus(schedule: Schedule) -> dict[int, str]:
    """The GPU of each rank that gets load on it."""
    from simstrag.calibration.benches.background_load import ON_GPU
    from simstrag.ddp.rendezvous import device_of

    return {e.rank: device_of(e.rank) for e in schedule.episodes if e.kind in ON_GPU}


@contextlib.contextmanager
def _loaded(schedule: Schedule | None, folder: Path) -> Iterator[Behind | None]:
    """Carry out the load of a schedule beside ranks, and report it.

    Yields the network in which ranks must start if the schedule limits a link, else None.
    """
    if schedule is None:
        yield None
        return
    from simstrag.calibration.benches.bench import Skipped
    from simstrag.validation.loadgen.injector import inject_beside
    from simstrag.validation.loadgen.limited_link import Behind, LimitedLink

    behind = next((each.rank for each in schedule.episodes if each.kind == "link"), None)
    with contextlib.nullcontext() if behind is None else LimitedLink() as link:
        network = None if link is None or behind is None else Behind(link, behind)
        with inject_beside(schedule, folder, link, _gpus(schedule)) as injector:
            yield network
    try:
        injector.check()
    except Skipped as failure:
        warn([f"load beside the ranks failed: {failure}"])
    if not injector.done:
        warn(["no load was on: the run was over before the first episode; give more --samples"])
    elif mode().talks:
        seconds = sum(each.episode.stop - each.episode.start for each in injector.done)
        ranks = sorted({each.episode.rank for each in injector.done})
        count = len(injector.done)
        text = f"{count} episode{'s' * (count > 1)}, {seconds:.1f} s in all, beside rank "
        print_line(f"load: {text}{', '.join(map(str, ranks))}", stderr=True)


def _describe_interrupted(out: Path | None) -> str:
    """A message on the files left after Ctrl-C: the run so far, and perhaps a checkpoint."""
    from simstrag.ddp.journal.run_from_journal import finish_all

    if out is None:
        return "nothing was written"
    try:
        with console.capture_warnings():
            *_, last = finish_all(out).values()
    except InputError:
        return "it ended before its first update"
    samples = last.summary["samples"]
    return f"{out} holds the run up to {samples} samples; {_describe_resumption(out)}"


def _describe_resumption(out: Path) -> str:
    from simstrag.ddp.workload_rank import CHECKPOINT

    if (out / CHECKPOINT).exists():
        return "the same command goes on from its last checkpoint"
    return "there is no checkpoint, so the same command begins anew"


def _report(folder: Path, out: Path | None, limit: int, failed: bool) -> None:
    """Make runs from the record, and print them."""
    from simstrag.ddp.journal.run_from_journal import finish_all

    runs: dict[Path, Run] = {}
    try:
        with console.capture_warnings() as left_out:
            runs = finish_all(folder)
    except InputError as error:
        left_out = [] if failed else [str(error)]  # the ranks have printed the reason
    documents = [
        {**json.loads(run.to_json()), "written": out and each} for each, run in runs.items()
    ]
    document = {"failed": failed, "written": out, "runs": documents, "warnings": left_out}
    last = list(runs.values())[-1].summary if runs else {"samples": 0}
    shown, number = partial(_show, folder, runs), last.get("makespan")
    emit(document, shown, left_out, number, run=out if runs else None)
    if out is not None and failed and mode().talks and last["samples"] < limit:
        print_line(f"stopped: {_describe_resumption(out)}", stderr=True)


def _show(folder: Path, runs: dict[Path, Run]) -> None:
    """Print the summary of each part, and the warnings."""
    if not runs:
        return
    *_, last = runs.values()
    parts = ["first" if each == folder else str(each.relative_to(folder)) for each in runs]
    rows = [[name, *(format_cell(run.summary[name]) for run in runs.values())] for name in SHOWN]
    console.print_table(["", *(parts if len(parts) > 1 else [last.policy])], rows)
    if len(parts) > 1:
        console.print_sentences(
            f"{len(parts)} parts, each a run of its own: time and samples of a part count on from "
            "where it began, progress from 0, and accuracy is that of the last part."
        )
    warn(dict.fromkeys(warning for run in runs.values() for warning in run.warnings))
