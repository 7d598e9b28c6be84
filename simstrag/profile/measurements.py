"""Measured cells and fitted laws, beyond the constants of a simulation.

Simulations read the batch fits and the responses (`simstrag.profile.batch_laws`,
`simstrag.profile.responses`); the rest serves display, comparison and checks.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simstrag.profile.quantity import (
    NoiseSamples,
    NotNegativeQuantity,
    PositiveQuantity,
    ProfilePart,
    Quantity,
    ShareQuantity,
)

Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Error = Annotated[float, Field(ge=0)]
BackendName = Annotated[str, Field(min_length=1)]

BatchLaw = Literal["proportional", "affine", "knee"]
"""Laws of the time of a step against its batch; see `simstrag.profile.batch_laws`."""

Law = Literal[
    "none", "constant", "time_slices", "linear", "fair_share", "reciprocal", "power", "hinge",
    "interpolated",
]  # fmt: skip
"""Laws of a slowdown against the level of a load; see `simstrag.profile.responses`."""


Side = Literal["step", "device"]
"""The part of a step that a law is of: the whole, or its device's stream of work."""


class StepCell(ProfilePart):
    """Clean steps of one precision and batch; times in seconds.

    seconds, mean: median over visits of the medians, and of the means, of steps.
    update: of the optimizer, which is no part of a step.
    host: until the launching thread returns.
    host_share: share of a step in which the device does nothing for it.
    launch: until the thread has launched a step that starts with an empty queue.
    device: of the device's stream: kernel time, and what lies between kernels.
    unstable: why its visits are no repetitions of one number, naming them; "" for stable ones.
    held_out: left out of the fit against the batch.
    """

    precision: str
    batch: Count
    seconds: PositiveQuantity
    mean: PositiveQuantity
    update: NotNegativeQuantity | None = None
    host: NotNegativeQuantity | None = None
    host_share: ShareQuantity | None = None
    launch: PositiveQuantity | None = None
    device: PositiveQuantity | None = None
    peak_bytes: Size | None = None
    noise: NoiseSamples | None = None
    unstable: str = ""
    held_out: bool = False


class SkippedCell(ProfilePart):
    """A cell that could not be measured, with the reason."""

    cell: str
    reason: str


