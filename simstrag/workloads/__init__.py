"""Training tasks for calibration, real training and the real learner, by name.

A workload is a model with random weights, its loss, its optimizer and its batches: built in, or a
user's function.  `clocks` times steps of them.  Nothing here loads torch before a workload is
built.  Start with `workload`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.workloads.large import LARGE
from simstrag.workloads.precision import PRECISIONS, available_precisions
from simstrag.workloads.small import SMALL
from simstrag.workloads.training_task import Precisions, TrainingTask, choose_precisions
from simstrag.workloads.workload import Batch, Parts, Workload, map_tensors, slice_batch

__all__ = [
    "PRECISIONS", "Batch", "Parts", "Precisions", "TrainingTask", "Workload",
    "available_precisions", "choose_precisions", "load", "map_tensors", "names", "slice_batch",
]  # fmt: skip

BUILT_IN = {workload.name: workload for workload in (*SMALL, *LARGE)}

USER_BATCHES = (4, 8, 16, 32, 64)
"""Default batch sizes of a user's workload; `Workload.fill` has those on a GPU."""


def names(device: str = "") -> tuple[str, ...]:
    """The built-in workloads, or those whose sizes suit "cpu" or "cuda".

    >>> names("cuda")
    ('resnet50', 'vit_b16', 'bert_base', 'gpt2')
    """
    return tuple(w.name for w in BUILT_IN.values() if device in ("", w.device))


def load(text: str) -> Workload:
    """A workload by its name, or a user's as `module:function`.

    The function returns (model, loss, optimizer, make_batch), as `Parts` explains;
    `Workload.build` calls it.  Raises `InputError` if there is no such workload or function.

    >>> load("mlp").nominal
    128
    >>> load("mpl")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no workload 'mpl'; known: ... Did you mean 'mlp'?
    """
    if isinstance(text, str) and ":" in text:
        return Workload(
            text, _import(text), USER_BATCHES, USER_BATCHES[2], "",
            real_data=True, user_defined=True,
        )  # fmt: skip
    if text not in tuple(BUILT_IN):
        raise InputError(
            f"there is no workload '{text}'; known: {', '.join(BUILT_IN)}, or your own as "
            f"module:function{nearest(text, tuple(BUILT_IN))}"
        )
    return BUILT_IN[text]


def _import(text: str) -> Callable[[], object]:
    module_name, _, name = text.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # any failure of a user's module is one line
        message = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"cannot import '{module_name}' for workload '{text}': {message}"
        ) from error
    function: object = getattr(module, name, None)
    if not callable(function):
        known = [member for member in vars(module) if callable(getattr(module, member))]
        raise InputError(
            f"{module_name} has no function '{name}' for workload '{text}'{nearest(name, known)}"
        )
    return function
