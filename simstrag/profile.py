"""Profiles: what calibration measured on one device, each number saying how it came about."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

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


class NoiseSamples(_Part):
    """Quantiles of clean step times at evenly spaced levels 0..1, of mean 1."""

    kind: Literal["measured", "fitted", "assumed"]
    quantiles: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=2)]
    n: int
    lag1_autocorrelation: float | None = None
    note: str = ""


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

    compute: Quantity
    host_share: Quantity
    amp_ratio: Quantity
    amp_ratio_contended: Quantity | None = None
    amp_switch: Quantity
    noise: NoiseSamples


class AllReduceTimes(_Part):
    """Constants of the ring formula; see `simstrag.timing.AllReduce`."""

    alpha: Quantity
    bandwidth: Quantity
    bytes: Quantity
    overlap: Quantity


class ServerTimes(_Part):
    """Seconds per gradient; see `simstrag.timing.Server`."""

    service: Quantity
    push: Quantity
    pull: Quantity


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
