"""Pydantic errors as one line for a user: file, field, value, allowed values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from simstrag.documents.suggestions import nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def explain(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """The first problem of `error` in one line, and the number of further ones.

    model: the model that was validated, for the known keys.
    source: the file, for the message.
    """
    # Missing keys come last: a misspelt key is both unknown and missing.
    problems = sorted(_problems(error), key=lambda details: details[0]["type"] == "missing")
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
    message = " or ".join(dict.fromkeys(_message(detail) for detail in problems[0]))
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


def _names(detail: ErrorDetails) -> list[str]:
    return [str(part) for k, part in enumerate(detail["loc"]) if not _is_tag(detail, k)]


def _message(detail: ErrorDetails) -> str:
    if detail["type"] in {"model_type", "model_attributes_type", "dict_type"}:
        return "input should be a mapping of keys"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return (message[:1].lower() + message[1:]).replace("tuple", "list")


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
    for name in path:
        field = model.model_fields.get(name)
        inner = None if field is None else field.annotation
        candidates = [inner, *getattr(inner, "__args__", ())]
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
