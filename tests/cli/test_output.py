"""`simstrag.cli.output`: what a command prints by --json and --quiet, and what Ctrl-C says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from simstrag.cli.console import print_line
from simstrag.cli.errors import Interrupted
from simstrag.cli.output import AnswerCommand, FileCommand, emit, mode, on_interrupt


def invoke(command: Any, *arguments: str, cls: type[FileCommand] = FileCommand) -> Any:
    app = typer.Typer()
    app.command(cls=cls)(command)
    return CliRunner().invoke(app, list(arguments))


def found(path: Path | None = None) -> None:
    emit({"made": path}, lambda: print_line("a sentence"), ["a doubt"], 2.5, report=path)


@pytest.mark.parametrize(
    ("arguments", "out", "err"),
    [
        (["there"], "a sentence\nreport: there\n", "warning: a doubt\n"),
        (["there", "-q"], "there\n", ""),
        ([], "a sentence\n", "warning: a doubt\n"),
        (["--quiet"], "2.5\n", ""),
        (["there", "--json"], '{\n  "made": "there"\n}\n', ""),
        (["there", "--json", "-q"], '{\n  "made": "there"\n}\n', ""),
    ],
)
def test_a_result_is_sentences_or_paths_or_one_document(
    arguments: list[str], out: str, err: str
) -> None:
    def command(path: Annotated[Path | None, typer.Argument()] = None) -> None:
        found(path)

    result = invoke(command, *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (0, out, err)


def test_the_options_of_a_command_end_with_it() -> None:
    invoke(found_nothing, "--json", "--quiet")
    assert mode() == (False, False)


def found_nothing() -> None:
    assert mode() == (True, True)


def test_a_command_that_only_answers_has_no_quiet() -> None:
    assert invoke(found_nothing, "--quiet", cls=AnswerCommand).exit_code == 2


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("", "nothing was written"),
        ("3 of 9 runs are kept", "3 of 9 runs are kept; the same command goes on from there"),
    ],
)
def test_ctrl_c_says_what_is_kept(message: str, kept: str) -> None:
    def command() -> None:
        raise KeyboardInterrupt(*[message] if message else [])

    result = invoke(command)
    assert isinstance(result.exception, Interrupted)
    assert str(result.exception) == kept


def test_a_command_may_say_it_in_its_own_words() -> None:
    def command() -> None:
        with on_interrupt(lambda message: f"kept: {message}"):
            raise KeyboardInterrupt("a page")

    assert str(invoke(command).exception) == "kept: a page"
