"""The view of a policy: measured facts at one moment, read-only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.arrays import Array, Bools, Floats, Ints
from simstrag.contract.medians import medians
from simstrag.errors import InputError, PlanError

HIDDEN = 1.05
"""Steps up to so many clean ones may hide contention of the shorter stream, ASSUMED: noise."""


@dataclass(frozen=True, slots=True)
class OverlappingStep:
    """Seconds of a clean step whose host launches while the device computes.

    A time alone does not tell which of the two was slowed.  The one whose least slowdown explains
    it is taken: of a clean step that launching bounds the host, else the device.

    launch, device: in full precision.
    amp_launch: of launching in reduced precision.
    amp_device: of the device in reduced precision; None where its gain is unknown.
    fixed_share: share of `device` that a smaller batch does not shorten.

    >>> bound = OverlappingStep(launch=0.02, device=0.01, amp_launch=0.024, amp_device=0.005)
    >>> bound.reduced(np.array([0.04])).round(4)  # the host is slowed: casts take longer, too
    array([0.048])
    >>> filled = OverlappingStep(launch=0.02, device=0.06, amp_launch=0.024, amp_device=0.02)
    >>> filled.reduced(np.array([0.06, 0.09])).round(4)
    array([0.024, 0.03 ])
    """

    launch: float
    device: float
    amp_launch: float
    amp_device: float | None = None
    fixed_share: float = 0.0

    @property
    def is_launch_bound(self) -> bool:
        """Whether launching takes at least as long as the device, in a clean step."""
        return self.launch >= self.device

    def reduced(self, seconds: Floats) -> Floats:
        """The time in reduced precision of steps that take so many seconds in full precision."""
        assert self.amp_device is not None
        if self.is_launch_bound:
            return np.maximum(seconds / self.launch * self.amp_launch, self.amp_device)
        return np.maximum(seconds / self.device * self.amp_device, self.amp_launch)

    def in_full(self, seconds: Floats) -> Floats:
        """The time in full precision of steps that take so many seconds in reduced precision.

        Where these are as long as clean ones, launching may hide contention of the device: it is
        taken as none.
        """
        assert self.amp_device is not None
        if self.is_launch_bound:
            return seconds * (self.launch / self.amp_launch)
        clean = max(self.amp_launch, self.amp_device)
        visible = seconds * (self.device / self.amp_device)
        return np.where(seconds > HIDDEN * clean, visible, seconds * (self.device / clean))


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts known before the run, from calibration and the job's settings; None where unknown.

    amp_ratio: full over reduced-precision time of a whole uncontended step.
    host_seconds: the part of a clean serial step that reduced precision does not shorten.
    clean_seconds: the time of a clean full-precision step.
    amp_switch: the seconds that a change of precision costs.
    batch: samples of a gradient at a share of 1.
    microbatches: micro-batches of a step.
    samples: samples of the whole run.
    noise_scale: the gradient noise scale in samples, from the profile or the scenario.
    nodes: the node of each rank.
    step: a step whose host launches while the device computes; None for a serial one.
    """

    amp_ratio: float | None = None
    host_seconds: float | None = None
    clean_seconds: float | None = None
    amp_switch: float | None = None
    batch: int | None = None
    microbatches: int | None = None
    samples: int | None = None
    noise_scale: float | None = None
    nodes: tuple[int, ...] | None = None
    step: OverlappingStep | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Hints:
        """The hints that a JSON object of their fields describes.

        >>> Hints.of({"step": {"launch": 0.01, "device": 0.02, "amp_launch": 0.01}}).step.device
        0.02
        """
        step = document.get("step")
        return cls(**{**document, "step": None if step is None else OverlappingStep(**step)})


