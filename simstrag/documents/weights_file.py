"""Files of trained weights: arrays, and a JSON text that says how they were made; no pickle."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.arrays import Array
from simstrag.documents.file_io import require_path, write_atomically
from simstrag.errors import InputError

ABOUT = "about"
"""The array that holds the JSON text."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Trained weights.

    kind: the model that they are of.
    arrays: by name.
    about: the command, the data's hash, the seed, scores and others.
    sha256: of the file; empty before it is written.
    """

    kind: str
    arrays: Mapping[str, Array]
    about: Mapping[str, Any]
    sha256: str = ""

    def write(self, path: str | Path) -> None:
        """Write them to a file, completely or not at all."""
        text = np.array(json.dumps({"kind": self.kind, **self.about}))
        write_atomically(path, partial(_write, {**self.arrays, ABOUT: text}))


def read_weights(path: str | Path, kind: str) -> Weights:
    """The weights in a file.  Raises `InputError` where it holds none, or those of another model.

    >>> read_weights("pyproject.toml", "lstm")
    Traceback (most recent call last):
    simstrag.errors.InputError: pyproject.toml: holds no weights of lstm: it is no .npz file
    """
    path = require_path(path)
    try:
        data = path.read_bytes()
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is no .npz file")
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop(ABOUT)))
        if about.pop("kind") != kind:
            raise ValueError("it is of another model")
    except (OSError, KeyError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        reason = "it is no .npz file" if "pickle" in str(error) else error
        raise InputError(f"{path}: holds no weights of {kind}: {reason}") from None
    return Weights(kind, arrays, about, hashlib.sha256(data).hexdigest())


def _write(arrays: Mapping[str, Array], path: Path) -> None:
    named: dict[str, Any] = dict(arrays)
    with path.open("wb") as file:
        np.savez_compressed(file, **named)
