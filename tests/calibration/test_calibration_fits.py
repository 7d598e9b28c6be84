"""Fits of time against batch and of slowdown against load: they find the law that is true."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from simstrag.calibration.fits import law_fits
from simstrag.calibration.fits.law_fits import CLEARLY_WORSE, choose_law, tolerances
from simstrag.calibration.fits.visit_statistics import CellEstimate, estimate
from simstrag.profile.batch_laws import batch_seconds
from simstrag.profile.measurements import CONSTANTS, Law
from simstrag.profile.responses import apply_law

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LEVELS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)


def measured(values: Sequence[float], cv: float = 0.01, seed: int = 0) -> list[CellEstimate]:
    """Five visits to each."""
    rng = np.random.default_rng(seed)
    return [estimate(value * np.exp(cv * rng.normal(size=5))) for value in values]


TIMES: dict[str, Callable[[float], float]] = {
    "proportional": lambda b: 0.002 * b,
    "affine": lambda b: 0.01 + 0.002 * b,
    "knee": lambda b: 0.005 + 0.002 * max(b, 12),
}


@pytest.mark.parametrize("law", TIMES)
def test_the_law_of_the_batch_is_found(law: str) -> None:
    found = law_fits.choose_batch_law(BATCHES, measured([TIMES[law](b) for b in BATCHES]))
    assert found.law == law
    said = batch_seconds([*found.constants.values()], [3, 128])
    assert said == pytest.approx([TIMES[law](b) for b in (3, 128)], rel=0.04)


@pytest.mark.thorough
def test_the_constants_of_a_batch_lie_in_their_intervals() -> None:
    held = 0
    for seed in range(40):
        times = measured([TIMES["affine"](b) for b in BATCHES], seed=seed)
        found = law_fits.choose_batch_law(BATCHES, times)
        assert found.intervals is not None
        low, high = found.intervals["per_sample"]
        held += low <= 0.002 <= high
    assert held >= 36


def test_no_constant_of_a_batch_is_negative() -> None:
    """Times that bend down would ask for a negative one."""
    times = np.array([[0.5, 1.0, 4.0, 16.0], [4.0, 3.0, 2.0, 1.0]])
    for law in law_fits.BATCH_LAWS:
        assert np.all(law_fits.fit_batch_law(law, np.array([1.0, 2, 4, 8]), times, np.ones(4)) >= 0)


@pytest.mark.parametrize(
    ("batches", "law"), [((8,), "proportional"), ((8, 16), "affine"), ((4, 8, 16), "affine")]
)
def test_few_batches_make_a_modest_law(batches: tuple[int, ...], law: str) -> None:
    found = law_fits.choose_batch_law(batches, measured([TIMES["affine"](b) for b in batches]))
    assert found.law == law
    assert bool(found.errors) == (len(batches) > 2)


def test_a_batch_visited_once_leaves_no_intervals() -> None:
    found = law_fits.choose_batch_law(
        (1, 2, 4), [estimate([TIMES["affine"](b)]) for b in (1, 2, 4)]
    )
    assert found.intervals is None
    assert found.constants["fixed"] == pytest.approx(0.01)


TRUE: dict[Law, dict[str, float]] = {
    "constant": {"factor": 1.5}, "linear": {"slope": 1.17}, "fair_share": {"demand": 0.7},
    "reciprocal": {"share": 0.28}, "power": {"slope": 0.6, "exponent": 1.7},
    "hinge": {"slope": 1.2, "knee": 0.6},
}  # fmt: skip


def test_a_load_that_does_nothing_is_told_to_do_nothing() -> None:
    found = law_fits.choose_load_law(
        (0.25, 0.75), [estimate([0.98, 1.0, 0.97]), estimate([1.0, 1.1, 1.2])]
    )
    assert (found.law, found.constants, found.intervals) == ("none", {}, {})


@pytest.mark.parametrize("law", TRUE)
def test_the_law_of_a_load_is_found_with_its_constants(law: Law) -> None:
    truth = apply_law(law, TRUE[law], LEVELS).tolist()
    found = law_fits.choose_load_law(LEVELS, measured(truth, cv=0.005))
    assert found.law == law
    assert found.constants == pytest.approx(TRUE[law], rel=0.06)
    assert found.intervals is not None
    for name, (low, high) in found.intervals.items():
        assert low <= found.constants[name] <= high


def test_a_law_that_no_formula_has_is_interpolated() -> None:
    steps = [1.0, 1.0, 3.0, 3.0, 3.02, 6.0]
    levels = (0.25, 0.5, 0.6, 1.0, 1.5, 1.6)
    found = law_fits.choose_load_law(levels, measured(steps, cv=0.002))
    assert min(found.errors, key=found.errors.__getitem__) == found.law or (
        found.errors[found.law] <= CLEARLY_WORSE * min(found.errors.values())
    )
    held = law_fits.predict_slowdown(
        "interpolated", np.zeros(0), np.array(levels), np.array(steps), 0.8
    )
    assert held == pytest.approx(3.0)


def test_the_highest_level_left_out_counts_against_laws_that_cannot_go_on() -> None:
    truth = apply_law("linear", {"slope": 1.0}, LEVELS).tolist()
    found = law_fits.choose_load_law(LEVELS, measured(truth, cv=0.001))
    assert found.errors["interpolated"] > 0.05 > found.errors["linear"]


@pytest.mark.parametrize("law", [law for law in CONSTANTS if CONSTANTS[law]])
def test_the_closed_forms_are_the_least_of_squares(law: Law) -> None:
    """Against a search over all constants, on slowdowns that follow no law at all."""
    u, s = np.array(LEVELS), np.array([1.3, 1.2, 2.2, 2.0, 3.9, 4.1])
    sigma = 0.05 * s
    found = law_fits.fit_load_law(law, u, s[None], sigma)[0]

    def loss(constants: Sequence[float]) -> float:
        named = dict(zip(CONSTANTS[law], constants, strict=True))
        return float((((apply_law(law, named, u) - s) / sigma) ** 2).sum())

    spans = {
        "factor": (1, 5), "slope": (0, 4), "demand": (0, 1), "share": (0, 0.333), "knee": (0, 2.99),
        "exponent": (0.25, 4), "cost": (0, 5),
    }  # fmt: skip
    tried = (np.linspace(*spans[name], 120) for name in CONSTANTS[law])
    assert loss(found) <= min(map(loss, itertools.product(*tried))) + 0.02


@pytest.mark.parametrize("levels", [(1.0,), (1.0, 2.0)])
def test_few_levels_make_a_modest_law(levels: tuple[float, ...]) -> None:
    found = law_fits.choose_load_law(levels, measured([1 + u for u in levels]))
    assert found.law == ("constant" if len(levels) == 1 else found.law)
    assert len(CONSTANTS[found.law]) <= 1
    assert bool(found.errors) == (len(levels) > 1)


def test_a_simpler_law_is_taken_unless_it_is_clearly_worse() -> None:
    sizes = {"a": 1, "b": 2}
    assert choose_law({"a": 0.012, "b": 0.010}, sizes) == "a"
    assert choose_law({"a": 0.014, "b": 0.010}, sizes) == "b"
    assert choose_law({"a": 0.002, "b": 1e-6}, sizes) == "a"
    assert choose_law({"a": 0.02, "b": 0.019}, {"a": 1, "b": 1}) == "b"


def test_no_cell_counts_more_than_one_percent_allows() -> None:
    sure, unsure, once = (
        estimate([0.1, 0.1, 0.1]), estimate([0.1, 0.15, 0.08]), estimate([0.1])
    )  # fmt: skip
    found = tolerances([sure, unsure, once])
    assert found[[0, 2]] == pytest.approx(0.001)
    assert found[1] == pytest.approx(0.1 * unsure.error)