def device_gain(amp_ratio: float, host_seconds: float | None, clean_seconds: float | None) -> float:
    """The speed-up of the device's part of a step by reduced precision, r = g / ((h+g)/rho - h).

    amp_ratio: rho, full over reduced-precision time of a whole uncontended step.
    host_seconds: h, the part of a clean step that reduced precision does not shorten.
    clean_seconds: h+g, a clean full-precision step.

    With h or h+g unknown it is rho.  Raises `InputError` where h makes so large a rho impossible.

    >>> device_gain(1.5, None, None), round(device_gain(1.5, 0.25, 1.0), 6)
    (1.5, 1.8)
    """
    if host_seconds is None or clean_seconds is None:
        return amp_ratio
    if amp_ratio == 1 or clean_seconds == host_seconds:
        return 1.0
    device_seconds = clean_seconds / amp_ratio - host_seconds
    if device_seconds <= 0:
        raise InputError(
            f"rho {amp_ratio:g} is impossible where {host_seconds:g} of {clean_seconds:g} s do not "
            f"depend on precision: it must be below {clean_seconds / host_seconds:g}"
        )
    return (clean_seconds - host_seconds) / device_seconds


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The facts a policy may use; arrays are read-only, rows are ranks.

    world_size: number of ranks, N.
    version: updates so far.
    samples: samples applied so far.
    time: seconds on the driver's clock.
    steps: shape (N,), number of known local times of each rank.
    local_times: shape (N, W), recent local times in seconds, newest last, NaN where there is none.
        A local time is the computing time of one step: no queue, service, collective or blocking.
    amp: shape (N, W), whether that step ran in reduced precision.
    batch: shape (N, W), that step's share of the nominal batch, NaN where there is none.
    lower_bound: shape (N, W), whether that step was cancelled, so that its time is a lower bound.
    communication: shape (N, W), seconds of push plus pull of recent steps, NaN where there is none.
    pending_since: shape (N,), time of the pull for the gradient that the rank holds now (of a
        private step: its start); NaN where the rank holds none.
    noise_scale: the gradient noise scale in samples, as estimated by now, else that of the hints;
        None where it is not known yet.
    hints: facts known before the run.
    telemetry: shape (N, 30, 3), of each rank's node in recent intervals, newest last, NaN before
        the first: used share of its processor, bytes/s into and out of its card. In a simulated
        cluster only, for a policy with `reads_telemetry`; else shape (N, 0, 3).
    refused: whether a manager of shared nodes refused the policy's last plan: the one before it is
        still in force.
    truth: seconds of each rank's noise-free full-precision step started now, shape (N,); in
        simulation only, for a policy with `oracle`.
    """

    world_size: int
    version: int = 0
    samples: int = 0
    time: float = 0.0
    steps: Ints = None  # type: ignore[assignment]
    local_times: Floats = None  # type: ignore[assignment]
    amp: Bools = None  # type: ignore[assignment]
    batch: Floats = None  # type: ignore[assignment]
    lower_bound: Bools = None  # type: ignore[assignment]
    communication: Floats = None  # type: ignore[assignment]
    pending_since: Floats = None  # type: ignore[assignment]
    noise_scale: float | None = None
    hints: Hints = Hints()
    telemetry: Floats = None  # type: ignore[assignment]
    refused: bool = False
    truth: Callable[[], Floats] | None = None

    _tell: Callable[[str, int], Array] | None = field(default=None, init=False, repr=False)
    _tell_medians: Callable[[str, int, bool], Floats] | None = field(
        default=None, init=False, repr=False
    )

    def __post_init__(self) -> None:
        shape = (self.world_size, WINDOW)
        for name, default in (
            ("steps", np.zeros(self.world_size, dtype=np.int64)),
            ("local_times", np.full(shape, math.nan)),
            ("amp", np.zeros(shape, dtype=np.bool_)),
            ("batch", np.full(shape, math.nan)),
            ("lower_bound", np.zeros(shape, dtype=np.bool_)),
            ("communication", np.full(shape, math.nan)),
            ("pending_since", np.full(self.world_size, math.nan)),
            ("telemetry", np.empty((self.world_size, 0, len(MONITORED)))),
        ):
            value = getattr(self, name)
            array = default if value is None else np.array(value, dtype=default.dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def of(
        cls,
        tell: Callable[[str, int], Array],
        version: int,
        samples: int,
        time: float,
        steps: Ints,
        hints: Hints,
        truth: Callable[[], Floats] | None,
        tell_medians: Callable[[str, int, bool], Floats] | None = None,
        refused: bool = False,
        noise_scale: float | None = None,
    ) -> View:
        """A view that computes its arrays on first access, while `plan` runs.

        tell: a function of an array's name and a number of columns; the newest columns.
        tell_medians: `medians`, where it is faster than that of the newest columns.
        noise_scale: by default that of the hints.
        """
        steps.flags.writeable = False
        view = object.__new__(cls)
        put = object.__setattr__
        put(view, "world_size", len(steps))
        put(view, "version", version)
        put(view, "samples", samples)
        put(view, "time", time)
        put(view, "steps", steps)
        put(view, "noise_scale", hints.noise_scale if noise_scale is None else noise_scale)
        put(view, "hints", hints)
        put(view, "refused", refused)
        put(view, "truth", truth)
        put(view, "_tell", tell)
        put(view, "_tell_medians", tell_medians)
        return view

    def show_telemetry(self, windows: Floats) -> None:
        """Set `telemetry`, which no engine knows."""
        windows.flags.writeable = False
        object.__setattr__(self, "telemetry", windows)

    def close(self) -> None:
        """Refuse further arrays: the engine has moved on, and only those read so far remain."""
        if self._tell is not None:
            object.__setattr__(self, "_tell", too_late)
            object.__setattr__(self, "_tell_medians", None)

    def newest(self, name: str, columns: int) -> Array:
        """The newest columns of an array such as `local_times`, without computing the others.

        The steps of all ranks lie together in memory: operations on the transpose are fast.

        >>> View(2, local_times=[[1.0] * 15 + [2.0], [1.0] * 15 + [3.0]]).newest("local_times", 1)
        array([[2.],
               [3.]])
        """
        check_columns(columns)
        if self._tell is not None:
            return self._tell(name, columns)
        window: Array = getattr(self, name)
        return np.asfortranarray(window[:, WINDOW - columns :])

    def medians(self, name: str, columns: int, skip: bool = False) -> Floats:
        """The median of each rank's newest values of an array such as `local_times`; shape (N,).

        skip: whether NaN is left out; else it makes the median of its rank NaN.

        >>> View(2, local_times=[[1.0] * 14 + [2.0, 4.0], [math.nan] * 15 + [3.0]]).medians(
        ...     "local_times", columns=3
        ... )
        array([ 2., nan])
        """
        check_columns(columns)
        if self._tell_medians is not None:
            return self._tell_medians(name, columns, skip)
        return medians(self.newest(name, columns).T, skip)

    def since(self, rank: int, steps: int, name: str = "local_times") -> Array:
        """The known values of a rank's steps from number `steps` on, oldest first, at most W.

        A rank that enters a quorum again still shows its steps from before.  Those begun since
        have numbers from `view.steps[rank]` of that review on, or from one more if it then held a
        gradient.

        >>> View(1, steps=[20], local_times=[[1.0] * 14 + [2.0, 3.0]]).since(0, steps=18)
        array([2., 3.])
        """
        columns = min(max(int(self.steps[rank]) - max(steps, 0), 0), WINDOW)
        values: Array = self.newest(name, columns)[rank]
        return values

    if not TYPE_CHECKING:  # called for a field that is not computed yet

        def __getattr__(self, name: str) -> Any:
            if name == "telemetry":
                return np.empty((self.world_size, 0, len(MONITORED)))
            if name not in LAZY:
                raise AttributeError(f"a View has no {name}")
            array = np.ascontiguousarray(self._tell(name, WINDOW))
            array.flags.writeable = False
            object.__setattr__(self, name, array)
            return array


def check_columns(columns: int) -> None:
    """Raise `PlanError` for a number of columns that no window has."""
    if not 0 <= columns <= WINDOW or columns != int(columns):
        raise PlanError(f"columns must be a whole number from 0 to {WINDOW}, not {columns!r}")


def too_late(name: str, *_: Any) -> Array:
    """What a view or a block tells once the engine has moved on."""
    raise PlanError(
        f"{name} of a View is there while `plan` runs, of a Block while `first_change` runs; keep "
        "the array, or dataclasses.replace(view)"
    )


LAZY = (
    "local_times", "amp", "batch", "lower_bound", "communication", "pending_since",
)  # fmt: skip
"""The fields that an engine computes on first access."""
WINDOW = 16
"""Recent local times per rank in a view, W; a power of two."""
MONITORED = ("processor", "in", "out")
"""What `telemetry` shows of a node: a share, and twice bytes/s."""
INTERVALS = 30
"""Recent intervals of the monitors in a view: the window of STAR's predictor."""
