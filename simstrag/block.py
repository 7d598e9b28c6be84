"""What reviews show that passed one after another under one plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.view import Hints

UNLIMITED = 1 << 60
"""More reviews, and more updates, than any run has."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The facts at reviews that followed each other under one plan; rows are reviews.

    hints: as in a `View`.
    versions, samples, times: shape (R,), `version`, `samples` and `time` of the view at each.
    steps: shape (R, N), `steps` of each.
    new: shape (R, N), the steps that became known since the review before.
    """

    hints: Hints
    versions: Ints
    samples: Ints
    times: Floats
    steps: Ints
    new: Ints
    _tell: Callable[[str], npt.NDArray[Any]]
    _tell_medians: Callable[[str, int, bool], Floats]

    def __len__(self) -> int:
        return len(self.versions)

    def newest(self, name: str) -> npt.NDArray[Any]:
        """The value of each rank's newest step, as of `View.newest`, at each review; shape (R, N).

        Where `new` is 0 it is the same as at the review before.

        name: of an array of a view, such as `local_times`.
        """
        return self._tell(name)

    def medians(self, name: str, columns: int, skip: bool = False) -> Floats:
        """`View.medians` at each review; shape (R, N)."""
        return self._tell_medians(name, columns, skip)
