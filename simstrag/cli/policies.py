"""`simstrag policies`: list the policies, explain one, or check one against the contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import print_line, print_paragraphs, print_sentences, print_table
from simstrag.cli.options import argument, complete_policy, flag
from simstrag.cli.output import emit, mode
from simstrag.errors import InputError

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
    check: Annotated[
        bool, flag("Try the contract on it; two real ranks take a minute.", "--check")
    ] = False,
) -> None:  # fmt: skip
    """List the built-in policies, explain one, or check your own.

    Explains what it decides, its first plan, its parameters, its source, and what is ours in it.
    """
    if check:
        _check(policy)
        return
    from simstrag.ddp.policy_support import mechanism
    from simstrag.policies import describe

    described = describe() if policy is None else (describe(policy),)
    records = [{**dataclasses.asdict(d), "real": mechanism(d.name)} for d in described]
    if policy is None:
        emit(records, lambda: _list(described))
    else:
        emit(records[0], lambda: _explain(described[0], mechanism(policy)))


def _list(described: Sequence[PolicyDescription]) -> None:
    from simstrag.ddp.policy_support import mechanism

    rows = [
        [d.name, d.architecture, mechanism(d.name).partition(":")[0], _summarize(d)]
        for d in described
    ]
    headers = ["policy", "via", "real", "what it decides; its parameters; its paper"]
    print_table(headers, rows, wraps=3)
    print_line("real: how it runs on real ranks, by DDP or through a server process;")
    print_line("      the server orders the all-reduces of a policy via all-reduce")
    print_line("more about one: simstrag policies NAME")
    print_line("your own: FILE.py:Class or package.module:Class, with parameters in the same way")


def _check(policy: str | None) -> None:
    """Try the contract on a policy and print a line for each rule; exit code 1 if one is broken."""
    from simstrag.validation.policy_contract import check_policy

    if policy is None:
        raise InputError("--check needs a policy, such as mine.py:Class")
    found = check_policy(policy, on_check=_show_check)
    emit(dataclasses.asdict(found) | {"ok": found.ok})
    if not found.ok:
        raise typer.Exit(1)


def _show_check(check: object) -> None:
    if mode().talks:
        print_sentences(str(check))


def _summarize(description: PolicyDescription) -> str:
    """Decisions, first parameters, and paper of a policy, one a line."""
    parameters = [f"{p.name}={p.default}" for p in description.parameters[:MOST]]
    if (left := len(description.parameters) - MOST) > 0:
        parameters.append(f"and {left} more")
    lines = (description.sentence, ", ".join(parameters), description.paper)
    return "\n".join(line for line in lines if line)


def _explain(description: PolicyDescription, real: str) -> None:
    print_line(f"{description.name} ({description.architecture})")
    if real == "server" and description.architecture == "all-reduce":
        real = "a server process orders the all-reduces"
    print_paragraphs(description.sentence, *description.details, f"On real ranks: {real}.")
    print_table(["plan", "first, for 8 ranks"], [*map(list, description.plan)], wraps=1)
    if description.parameters:
        print_line()
        print_table(["parameter", "default", "meaning; values"], [*_rows(description)], wraps=2)
    print_paragraphs(description.source, *description.remarks)


def _rows(description: PolicyDescription) -> Iterator[list[str]]:
    """One row per parameter; a meaning shared by several is printed once."""
    before = ""
    for p in description.parameters:
        meaning = "" if p.meaning == before else f"{p.meaning}\n"
        yield [p.name, p.default, f"{meaning}{p.allowed}"]
        before = p.meaning
