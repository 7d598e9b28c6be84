"""Quantities: numbers that are measured, fitted or assumed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from simstrag.documents.validation_errors import Checked

Kind = Literal["measured", "fitted", "assumed"]


class ProfilePart(Checked):
    """The base of all parts of a profile."""


class Quantity(ProfilePart):
    """A number that is measured, fitted or assumed, with its interval.

    low, high: ends of its 95 % interval.
    error: its standard error, in the unit of the value.  With few visits the interval is wider than
        1.96 standard errors to either side, by Student's t.
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


def _require(condition: Callable[[float], bool], what: str) -> AfterValidator:
    def check(quantity: Quantity) -> Quantity:
        if not condition(quantity.value):
            raise ValueError(f"value {quantity.value:g} must {what}")
        return quantity

    return AfterValidator(check)


PositiveQuantity = Annotated[Quantity, _require(lambda x: x > 0, "be greater than 0")]
NotNegativeQuantity = Annotated[Quantity, _require(lambda x: x >= 0, "be 0 or more")]
ShareQuantity = Annotated[Quantity, _require(lambda x: 0 <= x <= 1, "lie between 0 and 1")]

MEAN_TOLERANCE = 1e-3
"""Allowed distance of the mean of noise from 1: the relative error of all simulated times."""


class NoiseSamples(ProfilePart):
    """Quantiles of clean step times at evenly spaced levels 0..1.

    Draws between them by linear interpolation have mean 1.
    """

    kind: Kind
    quantiles: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=2)]
    n: int
    lag1_autocorrelation: Annotated[float, Field(ge=-1, le=1)] | None = None
    note: str = ""

    @model_validator(mode="after")
    def _is_noise(self) -> Self:
        pairs = list(itertools.pairwise(self.quantiles))
        for low, high in pairs:
            if high < low:
                raise ValueError(f"quantiles must not decrease: {high:g} follows {low:g}")
        mean = sum(low + high for low, high in pairs) / 2 / len(pairs)
        if abs(mean - 1) > MEAN_TOLERANCE:
            raise ValueError(f"quantiles have mean {mean:.6g}; divide them by it, noise has mean 1")
        return self
