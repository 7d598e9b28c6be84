"""The sections of a scenario file: constants that are stated, and thus assumed."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from simstrag.documents.validation_errors import Checked
from simstrag.errors import InputError
from simstrag.timing import noise
from simstrag.timing.noise import Distribution

LEAST = 1e-30
"""Least number above 0, ASSUMED: what is divided by it stays finite."""


def _not_tiny(value: float) -> float:
    if value < LEAST:
        raise PydanticCustomError("tiny", f"must be {LEAST:g} or more")
    return value


Positive = Annotated[float, Field(gt=0), AfterValidator(_not_tiny)]
Endless = Annotated[float, Field(gt=0, allow_inf_nan=True), AfterValidator(_not_tiny)]
"""A number above 0, or `.inf`."""
Factor = Annotated[float, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
MOST = 1_000_000
"""Most workers, seeds, shards, nodes and jobs, ASSUMED: each of them takes memory and time."""
MOST_GRADIENTS = 20_000_000
"""Most gradients of a real learner's run: each takes 235 bytes of memory, measured, so 4.7 GB."""
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]

SUM_TOLERANCE = 1e-9
"""Allowed distance of the sum of shards from 1, because shares such as 1/3 are rounded."""


class Section(Checked):
    """The base of all sections: booleans as numbers are refused, too."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_booleans(cls, data: Any) -> Any:
        """`workers: true` would be 1."""
        for key, value in data.items() if isinstance(data, Mapping) else ():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                problem = PydanticCustomError("boolean", "must not be true or false")
                details = InitErrorDetails(type=problem, loc=(key,), input=value)
                raise ValidationError.from_exception_data(cls.__name__, [details])
        return data

    def changed(self, names: Iterable[str]) -> list[str]:
        """Those of the keys that differ from their defaults, as a dump of the section has all."""
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].get_default()]


class SecondsByPrecision(Section):
    """Seconds in full and in reduced precision."""

    full: Positive
    amp: Positive | None = None


def _by_precision(value: Any) -> Any:
    """A number is that of full precision."""
    return value if value is None or isinstance(value, Mapping | Section) else {"full": value}


StreamSeconds = Annotated[
    SecondsByPrecision,
    BeforeValidator(_by_precision, json_schema_input_type=Positive | SecondsByPrecision),
]


class StepSection(Section):
    """One training step: `compute`, or `launch` and `device` where the host launches meanwhile.

    compute: seconds in full precision on an idle machine.
    launch, device: seconds of launching, and of the device; a number, or by precision.
    host_share: share of `compute` that reduced precision cannot shorten.
    amp_ratio: full over reduced-precision time.
    cv: coefficient of variation of the noise.
    amp_switch: seconds of a change of precision.
    fixed_share: share that a smaller batch does not shorten; beside `device`, of that.
    """

    compute: Positive | None = None
    launch: StreamSeconds | None = None
    device: StreamSeconds | None = None
    host_share: Share = 0.0
    amp_ratio: Positive | None = None
    cv: NonNegative = 0.0
    noise: Literal["lognormal", "shifted_exponential"] = "lognormal"
    amp_switch: NonNegative = 0.0
    fixed_share: Share = 0.0

    @model_validator(mode="after")
    def _has_one_law(self) -> Self:
        streams = [name for name in ("launch", "device") if getattr(self, name) is not None]
        if len(streams) == 1:
            other = "device" if streams == ["launch"] else "launch"
            raise ValueError(f"{streams[0]} stands without {other}; give both, or compute")
        if bool(streams) == (self.compute is not None):
            raise ValueError("give compute, or launch and device" + ", not both" * bool(streams))
        if self.launch is not None and self.launch.amp and self.device and not self.device.amp:
            raise ValueError("launch.amp stands without device.amp; give both, or neither")
        for name in ("host_share", "amp_ratio"):
            if streams and name in self.model_fields_set:
                raise ValueError(
                    f"{name} belongs to compute; launch and device say it by precision, as in "
                    "device: {full: 0.03, amp: 0.02}"
                )
        return self

    @model_validator(mode="after")
    def _noise_exists(self) -> Self:
        if self.noise == "shifted_exponential" and self.cv > 1:
            raise ValueError(f"cv of shifted_exponential noise must be at most 1, not {self.cv:g}")
        return self

    def distribution(self, lag1: float) -> Distribution | None:
        """The noise of a step with this autocorrelation; None without noise."""
        if self.cv == 0:
            return None
        return getattr(noise, self.noise)(self.cv, lag1)  # type: ignore[no-any-return]


class WorkerSection(Section):
    """The ranks that make a worker; see `simstrag.timing.worker.WorkerRanks`.

    ranks: GPUs of a worker.
    stages: of its pipeline, of as many ranks each; ranks of a stage share its computing.
    chunks: of the model on each stage; with more than one the schedule is interleaved, else 1F1B.
    backward: seconds of a backward operation over those of a forward one.
    """

    ranks: Amount
    stages: Count = 1
    chunks: Count = 1
    backward: Positive = 2.0

    @model_validator(mode="after")
    def _stages_divide_the_ranks(self) -> Self:
        if self.ranks % self.stages:
            raise ValueError(
                f"ranks is {self.ranks}, which {self.stages} stages do not divide; each stage has "
                "as many ranks"
            )
        if self.chunks > 1 and self.stages == 1:
            raise ValueError(
                f"chunks is {self.chunks}, but only a pipeline has chunks; give stages"
            )
        return self


class NoiseSection(Section):
    """How noise lasts: from step to step of a rank, and over a whole run of all ranks.

    lag1: autocorrelation of the factors at a lag of one step; by default that of a profile, or 0.
    pace: standard deviation, over runs, of a factor of mean 1 that all steps of a run have.
    """

    lag1: Annotated[float, Field(gt=-1, lt=1)] | None = None
    pace: Share = 0.0

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give lag1, pace or both")
        return self


class AllReduceSection(Section):
    """An all-reduce; see `simstrag.timing.constants.AllReduce`.

    intra_alpha, intra_bandwidth: of links inside a node; by default like links between nodes.
    """

    alpha: NonNegative = 0.0
    bandwidth: Endless = math.inf
    bytes: NonNegative = 0.0
    overlap: Share = 0.0
    algorithm: Literal["ring", "tree", "halving_doubling", "hierarchical"] = "ring"
    intra_alpha: NonNegative | None = None
    intra_bandwidth: Endless | None = None

    @field_serializer("bandwidth", "intra_bandwidth", when_used="json")
    def _readable(self, bandwidth: float | None) -> float | str | None:
        """JSON has no infinity; the word "inf" is read as the number."""
        return "inf" if bandwidth == math.inf else bandwidth

    @property
    def needs_nodes(self) -> str | None:
        """The key, with its value, that makes a difference only if ranks share nodes."""
        if self.algorithm == "hierarchical":
            return "allreduce.algorithm is hierarchical"
        for name in ("intra_alpha", "intra_bandwidth"):
            if getattr(self, name) is not None:
                return f"allreduce.{name} is {getattr(self, name):g}"
        return None


class ServerSection(Section):
    """A parameter server; see `simstrag.timing.constants.ServerCost`.

    link: the server is on a link like the all-reduce's, and service, push and pull follow from it
        where they are not stated; see `simstrag.timing.constants.server_on_link`.
    shards: number of servers with equal shares of the service, or the shares.
    """

    service: NonNegative = 0.0
    push: NonNegative = 0.0
    pull: NonNegative = 0.0
    link: Literal["cut_through", "store_and_forward"] | None = None
    shards: Amount | Annotated[tuple[Positive, ...], Field(min_length=1)] = 1
    fused_allreduce: bool = False

    @model_validator(mode="after")
    def _shares_are_whole(self) -> Self:
        if not math.isclose(sum(self.shares), 1, rel_tol=SUM_TOLERANCE):
            raise ValueError(f"shards must sum to 1, not {sum(self.shares):.9g}")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the service, one per shard.

        >>> ServerSection(shards=4).shares
        (0.25, 0.25, 0.25, 0.25)
        """
        k = self.shards
        return (1 / k,) * k if isinstance(k, int) else k


