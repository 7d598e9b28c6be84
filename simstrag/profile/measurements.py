"""What a profile holds beyond the constants of a simulation: each cell measured, each law fitted.

Simulations read the batch fits and the responses (`simstrag.profile.batch_laws`,
`simstrag.profile.responses`); the rest is there to be looked at, compared and checked.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simstrag.profile.quantity import (
    NoiseSamples,
    NotNegative,
    Positive,
    ProfilePart,
    Quantity,
    Share,
)

__all__ = [
    "CONSTANTS", "AmpRatio", "BatchFit", "BatchLaw", "CellError", "CollectiveCell",
    "CollectiveFit", "HeldOut", "Law", "Level", "LockstepCell", "NoiseScaleAt", "OverlapCell",
    "Residual", "Response", "SkippedCell", "StepCell", "TransferCell",
]  # fmt: skip

Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Error = Annotated[float, Field(ge=0)]
Backend = Annotated[str, Field(min_length=1)]

BatchLaw = Literal["proportional", "affine", "knee"]
"""How the time of a step may hang on its batch; see `simstrag.profile.batch_laws`."""

Law = Literal[
    "none", "constant", "linear", "fair_share", "reciprocal", "power", "hinge", "interpolated"
]  # fmt: skip
"""How a slowdown may hang on the level of a load; see `simstrag.profile.responses`."""


class StepCell(ProfilePart):
    """Clean steps of one precision and batch. seconds: their median, over visits.

    mean: the same of means.  update: of the optimizer, no part of a step.  host: until the thread
    that launches comes back.  host_share: the part in which the device does nothing for the step.
    held_out: left out of the fit against the batch.
    """

    precision: str
    batch: Count
    seconds: Positive
    mean: Positive
    update: NotNegative | None = None
    host: NotNegative | None = None
    host_share: Share | None = None
    peak_bytes: Size | None = None
    noise: NoiseSamples | None = None
    held_out: bool = False


class SkippedCell(ProfilePart):
    """What was to be measured and could not be, with the reason."""

    cell: str
    reason: str


class BatchFit(ProfilePart):
    """Median seconds of a clean step against the batch, in one precision.

    seconds = fixed + per_sample * batch; of law knee, with no batch below `knee` any quicker.
    fitted, held_out: the batches in the fit, and those measured and left out of it.
    errors: of each candidate law, the root mean square of the relative errors at batches of the
    fit that were left out in turn; empty where there were too few.
    """

    precision: str
    law: BatchLaw
    fixed: NotNegative
    per_sample: NotNegative
    knee: Positive | None = None
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
    """A measured slowdown at one level of a load; held_out: left out of the fit."""

    level: Annotated[float, Field(gt=0)]
    slowdown: Positive
    held_out: bool = False


class Response(ProfilePart):
    """By how much one kind of load stretches a step, or an all-reduce, as a law of its level.

    resource: what of the device the load takes, in the words of a trace.  precision, batch: of the
    steps; "" and None for an all-reduce, of which ranks and bytes say which.  constants: of the
    law, by name.  levels: what was measured.  errors: of each candidate law, as in `BatchFit`.
    """

    resource: Literal["gpu", "host", "net"]
    load: Annotated[str, Field(min_length=1)]
    precision: str = ""
    batch: Count | None = None
    ranks: Count | None = None
    bytes: Size | None = None
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
            raise ValueError("every level is held out: nothing is left that was fitted")
        return self

    @property
    def highest(self) -> float:
        """The highest level that was measured, held out or not."""
        return max(each.level for each in self.levels)


CONSTANTS: dict[Law, tuple[str, ...]] = {
    "none": (),
    "constant": ("factor",),
    "linear": ("slope",),
    "fair_share": ("demand",),
    "reciprocal": ("share",),
    "power": ("slope", "exponent"),
    "hinge": ("slope", "knee"),
    "interpolated": (),
}
"""The names of the constants of each law."""


class CollectiveCell(ProfilePart):
    """Median seconds of one collective of some size, alone or beside a load.

    group: who of the ranks reduces: "all", "half" (one half alone), "halves" (both at once).
    oversubscribed: more ranks than cores, which measures the scheduler more than the network.
    """

    backend: Backend
    ranks: Count
    bytes: Size
    seconds: Positive
    group: str = "all"
    load: str = ""
    level: Annotated[float, Field(ge=0)] = 0.0
    oversubscribed: bool = False
    held_out: bool = False


class Residual(ProfilePart):
    """Where a fit of collectives is off: (fitted - measured) / measured."""

    ranks: Count
    bytes: Size
    error: float


class CollectiveFit(ProfilePart):
    """Constants of an all-reduce by a formula of `simstrag.timing.collectives`, and where they
    hold.

    ranks: the numbers of ranks in the fit.  smallest, largest: bytes in the fit.  intra_alpha,
    intra_bandwidth: of links inside a node.  residuals: none where there are no more times than
    constants, which nothing checks.
    """

    backend: Backend
    group: str = "all"
    algorithm: Literal["ring", "tree", "halving_doubling", "hierarchical"] = "ring"
    ranks: Annotated[tuple[Count, ...], Field(min_length=1)]
    smallest: Size
    largest: Size
    alpha: NotNegative
    bandwidth: Positive
    intra_alpha: NotNegative | None = None
    intra_bandwidth: Positive | None = None
    residuals: tuple[Residual, ...] = ()
    note: str = ""


class TransferCell(ProfilePart):
    """A parameter server, with gradients of one size: median seconds.

    ranks: so many that train the workload under the server of `simstrag.ddp`, whose books and
    optimizer are then in the service; without it one that moves bytes over TCP.
    slowdown: of their steps, as in `LockstepCell`.
    """

    bytes: Size
    ranks: Count | None = None
    push: NotNegative
    service: NotNegative
    pull: NotNegative
    slowdown: Positive | None = None


class LockstepCell(ProfilePart):
    """Ranks of one machine that train the workload under `bsp` of `simstrag.ddp`; means.

    rest: seconds from the slowest rank's last gradient until rank 0 begins the next step.
    load, level: on the core of rank 0; "" is none.  slowdown: without load a local step among them
    over one alone on its core; beside load one on the loaded core over the same without the load.
    interference: of bare steps on all their cores at once over one alone.  noise: of local steps;
    both are of ranks without load.
    """

    ranks: Count
    precision: str
    batch: Count
    bytes: Size
    load: str = ""
    level: Annotated[float, Field(ge=0)] = 0.0
    rest: NotNegative
    slowdown: Positive | None = None
    interference: Positive | None = None
    noise: NoiseSamples | None = None


class OverlapCell(ProfilePart):
    """Share of an all-reduce hidden by backward, on real DDP; a share below 0 costs instead."""

    backend: Backend
    ranks: Count
    precision: str
    batch: Count
    bytes: Size
    overlap: Quantity


class NoiseScaleAt(ProfilePart):
    """The gradient noise scale, in samples, after `trained` samples of one training run.

    batch: samples of the smaller gradients.
    """

    trained: Size
    batch: Count | None = None
    scale: Positive


class AmpRatio(ProfilePart):
    """A step in full over one in reduced precision, of a model; evidence: how it was measured."""

    model: str
    full: str
    amp: str
    ratio: Positive
    device: str = ""
    batch: Count | None = None
    source: str
    evidence: str = ""


class CellError(ProfilePart):
    """One cell that no fit had seen. error: (predicted - measured) / measured."""

    cell: str
    measured: Positive
    predicted: Annotated[float, Field(gt=0)]
    error: float


class HeldOut(ProfilePart):
    """How well fits predict the cells that were left out of them, by a rule fixed beforehand.

    median, worst: of the absolute errors.  threshold: what the median was to be at most.
    """

    part: Literal["step", "contention", "allreduce"]
    cells: Annotated[tuple[CellError, ...], Field(min_length=1)]
    median: Error
    worst: Error
    threshold: Error
    note: str = ""
