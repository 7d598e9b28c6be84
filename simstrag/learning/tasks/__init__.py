"""Learning tasks: a model, its data and its score, none of which is downloaded. Start with `task`.

A workload (`simstrag.workloads`) is timed, and draws its batches one after another; a learning task
is learned, and any of its samples is reached by number.
"""

from __future__ import annotations

import importlib

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.learning.tasks.images import IMAGES
from simstrag.learning.tasks.synthetic import SYNTHETIC
from simstrag.learning.tasks.task import LearningTask, TaskMaker
from simstrag.learning.tasks.text import TEXT

__all__ = ["LearningTask", "load", "names"]

BUILT_IN: dict[str, TaskMaker] = {**IMAGES, **SYNTHETIC, **TEXT}


def names() -> tuple[str, ...]:
    """The built-in tasks.

    >>> "digits" in names()
    True
    """
    return tuple(BUILT_IN)


def load(text: str, seed: int = 0) -> LearningTask:
    """A task by its name, or a user's as `module:function`; the function takes the seed.

    seed: of the initial parameters, and of data that are drawn.

    Raises `InputError` if there is no such task, or if its loss is not finite at once.

    >>> load("digits").parameters
    9610
    """
    make = _import(text) if ":" in text else BUILT_IN.get(text)
    if make is None:
        raise InputError(
            f"there is no task '{text}'; known: {', '.join(BUILT_IN)}, or your own as "
            f"module:function{nearest(text, names())}"
        )
    try:
        task = make(seed)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"task '{text}': {type(error).__name__}: {error}") from error
    if not isinstance(task, LearningTask):
        raise InputError(f"task '{text}': returned {type(task).__name__}; want a LearningTask")
    task.check(text)
    return task


def _import(text: str) -> TaskMaker:
    module, _, name = text.partition(":")
    try:
        found: TaskMaker = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"task '{text}': {error}; want module:function") from None
    return found
