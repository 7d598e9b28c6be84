"""The built-in policies, one file each, and their specs, such as ``ssp:bound=5``.

A policy file defines one class with a `plan` method and is found by its file name; there is no
registry.  A policy outside the package is named `package.module:Class` or `FILE.py:Class`.
They know neither clock nor engine: `simstrag.contract` is what they see and answer.  Start with
`bsp`.

Papers' names: `bsp` bulk synchronous parallel, `asgd` asynchronous SGD, `ssp` and `dssp` (dynamic)
stale synchronous parallel, `cgp` Cooperate Grouping Parallel, `lb_bsp` load-balanced BSP, `lgc`
Live Gradient Compensation, `p_reduce` partial reduce. `star_*` and `k_async` are STAR's modes;
`korel` switches stragglers to reduced precision.  `drain`, `fewer` and `hot_spare` are what
operators do about slow workers.  `diloco` and its kin, `dc_asgd` and `zeno` change what an update
makes of models and gradients; `eager_sgd` has partial collectives.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, overload

from simstrag.contract import Hints, Policy, View
from simstrag.documents.suggestions import choices, nearest
from simstrag.documents.user_module import import_as_it_is
from simstrag.errors import InputError
from simstrag.policies._description import PolicyDescription, architecture, describe_policy
from simstrag.policies._parameters import Parameter, format_changed, parse, values
from simstrag.policies._policy_errors import (
    ask,
    ask_about,
    collect_warnings,
    counts,
    declared_lane,
    reviews_ahead,
)

__all__ = [
    "Parameter", "PolicyDescription", "architecture", "ask", "ask_about", "collect_warnings",
    "counts", "declared_lane", "describe", "load", "name_of", "names", "new", "reviews_ahead",
    "spec", "specs",
]  # fmt: skip


HINTS = Hints(
    amp_ratio=1.6, amp_switch=0.0, batch=128, microbatches=8, samples=1_024_000, noise_scale=500.0
)  # fmt: skip
WORLD = View(8, hints=HINTS)
"""The view for which a description shows the first plan."""


@functools.cache
def names() -> tuple[str, ...]:
    """The built-in policies: the files of this package, sorted.

    >>> "korel" in names()
    True
    """
    modules = (module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return tuple(sorted(name for name in modules if not name.startswith("_")))


def load(text: str) -> Policy:
    """A new policy from its spec: a name and the parameters that differ from their defaults.

    Raises `InputError` for an unknown policy or parameter and for a value that is not allowed.

    >>> load("backup:b=2,late=drop")
    Backup(b=2, late=<Late.DROP: 'drop'>, via=<Via.SERVER: 'server'>, weigh=<Weigh.WORLD: 'world'>)
    >>> load("asg")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no policy 'asg'; known: ... Did you mean 'asgd'?
    """
    if not isinstance(text, str):
        raise _no_spec(text)
    name, arguments = _split(text)
    cls = _class(name)
    parameters = values(cls, name, parse(name, arguments))
    try:
        policy: Policy = cls(**parameters)
    except (TypeError, ValueError) as error:
        raise InputError(f"policy '{text}': {error}") from error
    return policy


def spec(policy: Policy) -> str:
    """The shortest spec of a policy, which names it in tables and files.

    >>> spec(load("backup: late=abort, b=2")), spec(load("ssp:bound=inf"))
    ('backup:b=2', 'ssp:bound=inf')
    """
    name, changed = _name(type(policy)), format_changed(policy)
    return f"{name}:{changed}" if changed else name


def specs(given: str | Iterable[str]) -> tuple[str, ...]:
    """The specs of some policies; a string is that of one.

    Raises `InputError` for what is no string, with the spec of an object or a class.

    >>> specs("korel"), specs(["bsp", "ssp:bound=5"])
    (('korel',), ('bsp', 'ssp:bound=5'))
    >>> specs([load("ssp:bound=5")])
    Traceback (most recent call last):
    simstrag.errors.InputError: Ssp(bound=5) is no spec of a policy; give 'ssp:bound=5'
    """
    if isinstance(given, str):
        return (given,)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    for each in found:
        if not isinstance(each, str):
            raise _no_spec(each)
    return found


def _no_spec(given: Any) -> InputError:
    """The error of what is no spec, with that of a class, an object or a file."""
    cls = given if isinstance(given, type) else type(given)
    way_out = "give one, such as 'korel' or 'mine.py:AllBut:few=2'"
    if callable(getattr(given, "plan", None)):
        way_out = f"give '{_name(cls) if cls is given else name_of(given)}'"
        if cls.__module__ == "__main__":  # which processes cannot import
            way_out = f"give that of its file, such as 'mine.py:{cls.__qualname__}'"
    elif isinstance(given, Path) and given.suffix == ".py":
        way_out = f"give '{given}'"
    return InputError(f"{given!r} is no spec of a policy; {way_out}")


def new(policy: str | Policy) -> tuple[str, Policy]:
    """The name of a policy and a new one: that of a spec, or a copy of an object.

    Raises `InputError` as `load` does, and for what is neither.

    >>> new(load("ssp:bound=5"))
    ('ssp:bound=5', Ssp(bound=5))
    """
    if isinstance(policy, str):
        return policy, load(policy)
    if isinstance(policy, Path):
        raise _no_spec(policy)
    plans = callable(getattr(policy, "plan", None))
    if isinstance(policy, type) or not plans:
        made = f"{policy.__name__}(), " if isinstance(policy, type) and plans else ""
        raise InputError(
            f"{policy!r} is no policy; give {made}a spec, such as 'korel' or 'FILE.py:Class', or "
            "an object with the method `plan`"
        )
    return name_of(policy), copy.deepcopy(policy)


def name_of(policy: Policy) -> str:
    """The spec of a policy, or its class where a spec cannot write its parameters."""
    try:
        return spec(policy)
    except InputError:
        return _name(type(policy))


def _name(cls: type) -> str:
    """The spec of a policy's class, without parameters."""
    package, _, module = cls.__module__.rpartition(".")
    return module if package == __name__ else f"{cls.__module__}:{cls.__qualname__}"


