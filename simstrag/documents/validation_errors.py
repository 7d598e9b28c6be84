"""Pydantic errors as one line for a user: file, field, value, allowed values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


LIMITS = {
    "greater_than": ("more than {}", "gt"), "greater_than_equal": ("{} or more", "ge"),
    "less_than": ("less than {}", "lt"), "less_than_equal": ("{} or less", "le"),
    "too_short": ("a list of {} or more", "min_length"),
}  # fmt: skip
"""How a limit is said, and its name, by the type of pydantic's error."""
KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping of keys"),
    "string_type": "text",
}
"""What a value of the wrong kind must be, by the type of pydantic's error."""


class Checked(BaseModel):
    """The base of what a user may construct: unknown keys, NaN and infinities are refused.

    Raises `InputError` that names the key, its value and the way out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # a type checker derives the constructor from the fields

        def __init__(self, *values: Any, **data: Any) -> None:
            source = type(self).__name__.removesuffix("Section").lower()
            if values:
                first = next(iter(type(self).model_fields))
                raise InputError(
                    f"{source}: {_short(values[0])} has no key; give it one, such as {first}=..."
                )
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise InputError(explain(error, type(self), source)) from None

        __init__.__pydantic_base_init__ = True  # parts of others do not come through here


def require_distinct(**lists: Iterable[object]) -> None:
    """Raise `ValueError` where a list, by the name of its key, has an entry twice.

    >>> require_distinct(seeds=[1, 2, 1])
    Traceback (most recent call last):
    ValueError: seeds names 1 twice
    """
    for key, entries in lists.items():
        for entry, times in Counter(entries).most_common(1):
            if times > 1:
                raise ValueError(f"{key} names {entry} twice")


def explain(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """The first problem of `error` in one line, and the number of further ones.

    model: the model that was validated, for the known keys.
    source: the file, for the message.
    """
    # Missing keys come last: a misspelt key is both unknown and missing.
    problems = sorted(
        _without_echoes(_problems(error)), key=lambda details: details[0]["type"] == "missing"
    )
    first = problems[0][0]
    names = _names(first)
    place = ".".join(names) or "the file"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, names[:-1])
        listed = f"; known: {', '.join(known)}" if known else ""
        return f"{source}: unknown key '{place}'{nearest(names[-1], known)}{listed}{more}"
    if first["type"] == "json_invalid":
        reason = first["msg"].removeprefix("Invalid JSON: ")
        return f"{source}: not a {model.__name__.lower()} (JSON): {reason}"
    if first["type"] == "missing":
        return f"{source}: {place} is missing{more}"
    message = _join(dict.fromkeys(_message(detail) for detail in problems[0]))
    if first["type"] == "value_error":
        if message.startswith(f"{source}: "):  # of a part that names its place itself
            return f"{message}{more}"
        return f"{source}: {place}: {message}{more}" if names else f"{source}: {message}{more}"
    return f"{source}: {place} is {_short(first['input'])}: {message}{more}"


def _problems(error: ValidationError) -> list[list[ErrorDetails]]:
    """The errors, grouped by union; of each group only those at the deepest location."""
    groups: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        parts = [str(part) for part in detail["loc"]]
        tags = [k for k, part in enumerate(parts) if _is_tag(detail, k)]
        place = tuple(parts[: tags[0]]) if tags else (*parts, detail["type"])
        groups.setdefault(place, []).append(detail)
    deepest = [max(len(detail["loc"]) for detail in group) for group in groups.values()]
    return [
        [detail for detail in group if len(detail["loc"]) == depth]
        for group, depth in zip(groups.values(), deepest, strict=True)
    ]


def _without_echoes(problems: list[list[ErrorDetails]]) -> list[list[ErrorDetails]]:
    """Without lists that are too short because an entry of theirs is wrong."""
    places = [problem[0]["loc"] for problem in problems]

    def echoes(problem: ErrorDetails) -> bool:
        place = problem["loc"]
        return problem["type"] == "too_short" and any(
            other[: len(place)] == place for other in places if len(other) > len(place)
        )

    return [problem for problem in problems if not echoes(problem[0])]


def _names(detail: ErrorDetails) -> list[str]:
    return [str(part) for k, part in enumerate(detail["loc"]) if not _is_tag(detail, k)]


def _message(detail: ErrorDetails) -> str:
    kind, limits = detail["type"], detail.get("ctx", {})
    if kind in LIMITS:
        word, key = LIMITS[kind]
        limit = limits[key]
        return f"must be {word.format(int(limit) if limit == int(limit) else limit)}"
    if kind in KINDS:
        return f"must be {KINDS[kind]}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:]
    return message.replace("input should", "must").replace("tuple", "list")


def _join(messages: Iterable[str]) -> str:
    """What members of a union ask for, in one sentence.

    >>> _join(["must be a whole number", "must be a list"])
    'must be a whole number, or a list'
    """
    first, *others = messages
    return ", or ".join([first, *(message.removeprefix("must be ") for message in others)])


def _is_tag(detail: ErrorDetails, k: int) -> bool:
    """Whether pydantic added part k of the location for a member of a union.

    The last part of an unknown key's location is the key itself, however it is spelt.
    """
    if detail["type"] == "extra_forbidden" and k == len(detail["loc"]) - 1:
        return False
    part = str(detail["loc"][k])
    plain = {"int", "float", "str", "list", "dict"}
    return part in plain or part.startswith("constrained-") or "[" in part


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The known keys of the part of a model to which a path of keys and places leads."""
    names = iter(path)
    for name in names:
        field = model.model_fields.get(name)
        inner = None if field is None else field.annotation
        models = list(_models_in(inner))
        if not models:
            return []
        model = models[0]
        if any(get_origin(part) in (tuple, dict) for part in (inner, *get_args(inner))):
            next(names, None)  # its place in a list, or its name
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
