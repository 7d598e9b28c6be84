"""Quantities: numbers that say how they came about, and how sure they are."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

__all__ = ["Kind", "NoiseSamples", "NotNegative", "Positive", "ProfilePart", "Quantity", "Share"]

Kind = Literal["measured", "fitted", "assumed"]


class ProfilePart(BaseModel):
    """What every part of a profile has in common: unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Quantity(ProfilePart):
    """A number with its origin: measured, fitted or assumed; low..high is its 95 % interval.

    error: its standard error, in the unit of the value.  Of few visits the interval is wider than
    1.96 of these to either side, by Student's t.
    """

    value: float
    kind: Kind
    low: float | None = None
    high: float | None = None
    error: Annotated[float, Field(ge=0)] | None = None
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


class NoiseSamples(ProfilePart):
    """Quantiles of clean step times at evenly spaced levels 0..1, of mean 1.

    The mean is that of draws between them by linear interpolation.
    """

    kind: Kind
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
