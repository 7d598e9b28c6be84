"""One line for a person out of a pydantic error: file, field, value, what is allowed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from simstrag.names import nearest

__all__ = ["explain"]


def explain(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """The first error of `error` in one line, and how many more there are."""
    details = error.errors(include_url=False)
    first = details[0]
    names = [str(part) for part in first["loc"] if not _is_tag(str(part))]
    place = ".".join(names) or "the file"
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, names[:-1])
        listed = f"; known: {', '.join(known)}" if known else ""
        return f"{source}: unknown key '{place}'{nearest(names[-1], known)}{listed}{more}"
    if first["type"] == "missing":
        return f"{source}: {place} is missing{more}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:]
    if first["type"] == "value_error":
        return f"{source}: {place}: {message}{more}" if names else f"{source}: {message}{more}"
    return f"{source}: {place} is {_short(first['input'])}: {message}{more}"


def _is_tag(part: str) -> bool:
    """Parts of a location that pydantic adds for members of a union."""
    return part in {"int", "float", "str", "list", "dict"} or "[" in part


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
