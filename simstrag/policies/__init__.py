"""The built-in policies, one file each, and how a spec such as ``ssp:bound=5`` becomes a policy.

A policy file holds one class with a `plan` method, and is found by its name: there is no registry.
One outside the package is named `package.module:Class`, and takes parameters in the same way.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import overload

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.policies._asking import ask, counts
from simstrag.policies._docstring import read
from simstrag.policies._parameters import Parameter, parameters, parse, values, write
from simstrag.policies._words import ways, words
from simstrag.policy import Hints, Policy, View

__all__ = [
    "Description", "Parameter", "ask", "called", "counts", "describe", "load", "names", "spec",
    "ways",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Description:
    """What there is to say of a policy, read from its file and its first plan.

    name: its spec.  sentence: what it decides; details: what more its file says of that.
    architecture: how its first plan makes updates of gradients: `all-reduce`, `server`, `leader`.
    plan: that plan in words, (field, what it says), for the world of `WORLD`.
    paper: its source in short.  source: in full.  remarks: what of it is whose.
    """

    name: str
    sentence: str
    details: tuple[str, ...]
    architecture: str
    parameters: tuple[Parameter, ...]
    plan: tuple[tuple[str, str], ...]
    paper: str
    source: str
    remarks: tuple[str, ...]


HINTS = Hints(amp_ratio=1.6, amp_switch=0.0, batch=128, microbatches=8, samples=1_024_000)
WORLD = View(8, hints=HINTS)
"""The world for which a description shows a plan, before its first step."""


def names() -> tuple[str, ...]:
    """The built-in policies: the files of this package, sorted.

    >>> "korel" in names()
    True
    """
    found = (module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(text: str) -> Policy:
    """A fresh policy from its spec: a name, then parameters that differ from their defaults.

    Raises `InputError` for an unknown policy or parameter and for a value that is not allowed.

    >>> load("backup:b=2,late=drop")
    Backup(b=2, late=<Late.DROP: 'drop'>, via=<Via.SERVER: 'server'>, weigh=<Weigh.WORLD: 'world'>)
    >>> load("asg")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no policy 'asg'; known: ... Did you mean 'asgd'?
    """
    name, arguments = _split(text)
    cls = _class(name)
    given = values(cls, name, parse(name, arguments))
    try:
        policy: Policy = cls(**given)
    except (TypeError, ValueError) as error:
        raise InputError(f"policy '{text}': {error}") from error
    return policy


def spec(policy: Policy) -> str:
    """The shortest spec that loads this policy anew: its name in tables and files.

    >>> spec(load("backup: late=abort, b=2")), spec(load("ssp:bound=inf"))
    ('backup:b=2', 'ssp:bound=inf')
    """
    cls = type(policy)
    package, _, module = cls.__module__.rpartition(".")
    name = module if package == __name__ else f"{cls.__module__}:{cls.__qualname__}"
    changed = write(policy)
    return f"{name}:{changed}" if changed else name


def called(policy: Policy) -> str:
    """The spec of a policy object, or its class where a spec cannot write its parameters."""
    try:
        return spec(policy)
    except InputError:
        cls = type(policy)
        return f"{cls.__module__}:{cls.__qualname__}"


@overload
def describe(text: str) -> Description: ...
@overload
def describe(text: None = None) -> tuple[Description, ...]: ...
def describe(text: str | None = None) -> Description | tuple[Description, ...]:
    """What there is to say of the policy of a spec, or of all built-in ones in order of name.

    Raises `InputError` as `load` does, and where its plan does not fit the world of `WORLD`.

    >>> describe("ssp:bound=5").plan[1]
    ('bound', '5 steps ahead of the slowest rank at most')
    """
    return tuple(map(_description, names())) if text is None else _description(text)


def _description(text: str) -> Description:
    policy = load(text)
    cls = type(policy)
    module = importlib.import_module(cls.__module__)
    said = read(cls, module, alone=_policies_of(module) == [cls])
    plan = ask(policy, WORLD, text)
    return Description(
        name=spec(policy),
        sentence=said.decides[0] if said.decides else "",
        details=said.decides[1:],
        architecture=" + ".join(ways(plan)),
        parameters=parameters(cls),
        plan=words(plan, WORLD.world_size),
        paper=said.paper,
        source=said.source,
        remarks=said.remarks,
    )


def _split(text: str) -> tuple[str, str | None]:
    """The name and, unless there is none, the text of the parameters."""
    head, *rest = (part.strip() for part in text.split(":"))
    if rest and "=" not in rest[0] and head not in names():
        head = f"{head}:{rest.pop(0)}"
    if not head or len(rest) > 1:
        raise InputError(
            f"cannot read the policy '{text}'; write name, name:parameter=value,... "
            "or package.module:Class:parameter=value,..."
        )
    return head, rest[0] if rest else None


def _class(name: str) -> type:
    if ":" in name:
        return _outside_class(name)
    if name not in names():
        known = ", ".join(names())
        raise InputError(f"there is no policy '{name}'; known: {known}{nearest(name, names())}")
    found = _policies_of(importlib.import_module(f"{__name__}.{name}"))
    assert len(found) == 1, f"{name}.py must define one class with a plan method, not {found}"
    return found[0]


def _outside_class(name: str) -> type:
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a stranger's module does wrong is one line
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot import '{module_name}' for policy '{name}': {said}") from error
    cls = getattr(module, class_name, None)
    if not (inspect.isclass(cls) and callable(getattr(cls, "plan", None))):
        known = [found.__name__ for found in _policies_of(module)]
        listed = ", ".join(known) or "none"
        raise InputError(
            f"{module_name} has no policy class '{class_name}'; "
            f"classes with a plan method: {listed}{nearest(class_name, known)}"
        )
    return cls


def _policies_of(module: ModuleType) -> list[type]:
    """The classes with a `plan` method that a module defines itself."""
    classes = [cls for _, cls in inspect.getmembers(module, inspect.isclass)]
    own = [cls for cls in classes if cls.__module__ == module.__name__]
    return [cls for cls in own if callable(getattr(cls, "plan", None))]
