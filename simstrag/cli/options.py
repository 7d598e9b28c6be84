"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Jobs", "Json", "Policies", "Policy", "Quiet", "ScenarioFile", "Seed", "Seeds",
    "complete_policy",
]  # fmt: skip


def complete_policy(incomplete: str) -> list[str]:
    """The built-in policies whose names begin so, for a shell that completes them."""
    from simstrag.policies import names

    return [name for name in names() if name.startswith(incomplete)]


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
