"""`simstrag watch`: a run while it is recorded: who is slow, what was lost, what would help."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import console, print_line, warn
from simstrag.cli.options import argument, flag, option
from simstrag.cli.output import emit, mode, on_interrupt
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.analysis.monitor.advisor import Advisor
    from simstrag.analysis.monitor.snapshot import Snapshot
    from simstrag.analysis.monitor.watcher import Watcher

ALSO = "Also show it"
LEAST_REFRESH = 5.0
"""Least seconds after which a page loads itself again: a reader needs them."""
Show = Callable[["Snapshot"], None]


def watch(
    run: Annotated[list[Path], argument("Folder of a record or run, or one of each host.",
                                        "RUN...")],
    once: Annotated[bool, flag("Show it once, also while the run goes on.", "--once")] = False,
    every: Annotated[float, option("Seconds between two looks.", "SECONDS", min=0.1)] = 2.0,
    gpu_price: Annotated[
        float | None, option("Of a GPU-hour, in any currency.", "X", "--gpu-price")
    ] = None,
    advice: Annotated[
        bool, flag("Say what would help, computed beside the run.", "--advice/--no-advice")
    ] = True,
    html: Annotated[
        Path | None,
        option("A page that is rewritten and loads itself again.", "FILE", group=ALSO),
    ] = None,
    metrics: Annotated[
        str | None,
        option("Prometheus metrics, on the loopback.", "[HOST:]PORT", group=ALSO),
    ] = None,
) -> None:  # fmt: skip
    """Show who is slow in a run that goes on, and what that costs.

    It only reads. Ctrl-C ends it; a run that is over is shown once.
    """
    from simstrag.analysis.monitor.advisor import Advisor
    from simstrag.analysis.monitor.watcher import Watcher

    watcher = Watcher(run, gpu_price)
    with contextlib.ExitStack() as stack:
        shows = [] if html is None else [_page(html, every)]
        if metrics is not None:
            from simstrag.analysis.monitor.metrics import MetricsServer

            shows.append(stack.enter_context(MetricsServer(metrics)).show)
        advisor = None
        if advice:
            advisor = stack.enter_context(contextlib.closing(Advisor(run, gpu_price)))
        found = watcher.catch_up()
        if once or mode().as_json or found.is_over:
            _show_once(watcher, found, advisor, shows)
            return
        stack.enter_context(on_interrupt(lambda _: "the run goes on, it was only read"))
        _follow(watcher, advisor, [_screen(stack), *shows], every)


def _show_once(
    watcher: Watcher, found: Snapshot, advisor: Advisor | None, shows: list[Show]
) -> None:
    """Show a run as it is now, with advice."""
    if not found.steps and found.is_over:
        raise InputError(f"{found.source}: the run ended before a step of all ranks")
    if not found.ranks:
        raise InputError(
            f"{found.source}: holds no record yet of simstrag.ddp.record or simstrag ddp; without "
            "--once and --json the command waits for it"
        )
    if advisor is not None:
        _begin_advice(watcher, advisor, found)
        advisor.wait()
        found = _with_advice(found, advisor)
    for show in shows:
        show(found)
    emit(found.document, lambda: _print(found))


def _print(found: Snapshot) -> None:
    if (out := console()).is_terminal:
        from simstrag.analysis.monitor.terminal import frame

        out.print(frame(found, out.width, out.height))
    else:
        for line in str(found).splitlines():
            print_line(line)


def _follow(watcher: Watcher, advisor: Advisor | None, shows: list[Show], every: float) -> None:
    """Show a run until it has ended, by its own word."""
    while True:
        found = watcher.catch_up()
        if advisor is not None:
            advisor.take()
            if watcher.has_ended:
                advisor.wait()
            _begin_advice(watcher, advisor, found)
            if watcher.has_ended:
                advisor.wait()
            found = _with_advice(found, advisor)
        for show in shows:
            show(found)
        if watcher.has_ended:
            return
        time.sleep(every)


def _begin_advice(watcher: Watcher, advisor: Advisor, found: Snapshot) -> None:
    """Begin to compute what would help, if that is due."""
    advisor.forget(watcher.restarts)
    if advisor.is_due(found.steps, found.last, found.is_over):
        record = watcher.latest
        assert record is not None, "there are steps"
        advisor.begin(record, found.is_over)


def _with_advice(found: Snapshot, advisor: Advisor) -> Snapshot:
    return replace(found, advice=advisor.advice, why_no_advice=advisor.note)


def _screen(stack: contextlib.ExitStack) -> Show:
    """Draws on the terminal; elsewhere prints a line at each look, and each warning once."""
    out = console()
    if out.is_terminal:
        from rich.live import Live

        from simstrag.analysis.monitor.terminal import frame

        live = stack.enter_context(Live(console=out, auto_refresh=False, vertical_overflow="crop"))
        return lambda found: live.update(frame(found, out.width, out.height), refresh=True)
    from simstrag.analysis.monitor.words import brief, help_line

    said: set[str] = set()

    def print_brief(found: Snapshot) -> None:
        helps = [text] if (text := help_line(found)) else []
        for text in (*(f"warning: {each.text}" for each in found.warnings), *helps):
            if text not in said:
                said.add(text)
                print_line(text)
        print_line(brief(found))

    return print_brief


def _page(path: Path, every: float) -> Show:
    """Rewrites the page; a disk that is full costs the page, not the view."""
    from simstrag.analysis.monitor.page import write

    refused: list[str] = []

    def show(found: Snapshot) -> None:
        try:
            write(found, path, round(max(every, LEAST_REFRESH)))
            refused.clear()
        except InputError as error:
            if not refused:
                refused.append(str(error))
                warn(refused)

    if not path.absolute().parent.is_dir():
        raise InputError(f"--html {path}: there is no folder {path.absolute().parent}")
    return show
