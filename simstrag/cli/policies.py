"""`simstrag policies`: what there is, or all about one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import print_json, print_paragraphs, print_table
from simstrag.cli.options import Json, complete_policy

if TYPE_CHECKING:
    from simstrag.policies import Description

__all__ = ["policies"]

SHOWN = 4
"""Parameters of a policy that the list of all names."""


def policies(
    policy: Annotated[
        str | None,
        typer.Argument(
            help="A policy to explain, such as korel.",
            metavar="[POLICY]",
            show_default=False,
            autocompletion=complete_policy,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the built-in policies, or explain one.

    What it decides, its first plan, its parameters, its source, and what of it is whose.
    """
    from simstrag.ddp.support import how
    from simstrag.policies import describe

    if as_json:
        told = [{**dataclasses.asdict(d), "real": how(d.name)} for d in _asked_for(policy)]
        print_json(told if policy is None else told[0])
    elif policy is not None:
        _explain(describe(policy), how(policy))
    else:
        rows = [
            [d.name, d.architecture, how(d.name).partition(":")[0], _in_short(d)]
            for d in describe()
        ]
        headers = ["policy", "via", "real", "what it decides; its parameters; its paper"]
        print_table(headers, rows, wraps=3)
        print("real: how real ranks carry it out, through DDP or a server process")
        print("more of one: simstrag policies NAME")
        print("your own: package.module:Class, with parameters in the same way")


def _asked_for(policy: str | None) -> tuple[Description, ...]:
    from simstrag.policies import describe

    return describe() if policy is None else (describe(policy),)


def _in_short(described: Description) -> str:
    """What a policy decides; on lines of their own its parameters, if few, and its paper."""
    named = [f"{p.name}={p.default}" for p in described.parameters[:SHOWN]]
    left = len(described.parameters) - SHOWN
    given = ", ".join([*named, f"and {left} more"] if left > 0 else named)
    return "\n".join(line for line in (described.sentence, given, described.paper) if line)


def _explain(described: Description, real: str) -> None:
    print(f"{described.name} ({described.architecture})")
    print_paragraphs(described.sentence, *described.details, f"On real ranks: {real}.")
    print_table(
        ["plan", "its first, for 8 ranks"], [list(line) for line in described.plan], wraps=1
    )
    if described.parameters:
        print()
        print_table(["parameter", "default", "meaning; values"], list(_rows(described)), wraps=2)
    print_paragraphs(described.source, *described.remarks)


def _rows(described: Description) -> Iterator[list[str]]:
    """One per parameter; what several mean together is said once."""
    before = ""
    for p in described.parameters:
        meaning = "" if p.meaning == before else f"{p.meaning}\n"
        yield [p.name, p.default, f"{meaning}{p.allowed}"]
        before = p.meaning
