"""Calls of a policy, built in or a user's: each failure or warning is one line that says where."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from simstrag.contract import UNLIMITED, Block, JudgesBlocks, Plan, Policy, View
from simstrag.contract.policy import LANES
from simstrag.errors import PlanError, SimstragError

FROZEN = "; keep what changes in a plain object in a field whose name ends in _, with init=False"


def ask(policy: Policy, view: View, name: str) -> Plan:
    """The plan of a policy for a view.

    name: the policy's name in messages.

    Raises `PlanError` where the policy fails or returns something else.
    """
    try:
        plan = policy.plan(view)
    except (Exception, SystemExit) as error:  # no policy ends the program
        _raise_as_plan_error(policy, name, error, f"at version {view.version}")
    if not isinstance(plan, Plan):
        raise PlanError(f"policy {name} returned {plan!r}, not a Plan")
    return plan


def counts(policy: Policy, name: str, taken: Collection[str]) -> dict[str, int | float]:
    """The counts of a policy's `summary()`; none where it has no such method.

    name: the policy's name in messages.
    taken: keys that the policy must not use.

    Raises `PlanError` for a taken key and for a value that is not a number.
    """
    summary: Callable[[], Any] = getattr(policy, "summary", dict)
    try:
        values = summary()
    except (Exception, SystemExit) as error:
        _raise_as_plan_error(policy, name, error, "in summary()")
    if not isinstance(values, Mapping):
        raise PlanError(f"policy {name}: summary() must return a dict of numbers, not {values!r}")
    for key, value in values.items():
        if key in taken:
            raise PlanError(f"policy {name}: summary() uses '{key}', which is a word of the run")
        if not isinstance(value, Real):
            raise PlanError(f"policy {name}: summary()['{key}'] must be a number, not {value!r}")
    return dict(values)


def declared_lane(policy: Policy, name: str) -> str | None:
    """The lane that a policy declares; None where it declares none.

    name: the policy's name in messages.

    Raises `PlanError` for a lane that does not exist.
    """
    lane = getattr(policy, "lane", None)
    if lane not in (None, *LANES):
        raise PlanError(f"policy {name}: there is no lane {lane!r}; known: {', '.join(LANES)}")
    return lane


def ask_about(policy: JudgesBlocks, block: Block, name: str) -> int:
    """How many reviews of a block leave a policy's plan as it is.

    Raises `PlanError` where the policy fails or returns no such number.
    """
    first = f"from version {block.versions[0]} on"
    try:
        stays = policy.first_change(block)
    except (Exception, SystemExit) as error:
        _raise_as_plan_error(policy, name, error, f"in first_change, {first}")
    block.close()
    if isinstance(stays, bool) or not isinstance(stays, Integral) or not 0 <= stays <= len(block):
        raise PlanError(
            f"policy {name}: first_change returned {stays!r} for {len(block)} reviews {first}; it "
            f"must be a whole number from 0 to {len(block)}"
        )
    return int(stays)


def reviews_ahead(policy: JudgesBlocks, name: str) -> int:
    """How many reviews the next block of a policy may have.

    Raises `PlanError` where the policy fails or says no whole number.
    """
    try:
        ahead = getattr(policy, "reviews_ahead", UNLIMITED)
    except (Exception, SystemExit) as error:
        _raise_as_plan_error(policy, name, error, "in reviews_ahead")
    if not isinstance(ahead, int | Integral):
        raise PlanError(f"policy {name}: reviews_ahead is {ahead!r}, not a whole number")
    return int(ahead)


@contextmanager
def collect_warnings(policy: str) -> Iterator[dict[str, str]]:
    """Collect Python's warnings: a line for the first of each place, by that place.

    policy: the policy that runs, which the lines name.
    """
    found: dict[str, str] = {}

    def keep(message: Any, category: Any, filename: str, lineno: int, *more: Any) -> None:
        place = f"{Path(filename).name}, line {lineno}"
        found.setdefault(place, f"{policy}: {' '.join(str(message).split())} ({place})")

    with warnings.catch_warnings():
        warnings.showwarning = keep  # type: ignore[assignment]
        yield found


def _raise_as_plan_error(
    policy: Policy, name: str, error: Exception | SystemExit, moment: str
) -> NoReturn:
    if not isinstance(error, SimstragError):
        place = _place(policy, error)
        frozen = isinstance(error, FrozenInstanceError)
        raise PlanError(
            f"policy {name} raised {type(error).__name__}: {_line(error)}{place} {moment}"
            f"{FROZEN if frozen else ''}"
        ) from error
    message = _line(error)
    if message.startswith(f"{name.partition(':')[0]}:"):  # the message names the policy
        raise error
    raise PlanError(f"policy {name}: {message}{_place(policy, error)}") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _place(policy: Policy, error: BaseException) -> str:
    """The innermost line of the policy's file, or of any file without one in the traceback.

    The file alone where a call does not fit the policy's method, which then has no line in it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(sys.modules.get(type(policy).__module__), "__file__", None)
    if file is not None and frames[-1].filename == __file__:
        return f" ({Path(file).name})"
    frame = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    return f" ({Path(frame.filename).name}, line {frame.lineno})"
