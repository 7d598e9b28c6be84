"""`simstrag doctor`: what this installation can do."""

from __future__ import annotations

from simstrag.cli.console import document, table
from simstrag.cli.options import Json
from simstrag.cli.progress import waiting

__all__ = ["doctor"]

SIGNS = {True: "yes", False: "NO", None: "-"}


def doctor(as_json: Json = False) -> None:
    """Say what this installation can do.

    What is missing comes with the command that brings it. Nothing is changed.
    """
    from simstrag.cli.installation import examine

    with waiting("looking"):
        findings = examine()
    if as_json:
        document({"findings": [finding._asdict() for finding in findings]})
        return
    rows = [
        [f.what, SIGNS[f.works], f"{f.says}\n{f.remedy}" if f.remedy else f.says] for f in findings
    ]
    table(["what", "works", ""], rows, wraps=2)
