"""What every command prints, and how it ends: --json, --quiet, warnings, paths, Ctrl-C.

`FileCommand` adds the two options and reads them; `emit` prints by them, so no command passes
them on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command

from simstrag.cli.console import print_json, print_line, warn
from simstrag.cli.errors import Interrupted
from simstrag.cli.options import OUTPUT, flag
from simstrag.errors import InputError

OTHER = "Options"
"""The title of options without a group."""


class OutputMode(NamedTuple):
    """The options --json and --quiet of the command that runs."""

    as_json: bool = False
    quiet: bool = False

    @property
    def talks(self) -> bool:
        """Whether the command prints sentences."""
        return not (self.as_json or self.quiet)


_MODE: ContextVar[OutputMode] = ContextVar("mode")


def mode() -> OutputMode:
    """The options of the command that runs; outside of one, those of a command without them."""
    return _MODE.get(OutputMode())


def emit(
    document: Any,
    details: Callable[[], None] = lambda: None,
    warnings: Iterable[str] = (),
    number: object = None,
    **paths: Path | None,
) -> None:
    """Print the result of a command: one JSON document; or details, warnings and written paths.

    number: what --quiet prints where no path was written.
    """
    as_json, quiet = mode()
    if as_json:
        print_json(document)
        return
    if not quiet:
        details()
        warn(warnings)
    written = {label: path for label, path in paths.items() if path is not None}
    for label, path in written.items():
        print_path(label, path)
    if quiet and not written and number is not None:
        print_line(number)


def print_path(label: str, path: Path) -> None:
    """Print `label: path`, or with --quiet the path alone for scripts."""
    print_line(path if mode().quiet else f"{label}: {path}")


def warn_of_plan(text: str) -> None:
    """Say on stderr what long work leaves out, before it begins."""
    if mode().talks:
        warn([text])


@contextmanager
def on_interrupt(describe: Callable[[str], str]) -> Iterator[None]:
    """Ctrl-C inside ends the command with what `describe` makes of the interrupt's own message."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(describe(str(interrupt))) from None


def _describe_kept(kept: str) -> str:
    return f"{kept}; the same command goes on from there" if kept else "nothing was written"


def _declare(
    as_json: Annotated[bool, flag("Print one JSON document.", "--json", group=OUTPUT)] = False,
    quiet: Annotated[
        bool, flag("Print errors and the path of the result alone.", "--quiet", "-q", group=OUTPUT)
    ] = False,
) -> None:
    """The two options, as Typer reads them."""


@functools.cache
def _declared() -> tuple[Any, ...]:
    app = typer.Typer(add_completion=False)
    app.command()(_declare)
    return tuple(get_command(app).params)


class Printing:
    """A command with the options `modes`; its help lists the options of a group together."""

    modes: ClassVar[tuple[str, ...]] = ("as_json", "quiet")

    def __init__(self, *args: Any, params: Sequence[Any] | None = None, **more: Any) -> None:
        shared = [each for each in _declared() if each.name in self.modes]
        super().__init__(*args, params=[*(params or ()), *shared], **more)  # type: ignore[call-arg]

    def invoke(self, ctx: Any) -> Any:
        """Run it by its options; Ctrl-C says what is kept."""
        given = {name: ctx.params.pop(name) for name in self.modes}
        if given.get("quiet") and ctx.params.get("verbose"):
            raise InputError("--quiet, --verbose: give one of them")
        token = _MODE.set(OutputMode(**given))
        try:
            with on_interrupt(_describe_kept):
                return super().invoke(ctx)  # type: ignore[misc]
        finally:
            _MODE.reset(token)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters below the titles of their groups, output last."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OTHER: []}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            group = getattr(parameter, "rich_help_panel", None) or OTHER
            title = "Arguments" if parameter.param_type_name == "argument" else group
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append(record)
        output = sections.pop(OUTPUT, [])
        if len(sections) == 2 or not output:  # a short command
            sections[OTHER] = [*sections[OTHER][:-1], *output, *sections[OTHER][-1:]]
        else:  # --help is the last
            sections[OUTPUT] = [*output, sections[OTHER].pop()]
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class FileCommand(Printing, TyperCommand):
    """A command that writes files."""


class AnswerCommand(FileCommand):
    """A command whose answer is what it prints: it has no --quiet."""

    modes = ("as_json",)


class FixedCommand(FileCommand):
    """A command that prints in one way."""

    modes = ()
