"""Every update waits for all ranks, but a rank that has computed for theta seconds stops there.

It gives what its finished micro-batches make, at least one; theta is chosen once, from steps
measured at the beginning, so that the most samples are applied per second.

Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
compute variance reduction", NeurIPS 2023, arXiv:2306.10598.

The paper's are the deadline, the loss that is still divided by all M micro-batches, and the goal
S_eff.  From its released code are the steps measured (6 to 50), the 200 candidates, where they
begin, and the communication: what the time per step leaves beyond the slowest rank's computing.
This project's are that the M micro-batches of a step take equal times, of which nobody measures
more than the sum, that a step which is cut counts until the end of its last micro-batch, and that
of equally good deadlines the latest is taken.  Where M is 1 or unknown, nothing can be cut.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simstrag.policy import Plan, Review, View

Floats = npt.NDArray[np.float64]
CANDIDATES = 200
FIRST = 6
"""The first candidate is where somebody's sixth micro-batch ends."""
SAME = 1e-9
"""Relative difference below which two deadlines are equally good."""


@dataclass(slots=True)
class State:
    """times: shape (N, measure), local times in seconds, NaN where not seen.  seen: steps of each
    rank so far.  began: steps of the slowest rank, and the time, when the warm-up was over.
    """

    times: Floats
    seen: npt.NDArray[np.int64]
    began: tuple[int, float] | None = None
    plan: Plan = Plan(review=Review(updates=1))  # noqa: RUF009 (frozen)


@dataclass(frozen=True)
class DropCompute:
    """Synchronous with a deadline.

    theta: seconds of computing after which a rank stops; `auto` is chosen from measured steps, and
        `inf` never stops.
    warmup: steps of each rank that are not measured.
    measure: steps of each rank that are.
    """

    theta: float | None = field(default=None, metadata={"none": "auto"})
    warmup: int = 5
    measure: int = 45
    state_: State | None = field(default=None, init=False, repr=False, compare=False)
