"""While there are stragglers, the mode with the least estimated time to progress; else all as one.

The modes are an update of every x gradients, for each x, and groups of similar speed that update
independently.  In the ring form a mode is a ring of the x fastest, with the others as riders.

Source: STAR-H, the heuristic of Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  Only the abstract and the first sentences of the
introduction were at hand.  The abstract's: a heuristic chooses the mode with the shortest time to
accuracy.  From the released code: the straggler state (20 % slower than the fastest), decisions on
its edges, time to progress as interval times 1 + phi/(x*b), the noise tables.  Ours: the least of
all candidates, where the code stops at the first local minimum; sorted times as the default
interval, which the code has for its all-reduce form only.  Ours, too: a new decision when other
ranks straggle, the staleness factor, live noise scales.  See docs/star.md for all differences and
the limits of the model.
"""

import enum
from dataclasses import dataclass, field

from simstrag.arrays import Floats
from simstrag.contract import ALL, Quorum, Via, View
from simstrag.contract.ties import is_at_most, is_less
from simstrag.policies.estimators.mode_choice import (
    ChoosesModes,
    ModeState,
    NoiseSource,
    Quorums,
)
from simstrag.policies.estimators.predictors import ALLOWED
from simstrag.policies.estimators.time_to_progress import (
    Interval,
    dynamic_time,
    ring_and_riders,
    static_times,
    ward_clusters,
)


class Form(enum.Enum):
    """The path by which gradients become updates."""

    SERVER = "server"
    RING = "ring"


@dataclass(frozen=True)
class StarH(ChoosesModes):
    """STAR's heuristic.

    form: `server`, or `ring` (all-reduce).
    interval: the mean time between updates of x gradients: `order`, `interp` or `simulated`.
    staleness: c; estimates are multiplied by 1 + c*(N/x - 1), for groups with x as their size.
    predictor: `last` or `median` of the recent times of a rank, `oracle`, or `lstm:FILE`.
    noise: where phi comes from: `live`, `hint`, or the table of a model.
    phi: noise scale in samples, instead of `noise`.
    ratio: a rank is a straggler if its step is longer than the fastest rank's by more than this
        share.
    tree: where updates wait for all ranks, or for all of a group, the ranks of a node push one
        message (server form).
    relative, absolute: the threshold between groups, as in star_dynamic.
    """

    title = "STAR-H"
    lane = "C"

    form: Form = Form.SERVER
    interval: Interval = Interval.ORDER
    staleness: float = 0.0
    predictor: str = field(default="median", metadata={"allowed": ALLOWED})
    noise: NoiseSource = NoiseSource.LIVE
    phi: float | None = None
    ratio: float = 0.2
    tree: bool = False
    relative: float = 0.2
    absolute: float | None = None
    state_: ModeState = field(default_factory=ModeState, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._load()
        self._check(("ratio", "relative", "absolute"), ("staleness", "phi"))
        if self.tree and self.form is Form.RING:
            raise ValueError("tree=true needs form=server: an all-reduce sends no messages")

    def _choose_mode(self, t: Floats, phi: float, view: View) -> tuple[str, Quorums]:
        """The mode with the least time to progress; of tied x the largest."""
        n, b = len(t), self._samples_of(view)
        T = static_times(t, self.interval, phi, b, self.staleness)
        best = float(T.min())
        x = 1 + int(is_at_most(T, best).nonzero()[0][-1])
        if self.form is Form.RING:
            ring, riders = ring_and_riders(t, x)
            return ("ssgd" if x == n else "ring"), (Quorum(ring if riders else ALL, riders=riders),)
        threshold = self.relative * float(t.min()) if self.absolute is None else self.absolute
        groups = ward_clusters(t, threshold)
        if len(groups) > 1:
            T_dyn = dynamic_time(t, groups, phi, b, self.staleness)
            if is_less(T_dyn, best):
                return "dynamic", tuple(Quorum(group, via=Via.SERVER) for group in groups)
        if x == n:
            return "ssgd", self._together()
        return "static", (Quorum(count=x, via=Via.SERVER),)

    def _together(self) -> Quorums:
        """The quorum of SSGD in this form."""
        return (Quorum() if self.form is Form.RING else Quorum(via=Via.SERVER),)
