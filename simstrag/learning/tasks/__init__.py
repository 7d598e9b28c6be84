"""Learning tasks: a model, its data and its score, none of which is downloaded. Start with `task`.

A workload (`simstrag.workloads`) is timed, and draws its batches one after another; a learning task
is learned, and any of its samples is reached by number.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.learning.tasks.images import IMAGES
from simstrag.learning.tasks.synthetic import SYNTHETIC
from simstrag.learning.tasks.task import LearningTask, TaskMaker, seeded
from simstrag.learning.tasks.text import TEXT

__all__ = ["LearningTask", "load", "names", "source"]

BUILT_IN: dict[str, TaskMaker] = {**IMAGES, **SYNTHETIC, **TEXT}


def names() -> tuple[str, ...]:
    """The built-in tasks.

    >>> "digits" in names()
    True
    """
    return tuple(BUILT_IN)


def load(text: str, seed: int = 0, folder: Path | None = None) -> LearningTask:
    """A task by its name, or a user's as `module:function`; the function takes the seed.

    seed: of the initial parameters, and of data that are drawn; torch's generator has it when the
        function is called.
    folder: where Python searches for the module, too, from then on.

    Raises `InputError` if there is no such task, or if it cannot be trained.

    >>> load("digits").parameters
    9610
    """
    make = _import(text, folder) if ":" in text else BUILT_IN.get(text)
    if make is None:
        raise InputError(
            f"there is no task '{text}'; known: {', '.join(BUILT_IN)}, or your own as "
            f"module:function{nearest(text, names())}"
        )
    with one_line_errors(text):
        task = seeded(lambda: make(seed), seed)
        if not isinstance(task, LearningTask):
            raise InputError(f"returned {type(task).__name__}; want a LearningTask")
        task.check()
    return task


@contextlib.contextmanager
def one_line_errors(text: str) -> Iterator[None]:
    """Whatever a task's own code raises in this context is an `InputError` that names the task."""
    try:
        yield
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        message = " ".join(str(error).split())
        raise InputError(f"task '{text}': {kind}{message}") from error


def source(text: str, folder: Path) -> Path | None:
    """The file of a user's task; None for a built-in one."""
    found = inspect.getsourcefile(_import(text, folder)) if ":" in text else None
    return None if found is None else Path(found)


def _import(text: str, folder: Path | None) -> TaskMaker:
    module, _, name = text.partition(":")
    if folder is not None and (place := str(folder.absolute())) not in sys.path:
        sys.path.append(place)
    try:
        found: TaskMaker = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"task '{text}': {message}; want module:function") from error
    return found
