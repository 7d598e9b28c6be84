"""`simstrag schema`: the JSON schema by which an editor completes and checks a file."""

from __future__ import annotations

from typing import Annotated

import typer

from simstrag.cli.console import print_json


def schema(
    of: Annotated[str, typer.Argument(help="scenario or study.", metavar="[WHAT]")] = "scenario",
) -> None:
    """Print the JSON schema of a scenario or a study, for an editor."""
    from simstrag.experiments.json_schema import schema_of

    print_json(schema_of(of))
