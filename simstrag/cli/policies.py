"""`simstrag policies`: list the policies, or explain one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import print_json, print_paragraphs, print_table
from simstrag.cli.options import Json, argument, complete_policy

if TYPE_CHECKING:
    from simstrag.policies import PolicyDescription

MOST = 4
"""Parameters of a policy that the list shows."""


def policies(
    policy: Annotated[
        str | None,
        argument(
            help="A policy to explain, such as korel.", metavar="POLICY",
            autocompletion=complete_policy,
        ),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List the built-in policies, or explain one.

    Explains what it decides, its first plan, its parameters, its source, and what is ours in it.
    """
    from simstrag.ddp.policy_support import mechanism
    from simstrag.policies import describe

    if as_json:
        described = describe() if policy is None else (describe(policy),)
        records = [{**dataclasses.asdict(d), "real": mechanism(d.name)} for d in described]
        print_json(records if policy is None else records[0])
    elif policy is not None:
        _explain(describe(policy), mechanism(policy))
    else:
        rows = [
            [d.name, d.architecture, mechanism(d.name).partition(":")[0], _summarize(d)]
            for d in describe()
        ]
        headers = ["policy", "via", "real", "what it decides; its parameters; its paper"]
        print_table(headers, rows, wraps=3)
        print("real: how it runs on real ranks, by DDP or through a server process")
        print("more about one: simstrag policies NAME")
        print("your own: package.module:Class, with parameters in the same way")


def _summarize(description: PolicyDescription) -> str:
    """Decisions, first parameters, and paper of a policy, one a line."""
    parameters = [f"{p.name}={p.default}" for p in description.parameters[:MOST]]
    if (left := len(description.parameters) - MOST) > 0:
        parameters.append(f"and {left} more")
    lines = (description.sentence, ", ".join(parameters), description.paper)
    return "\n".join(line for line in lines if line)


def _explain(description: PolicyDescription, real: str) -> None:
    print(f"{description.name} ({description.architecture})")
    print_paragraphs(description.sentence, *description.details, f"On real ranks: {real}.")
    print_table(["plan", "first, for 8 ranks"], [*map(list, description.plan)], wraps=1)
    if description.parameters:
        print()
        print_table(["parameter", "default", "meaning; values"], [*_rows(description)], wraps=2)
    print_paragraphs(description.source, *description.remarks)


def _rows(description: PolicyDescription) -> Iterator[list[str]]:
    """One row per parameter; a meaning shared by several is printed once."""
    before = ""
    for p in description.parameters:
        meaning = "" if p.meaning == before else f"{p.meaning}\n"
        yield [p.name, p.default, f"{meaning}{p.allowed}"]
        before = p.meaning
