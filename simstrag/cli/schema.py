"""`simstrag schema`: the JSON schema by which an editor completes and checks a file."""

from __future__ import annotations

from typing import Annotated

from simstrag.cli.console import print_json
from simstrag.cli.options import argument


def schema(
    of: Annotated[str, argument("scenario, study or cluster.", "WHAT")] = "scenario",
) -> None:
    """Print the JSON schema of a scenario, study or cluster study."""
    from simstrag.cli.json_schema import schema_of

    print_json(schema_of(of))