class BatchFit(ProfilePart):
    """Median seconds of a clean step, or of its device's part, against the batch, in one precision.

    fixed, per_sample: seconds = fixed + per_sample * batch.
    knee: of law knee, the batch below which steps get no quicker.
    fitted, held_out: the measured batches, in the fit and left out of it.
    errors: by candidate law, the root mean square of relative errors at batches left out in turn;
        empty for too few batches.
    """

    precision: str
    part: Side = "step"
    law: BatchLaw
    fixed: NotNegativeQuantity
    per_sample: NotNegativeQuantity
    knee: PositiveQuantity | None = None
    fitted: Annotated[tuple[Count, ...], Field(min_length=1)]
    held_out: tuple[Count, ...] = ()
    errors: dict[str, Error] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_what_its_law_needs(self) -> Self:
        if (self.law == "knee") != (self.knee is not None):
            raise ValueError("knee belongs to law knee, which needs it")
        return self

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest batch that was measured."""
        batches = self.fitted + self.held_out
        return min(batches), max(batches)


class Level(ProfilePart):
    """A measured slowdown at one level of a load. held_out: left out of the fit."""

    level: Annotated[float, Field(gt=0)]
    slowdown: PositiveQuantity
    held_out: bool = False


class Response(ProfilePart):
    """The slowdown of a step, or of an all-reduce, by one kind of load, as a law of its level.

    resource: resource of a trace that the load takes.
    part: what is slowed: the step as a whole, or the device's stream of it.
    precision, batch: of the steps; "" and None for an all-reduce.
    ranks, bytes: of the all-reduce.
    constants: of the law, by name.
    levels: as measured.
    errors: by candidate law, as in `BatchFit`.
    """

    resource: Literal["gpu", "host", "net"]
    load: Annotated[str, Field(min_length=1)]
    precision: str = ""
    batch: Count | None = None
    ranks: Count | None = None
    bytes: Size | None = None
    part: Side = "step"
    law: Law
    constants: dict[str, Quantity] = Field(default_factory=dict)
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    errors: dict[str, Error] = Field(default_factory=dict)
    note: str = ""

    @model_validator(mode="after")
    def _has_what_its_law_needs(self) -> Self:
        names = CONSTANTS[self.law]
        if set(self.constants) != set(names):
            raise ValueError(
                f"law {self.law} has the constants {', '.join(names) or 'none'}, "
                f"not {', '.join(self.constants) or 'none'}"
            )
        if all(each.held_out for each in self.levels):
            raise ValueError("every level is held out: none is left in the fit")
        return self

    @property
    def highest(self) -> float:
        """The highest level that was measured, held out or not."""
        return max(each.level for each in self.levels)


CONSTANTS: dict[Law, tuple[str, ...]] = {
    "none": (),
    "constant": ("factor",),
    "time_slices": ("cost",),
    "linear": ("slope",),
    "fair_share": ("demand",),
    "reciprocal": ("share",),
    "power": ("slope", "exponent"),
    "hinge": ("slope", "knee"),
    "interpolated": (),
}
"""The names of the constants of each law."""


class CollectiveCell(ProfilePart):
    """Median seconds of one collective, from the latest start to the latest end of its ranks.

    load, level: beside it; "" for none.
    group: the ranks that reduce: "all", "half" (one half alone), "halves" (both at once).
    oversubscribed: whether ranks outnumbered cores, so that the time is the scheduler's more than
        the network's.
    """

    backend: BackendName
    ranks: Count
    bytes: Size
    seconds: PositiveQuantity
    group: str = "all"
    load: str = ""
    level: Annotated[float, Field(ge=0)] = 0.0
    oversubscribed: bool = False
    held_out: bool = False


class Residual(ProfilePart):
    """An error of a fit of collectives: (fitted - measured) / measured."""

    ranks: Count
    bytes: Size
    error: float


class CollectiveFit(ProfilePart):
    """Constants of an all-reduce, fitted by a formula of `simstrag.timing.collectives`.

    ranks: numbers of ranks in the fit.
    smallest, largest: bytes in the fit.
    intra_alpha, intra_bandwidth: of links inside a node.
    residuals: none if there are no more times than constants.
    """

    backend: BackendName
    group: str = "all"
    algorithm: Literal["ring", "tree", "halving_doubling", "hierarchical"] = "ring"
    ranks: Annotated[tuple[Count, ...], Field(min_length=1)]
    smallest: Size
    largest: Size
    alpha: NotNegativeQuantity
    bandwidth: PositiveQuantity
    intra_alpha: NotNegativeQuantity | None = None
    intra_bandwidth: PositiveQuantity | None = None
    residuals: tuple[Residual, ...] = ()
    note: str = ""


class TransferCell(ProfilePart):
    """A parameter server with gradients of one size: median seconds.

    ranks: number of ranks that trained under the server of `simstrag.ddp`, so that service has its
        bookkeeping and optimizer; None if only bytes were moved over TCP.
    slowdown: slowdown of their steps, as in `LockstepCell`.
    """

    bytes: Size
    ranks: Count | None = None
    push: NotNegativeQuantity
    service: NotNegativeQuantity
    pull: NotNegativeQuantity
    slowdown: PositiveQuantity | None = None


class LockstepCell(ProfilePart):
    """Ranks of one machine that train the workload under `bsp` of `simstrag.ddp`; means.

    rest: seconds from the slowest rank's last gradient until rank 0 begins the next step.
    load, level: on the core of rank 0; "" for none.
    slowdown: without load, a local step among the ranks over a step alone on its core; beside load,
        a step on the loaded core over a step there without the load.
    interference: bare steps on all cores at once over a step alone, without load.
    noise: noise of local steps without load.
    """

    ranks: Count
    precision: str
    batch: Count
    bytes: Size
    load: str = ""
    level: Annotated[float, Field(ge=0)] = 0.0
    rest: NotNegativeQuantity
    slowdown: PositiveQuantity | None = None
    interference: PositiveQuantity | None = None
    noise: NoiseSamples | None = None


class OverlapCell(ProfilePart):
    """Share of an all-reduce that backward hides in real DDP; below 0 it costs time instead.

    overlap: 1 - (together - compute) / (apart - compute), of backward without communication, under
        DDP, and followed by one flat all-reduce.
    """

    backend: BackendName
    ranks: Count
    precision: str
    batch: Count
    bytes: Size
    overlap: Quantity


class NoiseScaleAt(ProfilePart):
    """The gradient noise scale of one training run, in samples.

    trained: number of samples trained before the measurement.
    batch: samples of the smaller gradients.
    """

    trained: Size
    batch: Count | None = None
    scale: PositiveQuantity


class AmpRatio(ProfilePart):
    """Time of a step in full over reduced precision. evidence: the way it was measured."""

    model: str
    full: str
    amp: str
    ratio: PositiveQuantity
    device: str = ""
    batch: Count | None = None
    source: str
    evidence: str = ""


class CellError(ProfilePart):
    """A cell outside of all fits. error: (predicted - measured) / measured."""

    cell: str
    measured: PositiveQuantity
    predicted: Annotated[float, Field(gt=0)]
    error: float


class HeldOut(ProfilePart):
    """Errors of the fits at cells that were held out by a rule fixed beforehand.

    median, worst: of the absolute errors.
    threshold: limit of the median, stated beforehand.
    """

    part: Literal["step", "contention", "allreduce"]
    cells: Annotated[tuple[CellError, ...], Field(min_length=1)]
    median: Error
    worst: Error
    threshold: Error
    note: str = ""