@overload
def describe(text: str) -> PolicyDescription: ...
@overload
def describe(text: None = None) -> tuple[PolicyDescription, ...]: ...
def describe(text: str | None = None) -> PolicyDescription | tuple[PolicyDescription, ...]:
    """The description of the policy of a spec, or of all built-in policies in order of name.

    Raises `InputError` as `load` does, and where the policy's plan does not fit `WORLD`.

    >>> describe("ssp:bound=5").plan[1]
    ('bound', '5 steps ahead of the slowest rank at most')
    """
    if text is None:
        return tuple(map(describe, names()))
    policy = load(text)
    module = importlib.import_module(type(policy).__module__)
    alone = _policies_of(module) == [type(policy)]
    return describe_policy(policy, spec(policy), ask(policy, WORLD, text), WORLD.world_size, alone)


def _split(text: str) -> tuple[str, str | None]:
    """The name and the text of the parameters; None without a colon behind the name."""
    head, *rest = (part.strip() for part in text.split(":"))
    if rest and "=" not in rest[0] and head not in names():
        head = f"{head}:{rest.pop(0)}"
    if rest and "=" in rest[0]:  # a value may have a colon
        rest = [":".join(rest)]
    if not head or len(rest) > 1:
        raise InputError(
            f"cannot read the policy '{text}'; write name, name:parameter=value,... "
            "or package.module:Class:parameter=value,..."
        )
    return head, rest[0] if rest else None


def _class(name: str) -> type:
    if ":" in name:
        return _user_class(name)
    if name.endswith(".py"):
        return _only_class(name)
    if name not in names():
        raise InputError(f"there is no policy '{name}'; {choices(name, names())}")
    classes = _policies_of(importlib.import_module(f"{__name__}.{name}"))
    assert len(classes) == 1, f"{name}.py must define one class with a plan method, not {classes}"
    return classes[0]


def _only_class(name: str) -> type:
    """The class of a file that has one policy. Raises `InputError` that lists several."""
    classes = _policies_of(_user_module(name, name))
    if len(classes) != 1:
        listed = ", ".join(f"{name}:{cls.__name__}" for cls in classes)
        raise InputError(
            f"{name}: has {len(classes)} policies; choose one: {listed}"
            if classes
            else f"{name}: has no policy, which is a class with a plan method"
        )
    return classes[0]


def _user_class(name: str) -> type:
    module_name, _, class_name = name.partition(":")
    module = _user_module(module_name, name)
    cls = getattr(module, class_name, None)
    if not (inspect.isclass(cls) and callable(getattr(cls, "plan", None))):
        known = [policy.__name__ for policy in _policies_of(module)]
        listed = ", ".join(known) or "none"
        raise InputError(
            f"{module.__name__} has no policy class '{class_name}'; "
            f"classes with a plan method: {listed}{nearest(class_name, known)}"
        )
    return cls


def _user_module(module_name: str, name: str) -> ModuleType:
    """The module, or that of a file, of the policy of this name."""
    path = Path(module_name) if module_name.endswith(".py") else None
    if path is not None:
        module_name = _importable(path)
    try:
        module = import_as_it_is(module_name)
    except (Exception, SystemExit) as error:  # any failure of a user's module is one line
        message = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot import '{module_name}' for policy '{name}': {message}") from error
    if path is not None and not path.samefile(module.__file__ or ""):
        raise InputError(f"{path}: Python has another module '{module_name}'; rename the file")
    return module


def _importable(path: Path) -> str:
    """The module of a file, whose folder Python searches from then on."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return path.stem


def _policies_of(module: ModuleType) -> list[type]:
    """The classes with a `plan` method that a module defines."""
    classes = [cls for _, cls in inspect.getmembers(module, inspect.isclass)]
    defined = [cls for cls in classes if cls.__module__ == module.__name__]
    return [cls for cls in defined if callable(getattr(cls, "plan", None))]
