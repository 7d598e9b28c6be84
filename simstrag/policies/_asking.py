"""Asking a policy, which may be a stranger's: what it does wrong is one line that says where."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from simstrag.errors import PlanError, SimstragError
from simstrag.plan import Plan
from simstrag.policy import Policy
from simstrag.view import View

__all__ = ["ask", "counts"]

T = TypeVar("T")


def ask(policy: Policy, view: View, name: str) -> Plan:
    """The plan of a policy that is called `name`. Raises `PlanError` where it gives none."""
    plan = _calling(policy, name, lambda: policy.plan(view), f"at version {view.version}")
    if not isinstance(plan, Plan):
        raise PlanError(f"policy {name} returned {plan!r}, not a Plan")
    return plan


def counts(policy: Policy, name: str, taken: Collection[str]) -> dict[str, int | float]:
    """What a policy counted, by its `summary()` if it has one.

    taken: words that are not its to use. Raises `PlanError` for those, and for what is no number.
    """
    summary: Callable[[], Any] = getattr(policy, "summary", dict)
    found = _calling(policy, name, summary, "in summary()")
    if not isinstance(found, Mapping):
        raise PlanError(f"policy {name}: summary() must return a dict of numbers, not {found!r}")
    for key, value in found.items():
        if key in taken:
            raise PlanError(f"policy {name}: summary() uses '{key}', which is a word of the run")
        if not isinstance(value, Real):
            raise PlanError(f"policy {name}: summary()['{key}'] must be a number, not {value!r}")
    return dict(found)


def _calling(policy: Policy, name: str, call: Callable[[], T], moment: str) -> T:
    try:
        return call()
    except SimstragError as error:
        text, said = _line(error), name.partition(":")[0]
        if text.startswith(f"{said}:"):  # it names itself
            raise
        raise PlanError(f"policy {name}: {text}{_where(policy, error)}") from None
    except (Exception, SystemExit) as error:  # no policy ends the program
        where = _where(policy, error)
        raise PlanError(
            f"policy {name} raised {type(error).__name__}: {_line(error)}{where} {moment}"
        ) from error


def _line(error: BaseException) -> str:
    """Its message in one line."""
    return " ".join(str(error).split())


def _where(policy: Policy, error: BaseException) -> str:
    """The innermost line of the policy's own file; of another where it has none in the trace."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(type(policy).__module__), "__file__", None)
    at = ([frame for frame in frames if frame.filename == own] or frames)[-1]
    return f" ({Path(at.filename).name}, line {at.lineno})"
