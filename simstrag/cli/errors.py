"""Early ends of a command (a mistake, a missing package, Ctrl-C), and their messages."""

from __future__ import annotations

from typing import Any

import typer

UsageError: Any = typer.BadParameter.__base__
"""Click's own; Typer raises it and exports only this subclass."""

EXTRAS = {
    "torch": "torch", "transformers": "models", "sklearn": "models", "accelerate": "accelerate",
    "distributed": "dask", "ray": "ray", "prometheus_client": "watch",
}  # fmt: skip
"""The extra that installs each optional package, by the package's import name."""

STUDIES = ("sweep", "cluster")
KEYS = {"--policy": "policies", "-p": "policies"}
"""Keys of the file of a study, by the options of other commands that say the same."""


class Interrupted(Exception):
    """Ctrl-C ended a command; the message names the files kept."""


def describe_error(error: Exception) -> str:
    """A mistake in one line; empty if Typer has shown the help instead.

    >>> from simstrag import InputError
    >>> describe_error(InputError("workers is 0"))
    'workers is 0'
    """
    if not isinstance(error, UsageError):
        return str(error)
    key = KEYS.get(getattr(error, "option_name", ""))
    if key and error.ctx is not None and error.ctx.info_name in STUDIES:
        return f"{error.message.rstrip('.')}; set the key {key}: of the file instead"
    near = getattr(error, "possibilities", None)
    if near:
        names = " or ".join(f"'{name}'" for name in near)
        return f"{error.message.rstrip('.')}. Did you mean {names}?"
    return str(error.format_message())


def describe_missing(error: ModuleNotFoundError) -> str | None:
    """The command that installs an optional package; None if simstrag has no extra for it.

    >>> describe_missing(ModuleNotFoundError("No module named 'ray'", name="ray.util"))
    'this command needs the package ray; pip install "simstrag[ray]"'
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f'this command needs the package {package}; pip install "simstrag[{EXTRAS[package]}]"'