class ServerLoadSection(Section):
    """Slowdown of the ranks on the server's node while it is in use: factors >= 1.

    host: slowdown of the host work of their steps.
    net: slowdown of their pushes, pulls and collectives.
    """

    node: Annotated[int, Field(ge=0)] = 0
    host: Factor = 1.0
    net: Factor = 1.0


class OptimizerSection(Section):
    """The optimizer of real training; see `simstrag.learning.optimizers.OptimizerChoice`."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nesterov: bool = False
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9, 0.999,
    )  # fmt: skip
    weight_decay: NonNegative = 0.0

    @model_validator(mode="after")
    def _settings_are_of_its_kind(self) -> Self:
        foreign = ("betas",) if self.kind == "sgd" else ("momentum", "nesterov")
        for name in self.changed(foreign):
            raise ValueError(f"{name} is not a setting of {self.kind}; leave it out")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class LearnerSection(Section):
    """The worth of updates: by the noise-scale model, or a real model that learns (kind "real").

    batch: samples per gradient.
    noise_scale: McCandlish's B_noise, in samples.
    c_tau: cost of a stale sample, relative to a fresh one.
    c_tau_range: its least and its largest value, such as the interval of `simstrag fit`.
    curve: (progress, accuracy) points, increasing.
    staleness_loss: loss of final accuracy per update of mean staleness.

    Of a real learner:
    task: a name of `simstrag.learning.tasks`, or a function as module:function.
    optimizer: applies the gradients.
    evaluate_every: seconds between evaluations; by default a fiftieth of bsp's clean rounds.
    dirichlet: concentration of the classes in each rank's shard; None for identical shards.
    full, amp: precisions that "full" and "amp" denote; "bf16" and "fp16" by autocast, "fp32" as
        reduced precision is below fp64.
    device: where torch computes.
    margin: how much less final accuracy than bsp's still counts as equal.
    """

    kind: Literal["noise-scale", "real"] = "noise-scale"
    batch: Count = 128
    noise_scale: NonNegative = 500.0
    c_tau: NonNegative = 1.0
    c_tau_range: tuple[NonNegative, NonNegative] | None = None
    curve: tuple[tuple[NonNegative, Share], ...] | None = None
    staleness_loss: NonNegative = 0.0
    task: str | None = None
    optimizer: OptimizerSection = OptimizerSection()
    evaluate_every: Positive | None = None
    dirichlet: Positive | None = None
    full: Literal["fp32", "fp64"] = "fp32"
    amp: Literal["bf16", "fp16", "fp32"] = "bf16"
    device: Literal["cpu", "cuda"] = "cpu"
    margin: Share = 0.005

    @model_validator(mode="after")
    def _keys_are_of_its_kind(self) -> Self:
        real = (
            "task",
            "optimizer",
            "evaluate_every",
            "dirichlet",
            "full",
            "amp",
            "device",
            "margin",
        )
        formula = ("c_tau", "c_tau_range", "curve", "staleness_loss")
        foreign = formula if self.is_real else real
        if named := self.changed(foreign):
            other = "noise-scale" if self.is_real else "real"
            raise ValueError(f"{named[0]} is a key of kind {other}; this one is {self.kind}")
        if self.is_real and self.task is None:
            raise ValueError("kind real needs a task, such as digits")
        if self.amp == "fp32" and self.full == "fp32":
            raise ValueError("amp: fp32 is a reduced precision only beside full: fp64")
        return self

    @model_validator(mode="after")
    def _range_holds_c_tau(self) -> Self:
        if self.c_tau_range is not None:
            low, high = self.c_tau_range
            if not low <= self.c_tau <= high:
                raise ValueError(f"c_tau {self.c_tau:g} is not in c_tau_range [{low:g}, {high:g}]")
        return self

    @property
    def is_real(self) -> bool:
        """Whether a model learns by the gradients of the run."""
        return self.kind == "real"

    @model_validator(mode="after")
    def _curve_increases(self) -> Self:
        points = self.curve or ()
        if self.curve is not None and len(points) < 2:
            raise ValueError("curve needs at least two [progress, accuracy] points")
        for (p0, a0), (p1, a1) in itertools.pairwise(points):
            if p1 <= p0 or a1 < a0:
                raise ValueError(f"curve must increase: [{p1:g}, {a1:g}] follows [{p0:g}, {a0:g}]")
        return self

    def progress_for(self, accuracy: float) -> float:
        """The least progress at which the declared curve reaches `accuracy`.

        Raises `InputError` without a curve, and for an accuracy beyond it.
        """
        if self.curve is None:
            raise InputError("target_accuracy needs learner.curve: [[progress, accuracy], ...]")
        if self.staleness_loss:
            raise InputError(
                "target_accuracy cannot stand beside learner.staleness_loss, which is of the final "
                "accuracy alone; give target_progress"
            )
        accuracies = [a for _, a in self.curve]
        if not accuracies[0] <= accuracy <= accuracies[-1]:
            raise InputError(
                f"target_accuracy {accuracy:g} lies outside learner.curve, which spans "
                f"{accuracies[0]:g} to {accuracies[-1]:g}"
            )
        k = bisect.bisect_left(accuracies, accuracy)
        p1, a1 = self.curve[k]
        if a1 == accuracy:
            return p1
        p0, a0 = self.curve[k - 1]
        return p0 + (p1 - p0) * (accuracy - a0) / (a1 - a0)


class ContentionSection(Section):
    """The simulation of the trace's contention.

    severity: what a slowdown takes beyond a clean step is multiplied by it, and what a recorded
        duration has beyond the median of its step over ranks; 1 is as recorded, 0 none.
    host_share: of what a recorded duration has beyond that median, the share that reduced precision
        does not shorten: 0 if the device was slowed, 1 if the host was.
    response: an assumed law r for utilisations without a measured response: a load u adds
        u / (1 - (r - 1) u) to what it slows; 1 is a fair share, 2 a load that keeps what it takes.
    """

    severity: NonNegative = 1.0
    host_share: Share = 0.0
    response: Annotated[float, Field(ge=1, le=2)] | None = None


class CostSection(Section):
    """What the job's devices cost; results are converted, and no run depends on it.

    gpus: devices of a worker; by default its ranks, or one.
    gpu_hour: price of one device for one hour.
    currency: of the price.
    watts: mean electrical power of one device while the job runs.
    idle_watts: the same while the device waits or communicates, for power caps; else as if busy.
    Watts that are not stated are those that NVML measured for the profile: `Scenario.watts`.
    """

    gpus: Count | None = None
    gpu_hour: Positive | None = None
    currency: str = "USD"
    watts: Positive | None = None
    idle_watts: Positive | None = None
