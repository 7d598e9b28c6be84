"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from simstrag.errors import InputError

OUTPUT = "Output"
"""The group of the options that say what is written and printed."""


def argument(help: str, metavar: str, **more: Any) -> Any:
    """An argument of a command."""
    return typer.Argument(help=help, metavar=metavar, **more)


def option(
    help: str, metavar: str | None = None, *names: str, group: str | None = None, **more: Any
) -> Any:
    """An option of a command.

    names: its names; by default that of its parameter.
    group: the title of its section in the help; "Options" by default.
    """
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=group, **more)


def flag(help: str, *names: str, group: str | None = None) -> Any:
    """An option without a value."""
    return typer.Option(*names, help=help, rich_help_panel=group)


def out_option(help: str, metavar: str = "FOLDER") -> Any:
    """The option `--out`, `-o` of a command."""
    return option(help, metavar, "--out", "-o", group=OUTPUT)


def complete_policy(incomplete: str) -> list[str]:
    """Built-in policies whose names begin with `incomplete`, for shell completion."""
    from simstrag.policies import names

    return [name for name in names() if name.startswith(incomplete)]


def given_options(context: typer.Context, names: Iterable[str]) -> list[str]:
    """The options among `names` on the command line, as `--name`."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return [f"--{name.replace('_', '-')}" for name in given]


def refuse_commas(value: Any) -> Any:
    """The value of `--policy`, which is one policy or a list of them.

    Raises `InputError` if one value names several policies; commas separate parameters.

    >>> refuse_commas("ssp:bound=5,via=server")
    'ssp:bound=5,via=server'
    >>> refuse_commas(["bsp,asgd"])
    Traceback (most recent call last):
    simstrag.errors.InputError: --policy bsp,asgd: takes one policy; write -p bsp -p asgd
    """
    for text in [value] if isinstance(value, str) else value or ():
        policies = split_policies(text)
        if len(policies) > 1:
            options = " ".join(f"-p {policy}" for policy in policies)
            way_out = "choose one here" if isinstance(value, str) else f"write {options}"
            raise InputError(f"--policy {text}: takes one policy; {way_out}")
    return value


def split_policies(text: str) -> list[str]:
    """The policies of a list with commas, which also separate the parameters of one policy.

    >>> split_policies("korel, ssp:bound=5,via=server,bsp")
    ['korel', 'ssp:bound=5,via=server', 'bsp']
    """
    from simstrag.policies import names

    head, *rest = (part.strip() for part in text.split(","))
    policies = [head]
    for part in rest:
        if "=" in part and part.partition(":")[0] not in names():
            policies[-1] += f",{part}"
        else:
            policies.append(part)
    return policies


def parse_pairs(option: str, texts: list[str] | None) -> dict[str, str] | None:
    """`WHAT=NAME` of an option, each at most once."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        what, _, name = (part.strip() for part in text.partition("="))
        if not what or not name:
            raise InputError(f"{option} {text}: write it as what=value, such as gpu=...")
        if what in pairs:
            raise InputError(f"{option} {text}: {what} is {pairs[what]} already; say it once")
        pairs[what] = name
    return pairs or None


def policy_option(help: str, group: str | None = None) -> Any:
    """The option `--policy`, `-p` of a command."""
    return option(
        help, "POLICY", "--policy", "-p", group=group, callback=refuse_commas,
        autocompletion=complete_policy,
    )  # fmt: skip


ScenarioFile = Annotated[Path, argument("A scenario in YAML.", "SCENARIO")]
TraceFile = Annotated[Path, argument("A CSV or parquet trace.", "TRACE")]
PolicyOption = Annotated[str, policy_option("Such as ssp:bound=5.")]
PoliciesOption = Annotated[
    list[str] | None, policy_option("Instead of the scenario's; may be repeated.")
]
SeedOption = Annotated[int, option("Seed of all random numbers.", "N", "--seed", "-s", min=0)]
SeedsOption = Annotated[int | None, option("Number of seeds, instead of the file's.", "N", min=1)]
JobsOption = Annotated[
    int | None, option("Processes; all cores by default.", "N", "--jobs", "-j", min=1)
]
VerboseOption = Annotated[
    bool, flag("Print all sentences, tables and cautions.", "--verbose", "-v", group=OUTPUT)
]
