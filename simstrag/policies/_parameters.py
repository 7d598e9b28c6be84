"""The parameters of a policy as text: its dataclass fields, parsed and formatted by type."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
MEANING = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n[ ]+\S.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy.

    name: the dataclass field.
    default: the default as a spec writes it.
    allowed: the allowed values, in words.
    meaning: the explanation in the class's docstring; parameters explained together share one.
    """

    name: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """The conversion of text to a value of one type.

    read: the conversion; raises ValueError.
    allowed: the allowed values, in words.
    none: the word for None; None where the parameter may not be None.
    """

    read: Callable[[str], Any]
    allowed: str
    none: str | None = None

    def value(self, text: str) -> Any:
        return None if self.none and text.lower() in (self.none, "none") else self.read(text)

    def text(self, value: Any) -> str:
        if value is dataclasses.MISSING:
            return "required"
        if value is None:
            return self.none or "none"
        if isinstance(value, enum.Enum):
            return str(value.value)
        return str(value).lower() if isinstance(value, bool) else str(value)


def parameters(cls: type) -> tuple[Parameter, ...]:
    """The parameters of a policy class, in the order of its fields.

    Lines `name: meaning` or `name, name: meaning` of the class's docstring explain them;
    continuation lines are indented.
    """
    fields = _fields(cls)
    meanings = {
        name: " ".join(text.split())
        for group, text in MEANING.findall(inspect.getdoc(cls) or "")
        for name in group.split(", ")
    }
    return tuple(
        Parameter(name, kind.text(_default(field)), kind.allowed, meanings.get(name, ""))
        for name, (field, kind) in fields.items()
    )


def parse(policy: str, text: str | None) -> dict[str, str]:
    """``"b=1, late=drop"`` as a dict of text; empty for None."""
    if text is None:
        return {}
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise InputError(
                f"policy '{policy}': cannot read '{part.strip()}'; "
                f"write {policy}:parameter=value,parameter=value"
            )
        if name in pairs:
            raise InputError(f"policy '{policy}': parameter '{name}' is given twice")
        pairs[name] = value
    return pairs


def values(cls: type, policy: str, texts: dict[str, str]) -> dict[str, Any]:
    """Parameter values, converted from text to the types of the fields of `cls`."""
    fields = _fields(cls)
    result = {}
    for name, text in texts.items():
        if name not in fields:
            known = ", ".join(fields) or "none"
            longer = [f"'{field}'" for field in fields if field.startswith(f"{name}_")]
            hint = f". Did you mean {' or '.join(longer)}?" if longer else nearest(name, fields)
            raise InputError(f"policy '{policy}' has no parameter '{name}'; known: {known}{hint}")
        kind = fields[name][1]
        try:
            result[name] = kind.value(text)
        except ValueError:
            raise InputError(
                f"policy '{policy}': {name} must be {kind.allowed}, not '{text}'"
            ) from None
    return result


def format_changed(policy: object) -> str:
    """The parameters that differ from their defaults, in the form that `parse` reads."""
    cls: type = type(policy)
    changed = (
        (field.name, getattr(policy, field.name), kind)
        for field, kind in _fields(cls).values()
        if getattr(policy, field.name) != _default(field)
    )
    return ",".join(f"{name}={kind.text(value)}" for name, value, kind in changed)


@functools.cache
def _fields(cls: type) -> dict[str, tuple[dataclasses.Field[Any], _Kind]]:
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = typing.get_type_hints(cls)
    settable = (field for field in dataclasses.fields(cls) if field.init)
    return {field.name: (field, _kind(cls, field, hints[field.name])) for field in settable}


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _kind(cls: type, field: dataclasses.Field[Any], annotation: Any) -> _Kind:
    """The kind of one field: a plain type, or a plain type or None.

    The metadata of a field may name its None: `field(default=None, metadata={"none": "auto"})`, and
    the words that it allows: `field(default="median", metadata={"allowed": "last or median"})`.
    """
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = typing.get_args(annotation) if union else (annotation,)
    plain, *others = [option for option in options if option is not types.NoneType] or [None]
    kind = KINDS.get(plain)
    if isinstance(plain, enum.EnumMeta):
        members: list[enum.Enum] = list(plain)
        choices = [str(m.value) for m in members if _accepts(cls, {field.name: m})]
        kind = _Kind(plain, " or ".join(choices))
    if kind is None or others:
        raise InputError(
            f"{cls.__name__}.{field.name}: a spec cannot write values of {annotation}; if it is "
            f"state, name it {field.name.rstrip('_')}_, with init=False"
        )
    if len(options) == 1:
        return replace(kind, allowed=field.metadata.get("allowed", kind.allowed))
    unlimited = "inf" if plain is int else "none"  # an unlimited count reads better as inf
    none = field.metadata.get("none", unlimited)
    return _Kind(kind.read, f"{kind.allowed} or {none}", none)


def _accepts(cls: type, parameters: dict[str, Any]) -> bool:
    """Whether a policy allows this member of an enumeration; some allow only a part of it."""
    try:
        cls(**parameters)
    except ValueError:
        return False
    except TypeError:  # another parameter is required
        return True
    return True


def _truth(text: str) -> bool:
    if text.lower() not in TRUTH:
        raise ValueError(text)
    return TRUTH[text.lower()]


def _number(text: str) -> float:
    number = float(text)
    if math.isnan(number):
        raise ValueError(text)
    return number


KINDS: dict[Any, _Kind] = {
    bool: _Kind(_truth, "true or false"),
    int: _Kind(int, "a whole number"),
    float: _Kind(_number, "a number"),
    str: _Kind(str, "a word"),
}
