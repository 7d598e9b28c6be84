"""The formats that can be imported, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.traces.import_bytedance import bytedance_straggler
from simstrag.traces.import_kineto import kineto
from simstrag.traces.import_pai import alibaba_pai_minibatch
from simstrag.traces.import_utilisation import utilisation
from simstrag.traces.provenance import Labelled


class Format(NamedTuple):
    """An importer.

    what: a few words on the files that it reads.
    options: names of its options.
    many: whether it takes several files.
    """

    read: Callable[..., Labelled]
    what: str
    options: tuple[str, ...] = ()
    many: bool = False


FORMATS = {
    "alibaba-pai-minibatch": Format(
        alibaba_pai_minibatch, "job_k_norm.csv of Alibaba PAI", ("clean",)
    ),
    "bytedance-straggler": Format(bytedance_straggler, "trace-*.parquet of ByteDance"),
    "kineto": Format(kineto, "Chrome traces of torch.profiler, a file per rank", many=True),
    "utilisation": Format(
        utilisation, "CSV of node, time and load", ("columns", "fraction", "own")
    ),
}


def import_trace(name: str, paths: Sequence[str | Path], **options: Any) -> Labelled:
    """Import files of a format.

    options: options of the importer; None stands for its default.
    Raises `InputError` for an unknown format or option, and the importer's errors.

    >>> import_trace("kinto", ["rank0.json"])
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no format 'kinto'. Did you mean 'kineto'?; known:
    alibaba-pai-minibatch, bytedance-straggler, kineto, utilisation
    """
    if name not in FORMATS:
        raise InputError(
            f"there is no format '{name}'{nearest(name, FORMATS)}; known: {', '.join(FORMATS)}"
        )
    importer = FORMATS[name]
    stated = {option: value for option, value in options.items() if value is not None}
    for option in stated.keys() - set(importer.options):
        having = [other for other, f in FORMATS.items() if option in f.options]
        raise InputError(f"{option} is no option of {name}, but of {' and '.join(having)}")
    if len(paths) > 1 and not importer.many:
        raise InputError(f"{paths[1]}: {name} takes one file; import them one by one")
    return importer.read(*paths, **stated)
