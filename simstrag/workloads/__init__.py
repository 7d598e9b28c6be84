"""Training tasks that calibration, real training and the real learner share, found by their name.

A workload is a model with random weights, its loss, its optimizer and its batches: a library's
configuration or the user's own function.  Nothing here loads torch before it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.workloads.encoder import Shape, Task, choose_precisions
from simstrag.workloads.job import Job
from simstrag.workloads.large import LARGE
from simstrag.workloads.precision import PRECISIONS, precisions
from simstrag.workloads.probe import BF16, MIN_GAIN, STAND_IN, Precisions, choose
from simstrag.workloads.small import SMALL
from simstrag.workloads.workload import Batch, Parts, Workload, mapped, part

__all__ = [
    "BF16", "MIN_GAIN", "PRECISIONS", "STAND_IN", "Batch", "Job", "Parts", "Precisions", "Shape",
    "Task", "Workload", "choose", "choose_precisions", "load", "mapped", "names", "part",
    "precisions",
]  # fmt: skip

BUILT_IN = {workload.name: workload for workload in (*SMALL, *LARGE)}

OWN_BATCHES = (4, 8, 16, 32, 64)
"""Batch sizes of a user's own workload, unless others are asked for."""


def names(device: str = "") -> tuple[str, ...]:
    """The built-in workloads, or those whose sizes suit "cpu" or "cuda".

    >>> names("cuda")
    ('resnet50', 'vit_b16', 'bert_base', 'gpt2')
    """
    return tuple(name for name, each in BUILT_IN.items() if device in ("", each.device))


def load(text: str) -> Workload:
    """A workload by its name, or a user's own as `module:function`.

    The function returns (model, loss, optimizer, make_batch), as `Parts` explains.  It is looked
    up here and called by `Workload.build`.  Raises `InputError` for what is not there.

    >>> load("mlp").nominal
    128
    >>> load("mpl")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no workload 'mpl'; known: ... Did you mean 'mlp'?
    """
    if ":" in text:
        return Workload(
            text, _own(text), OWN_BATCHES, OWN_BATCHES[2], "", real_data=True, own=True
        )  # fmt: skip
    if text not in BUILT_IN:
        raise InputError(
            f"there is no workload '{text}'; known: {', '.join(BUILT_IN)}, or your own as "
            f"module:function{nearest(text, tuple(BUILT_IN))}"
        )
    return BUILT_IN[text]


def _own(text: str) -> Callable[[], object]:
    module_name, _, name = text.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a stranger's module does wrong is one line
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot import '{module_name}' for workload '{text}': {said}") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [each for each in vars(module) if callable(getattr(module, each))]
        raise InputError(
            f"{module_name} has no function '{name}' for workload '{text}'{nearest(name, known)}"
        )
    made: Callable[[], object] = found
    return made
