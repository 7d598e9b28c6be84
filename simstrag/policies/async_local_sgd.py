"""Every rank takes h steps on a model of its own; what they changed is an outer step on arrival.

A rank goes on at once from the new parameters, or within a grace waits for others.  Those that
finish at most `grace` seconds after the first of them start together, from the same parameters.

Source: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024, arXiv:2401.09135;
the window and the weight are those of its code (google-deepmind/asyncdiloco).

The paper's: outer steps on arrival; delayed Nesterov momentum (`delay`), which changes the momentum
once in so many outer steps, against momentum of stale gradients; steps by speed (`dylu`).  The
code's: a rank waits only if another one will finish within the window, which its scheduler knows
beforehand; a weight of 1/sqrt(N); h=20, lr=0.07, momentum without Nesterov's.  Ours: the defaults,
which are DiLoCo's outer optimizer with a delay of N.  Times of other ranks are stated (`seconds`)
or predicted by the median of recent steps; a rank of unknown times is not waited for.  A prediction
is judged at updates alone: a rank that waits for a late one waits for the next update.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract import WINDOW, Learnt, Outer, Plan, PlanError, Quorum, Review, Via, View
from simstrag.contract.ties import TOLERANCE, is_at_most


@dataclass(slots=True)
class _State:
    """Who waits for the window to close; arrays have one entry per rank.

    version: of the last review.
    known: steps known then.
    started: seconds at which each rank's contribution began.
    steps: private steps of that contribution.
    waits: whether a rank is left out until the window closes.
    opened: time of the first outer step of the open window; NaN where none is open.
    """

    version: int
    known: Ints
    started: Floats
    steps: Ints
    waits: Bools
    plan: Plan
    opened: float = math.nan
    windows: int = 0


@dataclass(frozen=True)
class AsyncLocalSgd:
    """Asynchronous local SGD, or asynchronous DiLoCo.

    h: H, private steps of a contribution.
    lr: learning rate of the outer optimizer.
    momentum: of the outer optimizer.
    nesterov: whether that is Nesterov's.
    delay: outer steps from one change of the momentum to the next; above 1 it needs Nesterov's. By
        default as many as there are ranks, and 1 without Nesterov's.
    root_weight: whether each outer gradient weighs 1/sqrt(N).
    grace: seconds after a first contribution in which others may start together with its rank.
    dylu: whether slower ranks take fewer steps, in proportion to their speed.
    seconds: of a step of each rank, such as 0.5/0.75; empty to measure them.
    """

    title = "asynchronous local SGD"
    lane = "C"

    h: int = 8
    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    delay: int | None = None
    root_weight: bool = True
    grace: float = 0.0
    dylu: bool = False
    seconds: str = ""
    state_: Learnt[_State] = field(default_factory=Learnt, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.h < 1:
            raise ValueError(f"h must be 1 or more, not {self.h}")
        if not 0 <= self.grace < math.inf:
            raise ValueError(f"grace must be 0 or more seconds, not {self.grace:g}")
        try:
            known = [float(text) for text in self.seconds.split("/") if self.seconds]
        except ValueError:
            reason = f"seconds must be numbers with / between, not {self.seconds}"
            raise ValueError(reason) from None
        if not all(0 < each < math.inf for each in known):
            raise ValueError(f"seconds must be positive, not {self.seconds}")
        self._outer(1)

    def plan(self, view: View) -> Plan:
        if not self.grace and not self.dylu:
            quorum = Quorum(count=1, via=Via.SERVER, steps=self.h)
            return Plan.standing(quorum, average=True, outer=self._outer(view.world_size))
        state = self._state(view)
        if view.version == state.version:
            return state.plan
        done = ~state.waits & (view.steps > state.known)
        state.version, state.known = view.version, view.steps
        if np.isnan(state.opened):
            state.opened = view.time
        state.waits |= done
        if not self._is_awaited(view):
            state.windows += int(np.count_nonzero(state.waits) > 1)
            state.steps[state.waits] = self._steps(view)[state.waits]
            state.started[state.waits] = view.time
            state.waits[:], state.opened = False, math.nan
        plan = self._plan_of(state)
        if plan.quorums != state.plan.quorums:
            state.plan = plan
        return state.plan

    def summary(self) -> dict[str, int | float]:
        """The number of windows from which several ranks started together."""
        return {"windows": 0 if self.state_.value is None else self.state_.value.windows}

    def _is_awaited(self, view: View) -> bool:
        """Whether a running rank will finish within the open window."""
        state = self.state_.value
        assert state is not None
        if not self.grace:
            return False
        lasts = state.steps * self._pace(view) + self._communication(view)
        finishes = np.maximum(state.started + lasts, view.time)[~state.waits]
        return bool(np.any(is_at_most(finishes, state.opened + self.grace)))

    def _steps(self, view: View) -> Ints:
        """Steps of a contribution of each rank that starts now."""
        steps = np.full(view.world_size, self.h)
        if self.dylu:
            pace = self._pace(view)
            known = pace > 0  # a rank that failed as it began has steps of no length
            if known.any():
                share = pace[known].min() / pace[known] * (1 + TOLERANCE)
                steps[known] = np.maximum((share * self.h).astype(np.int64), 1)
        return steps

    def _pace(self, view: View) -> Floats:
        """Seconds of a step of each rank, NaN where they are unknown."""
        if self.seconds:
            return np.array([float(text) for text in self.seconds.split("/")])
        return view.medians("local_times", WINDOW, skip=True)

    @staticmethod
    def _communication(view: View) -> Floats:
        return np.nan_to_num(view.medians("communication", WINDOW, skip=True))

    def _state(self, view: View) -> _State:
        if self.state_.value is None:
            n = view.world_size
            if self.seconds and self.seconds.count("/") + 1 != n:
                raise PlanError(
                    f"async_local_sgd: {self.seconds.count('/') + 1} seconds for {n} ranks"
                )
            state = _State(
                view.version, view.steps, np.full(n, view.time), self._steps(view),
                np.zeros(n, dtype=np.bool_), Plan(),
            )  # fmt: skip
            state.plan = self._plan_of(state)
            self.state_.value = state
        return self.state_.value

    def _plan_of(self, state: _State) -> Plan:
        ranks = np.flatnonzero(~state.waits)
        quorum = Quorum(ranks, 1, Via.SERVER, steps=tuple(state.steps[ranks].tolist()))
        outer = self._outer(len(state.waits))
        return Plan((quorum,), average=True, outer=outer, review=Review(updates=1))

    def _outer(self, n: int) -> Outer:
        lr = self.lr / math.sqrt(n) if self.root_weight else self.lr
        delay = (n if self.nesterov else 1) if self.delay is None else self.delay
        return Outer(lr, self.momentum, self.nesterov, delay=delay)
