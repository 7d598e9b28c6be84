"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from simstrag.errors import InputError

__all__ = [
    "Jobs", "Json", "Policies", "Policy", "Quiet", "ScenarioFile", "Seed", "Seeds",
    "complete_policy", "on_command_line", "one_each",
]  # fmt: skip


def complete_policy(incomplete: str) -> list[str]:
    """The built-in policies whose names begin so, for a shell that completes them."""
    from simstrag.policies import names

    return [name for name in names() if name.startswith(incomplete)]


def on_command_line(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of some options that were given there, as they are written."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return [f"--{name.replace('_', '-')}" for name in given]


def one_each(given: Any) -> Any:
    """What `--policy` was given, one policy or a list of some.

    Raises `InputError` where several were written into one, which commas between parameters are
    for.

    >>> one_each("ssp:bound=5,via=server")
    'ssp:bound=5,via=server'
    >>> one_each(["bsp,asgd"])
    Traceback (most recent call last):
    simstrag.errors.InputError: --policy bsp,asgd: takes one policy; write -p bsp -p asgd
    """
    from simstrag.policies import names

    for text in [given] if isinstance(given, str) else given or ():
        head, *rest = (part.strip() for part in text.split(","))
        found = [head]
        for part in rest:
            if part.partition(":")[0] in names():
                found.append(part)
            else:  # one more parameter of the policy before it
                found[-1] += f",{part}"
        if len(found) > 1:
            each = " ".join(f"-p {policy}" for policy in found)
            way_out = "choose one here" if isinstance(given, str) else f"write {each}"
            raise InputError(f"--policy {text}: takes one policy; {way_out}")
    return given


ScenarioFile = Annotated[
    Path,
    typer.Argument(help="A scenario in YAML.", metavar="SCENARIO", show_default=False),
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        "-p",
        help="Such as ssp:bound=5.",
        metavar="POLICY",
        callback=one_each,
        autocompletion=complete_policy,
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        help="Instead of the scenario's; may be repeated.",
        metavar="POLICY",
        show_default=False,
        callback=one_each,
        autocompletion=complete_policy,
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", "-s", min=0, metavar="N", help="The same seed, the same luck.")
]
Seeds = Annotated[
    int | None,
    typer.Option(help="Number of seeds instead of the scenario's.", min=1, metavar="N"),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", help="Processes; all cores by default.", min=1, metavar="N"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Only errors, and the path of what was written.")
]
