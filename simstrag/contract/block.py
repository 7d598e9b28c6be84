"""What reviews show that passed one after another under one plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simstrag.arrays import Array, Floats, Ints
from simstrag.contract.view import Hints, check_columns, too_late

UNLIMITED = 1 << 60
"""More reviews, and more updates, than any run has."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The facts at R reviews that followed each other under one plan, at N ranks; read-only.

    `newest` and `medians` work while `first_change` runs.

    hints: as in a `View`.
    versions: shape (R,), updates so far.
    samples: shape (R,), samples applied so far.
    times: shape (R,), seconds on the driver's clock.
    steps: shape (R, N), `steps` of each.
    new: shape (R, N), the steps that became known since the review before.
    """

    hints: Hints
    versions: Ints
    samples: Ints
    times: Floats
    steps: Ints
    new: Ints
    _tell: Callable[[str], Array]
    _tell_medians: Callable[[str, int, bool], Floats]

    def __post_init__(self) -> None:
        for array in (self.versions, self.samples, self.times, self.steps, self.new):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.versions)

    def close(self) -> None:
        """Refuse further arrays: the engine has moved on, and only those read so far remain."""
        object.__setattr__(self, "_tell", too_late)
        object.__setattr__(self, "_tell_medians", too_late)

    def newest(self, name: str) -> Array:
        """The value of each rank's newest step, as of `View.newest`, at each review; shape (R, N).

        Where `new` is 0 it is the same as at the review before.

        name: of an array of a view, such as `local_times`.
        """
        return self._tell(name)

    def medians(self, name: str, columns: int, skip: bool = False) -> Floats:
        """`View.medians` at each review; shape (R, N)."""
        check_columns(columns)
        return self._tell_medians(name, columns, skip)
