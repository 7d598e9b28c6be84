"""Profiles: what calibration measured on one device, each number saying how it came about."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from simstrag.errors import InputError
from simstrag.validation import explain

__all__ = ["Profile", "Quantity"]

FORMAT = "simstrag-profile/1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Quantity(_Part):
    """A number with its origin: measured, fitted or assumed; low..high is its 95 % interval."""

    value: float
    kind: Literal["measured", "fitted", "assumed"]
    low: float | None = None
    high: float | None = None
    n: int | None = None
    note: str = ""

    @model_validator(mode="after")
    def _interval_is_one(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


def _positive(quantity: Quantity) -> Quantity:
    if quantity.value <= 0:
        raise ValueError(f"value {quantity.value:g} must be greater than 0")
    return quantity


def _not_negative(quantity: Quantity) -> Quantity:
    if quantity.value < 0:
        raise ValueError(f"value {quantity.value:g} must be 0 or more")
    return quantity


def _share(quantity: Quantity) -> Quantity:
    if not 0 <= quantity.value <= 1:
        raise ValueError(f"value {quantity.value:g} must lie between 0 and 1")
    return quantity


Positive = Annotated[Quantity, AfterValidator(_positive)]
NotNegative = Annotated[Quantity, AfterValidator(_not_negative)]
Share = Annotated[Quantity, AfterValidator(_share)]

MEAN_TOLERANCE = 1e-3
"""How far the mean of the noise may be from 1: it would shift every simulated time by as much."""


class NoiseSamples(_Part):
    """Quantiles of clean step times at evenly spaced levels 0..1, of mean 1.

    The mean is that of draws between them by linear interpolation.
    """

    kind: Literal["measured", "fitted", "assumed"]
    quantiles: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=2)]
    n: int
    lag1_autocorrelation: float | None = None
    note: str = ""

    @model_validator(mode="after")
    def _is_noise(self) -> Self:
        pairs = list(zip(self.quantiles, self.quantiles[1:], strict=False))
        for low, high in pairs:
            if high < low:
                raise ValueError(f"quantiles must not decrease: {high:g} follows {low:g}")
        mean = sum(low + high for low, high in pairs) / 2 / len(pairs)
        if abs(mean - 1) > MEAN_TOLERANCE:
            raise ValueError(f"quantiles have mean {mean:.6g}; divide them by it, noise has mean 1")
        return self


class Workload(_Part):
    """The model that was timed, and what its two precisions are."""

    name: str
    parameters: int
    batch: int
    full: str
    amp: str
    stand_in: bool


class StepTimes(_Part):
    """Seconds and ratios of one step; see `simstrag.timing.Step`."""

    compute: Positive
    host_share: Share
    amp_ratio: Positive
    amp_ratio_contended: Positive | None = None
    amp_switch: NotNegative
    noise: NoiseSamples


class AllReduceTimes(_Part):
    """Constants of the ring formula; see `simstrag.timing.AllReduce`."""

    alpha: NotNegative
    bandwidth: Positive
    bytes: NotNegative
    overlap: Share


class ServerTimes(_Part):
    """Seconds per gradient; see `simstrag.timing.Server`."""

    service: NotNegative
    push: NotNegative
    pull: NotNegative


class Profile(_Part):
    """One device's measurements. `Profile.read(path)` loads and checks one."""

    format: Literal["simstrag-profile/1"] = "simstrag-profile/1"
    name: str
    date: str
    command: str
    device: dict[str, Any]
    software: dict[str, Any]
    workload: Workload
    step: StepTimes
    allreduce: AllReduceTimes
    server: ServerTimes
    recordings: dict[str, Any] = {}
    _sha256: str = PrivateAttr("")

    @property
    def sha256(self) -> str:
        """Of the file's bytes; empty for a profile that was never in a file."""
        return self._sha256

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """From a JSON file. Raises `InputError` that names the file, the field and the way out."""
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot read the profile: {error.strerror}") from None
        try:
            profile = cls.model_validate_json(data)
        except ValidationError as error:
            raise InputError(explain(error, cls, str(path))) from None
        profile._sha256 = hashlib.sha256(data).hexdigest()
        return profile
