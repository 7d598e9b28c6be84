"""Arguments and options that several commands share, and the files that they name."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simstrag.documents.file_io import require_path
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.scenario.scenario import Scenario

TRACES, SCENARIOS = (".csv", ".parquet"), (".yaml", ".yml")
"""File names of traces and of scenarios, which users mix up."""

argument: Any = functools.partial(typer.Argument, show_default=False)
option: Any = functools.partial(typer.Option, show_default=False)


def out_option(help: str, metavar: str = "FOLDER") -> Any:
    """The option `--out`, `-o` of a command."""
    return option("--out", "-o", help=help, metavar=metavar)


def complete_policy(incomplete: str) -> list[str]:
    """Built-in policies whose names begin with `incomplete`, for shell completion."""
    from simstrag.policies import names

    return [name for name in names() if name.startswith(incomplete)]


def given_options(context: typer.Context, names: Iterable[str]) -> list[str]:
    """The options among `names` that are on the command line, written as options."""
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
    from simstrag.policies import names

    for text in [value] if isinstance(value, str) else value or ():
        head, *rest = (part.strip() for part in text.split(","))
        policies = [head]
        for part in rest:
            if part.partition(":")[0] in names():
                policies.append(part)
            else:  # one more parameter of the policy before it
                policies[-1] += f",{part}"
        if len(policies) > 1:
            options = " ".join(f"-p {policy}" for policy in policies)
            way_out = "choose one here" if isinstance(value, str) else f"write {options}"
            raise InputError(f"--policy {text}: takes one policy; {way_out}")
    return value


policy_option: Any = functools.partial(
    option, "--policy", "-p", metavar="POLICY", callback=refuse_commas,
    autocompletion=complete_policy,
)  # fmt: skip

ScenarioFile = Annotated[Path, argument(help="A scenario in YAML.", metavar="SCENARIO")]
Policy = Annotated[str, policy_option(help="Such as ssp:bound=5.", show_default=True)]
Policies = Annotated[
    list[str] | None, policy_option(help="Instead of the scenario's; may be repeated.")
]
Seed = Annotated[
    int, typer.Option("--seed", "-s", min=0, metavar="N", help="Seed of all random numbers.")
]
Seeds = Annotated[
    int | None, option(help="Number of seeds instead of the scenario's.", min=1, metavar="N")
]
Jobs = Annotated[
    int | None, option("--jobs", "-j", help="Processes; all cores by default.", min=1, metavar="N")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors and the path of the result alone.")
]


def read_scenario(path: Path) -> Scenario:
    """The scenario in a file; its folder is searched for `module:Class` policies from then on.

    Raises `InputError`, for a missing file with the nearest name that exists.
    """
    from simstrag.scenario.scenario import Scenario

    if require_path(path).suffix in TRACES:
        raise InputError(
            f"{path}: is a trace by its name; `simstrag init {path}` writes a scenario for it"
        )
    scenario = Scenario.read(path)
    for name in (scenario.trace, scenario.profile):
        if isinstance(name, str):
            require_path(path.parent / name)
    sys.path.append(str(path.absolute().parent))
    return scenario


def find_profile(path: Path) -> Path:
    """A profile's file, or the one in a calibration's folder. Raises `InputError` without it."""
    require_path(path)
    return path / "profile.json" if path.is_dir() else path


def check_trace(path: Path) -> Path:
    """The path of a trace. Raises `InputError` if it does not exist or is a scenario's."""
    if require_path(path).suffix in SCENARIOS:
        raise InputError(
            f"{path}: is a scenario by its name; give its trace, a file named *.csv or *.parquet"
        )
    return path


def comparison_folder(out: Path | None, scenario: Path) -> Path:
    """Where a comparison is written: `out`, or reports/<scenario>.

    Raises `InputError` if reports/<scenario> is the comparison of another scenario file.
    """
    from simstrag.experiments.compare import origin

    if out is not None:
        return out
    folder = Path("reports") / scenario.stem
    other = origin(folder)
    if other is not None and other != scenario.resolve():
        raise InputError(
            f"{folder}: holds the comparison of another scenario, {os.path.relpath(other)}; "
            f"choose a folder for {scenario} with --out"
        )
    return folder


def partial_folder(folder: Path) -> Path:
    """Where finished runs are kept until the comparison is written to `folder`."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.partial")
