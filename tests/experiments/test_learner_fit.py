"""The fit of the noise-scale formula to trainings of a real learner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from simstrag import InputError, Scenario
from simstrag.experiments import learner_fit
from simstrag.experiments.comparison import costs_of_staleness
from simstrag.experiments.learner_fit import fit_learner
from simstrag.scenario.varied_constants import bounds, kind_of
from tests.support.commands import Call

N, B = 4, 32
PROGRESS, NOISE_SCALE, C_TAU, STALE = 100.0, 50.0, 1.5, 90.0
KEYS: dict[str, Any] = {
    "workers": N, "samples": 8_000, "target_accuracy": 0.5, "step": {"compute": 0.1},
    "server": {"service": 0.001}, "seeds": 3, "policies": ["bsp", "asgd", "backup", "local_sgd"],
    "learner": {"kind": "real", "task": "tabular", "batch": B, "optimizer": {"lr": 0.2}},
}  # fmt: skip
MODEL = {"workers": N, "step": {"compute": 0.1}, "target_progress": 10}


def by_the_formula(
    scenario: Scenario, calls: list[Any], jobs: object, on_progress: object
) -> Iterator[tuple[Any, Any]]:
    """Trainings that take exactly the samples of the formula."""
    for call in calls:
        size = call.share * B * (1 if call.policy == "asgd" else N)
        late = C_TAU * STALE if call.policy == "asgd" else 0.0
        yield call, learner_fit._Reached(PROGRESS * (size + NOISE_SCALE + late), 1.0, STALE)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Trainings are by the formula; or by it changed, where that is asked for."""

    def use(change: Callable[[Any, Any], Any] | None = None) -> None:
        def found(*given: Any) -> Iterator[tuple[Any, Any]]:
            for call, reached in by_the_formula(*given):
                yield call, change(call, reached) if change else reached

        monkeypatch.setattr(learner_fit, "_trainings", found)

    use()
    return use


@pytest.mark.usefixtures("trainings")
def test_trainings_by_the_formula_give_its_constants() -> None:
    fit = fit_learner(Scenario(**KEYS))
    found = [fit.progress, fit.noise_scale, fit.c_tau]
    for estimate, value in zip(found, (PROGRESS, NOISE_SCALE, C_TAU), strict=True):
        np.testing.assert_allclose(estimate, value, rtol=1e-9)
    # a policy without the formula is named and not trained
    assert fit.unmodelled == ("local_sgd",)
    assert set(fit.times) == {"bsp", "asgd", "backup"}


@pytest.mark.usefixtures("trainings")
def test_a_fit_takes_the_server_that_a_comparison_takes_without_a_section() -> None:
    free = fit_learner(Scenario(**{key: KEYS[key] for key in KEYS if key != "server"}))
    assert free.c_tau == fit_learner(Scenario(**KEYS)).c_tau
    assert free.times["asgd"][1] < fit_learner(Scenario(**KEYS)).times["asgd"][1]


def test_a_target_that_asgd_misses_leaves_c_tau_unknown(trainings: Callable[..., None]) -> None:
    def missing(call: Any, reached: Any) -> Any:
        never = reached._replace(samples=np.inf, seconds=np.inf)
        return never if call.policy == "asgd" and call.seed == 2 else reached

    trainings(missing)
    fit = fit_learner(Scenario(**KEYS))
    assert (fit.c_tau, fit.missed) == (None, ("asgd",))
    assert "c_tau" not in fit.section


def test_the_command_trains_and_prints_a_learner_section(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    case = tmp_path / "case.yaml"
    case.write_text(json.dumps(KEYS), encoding="utf-8")
    written = tmp_path / "fitted.yaml"
    code, out, _ = call("fit", str(case), "--json", "--policy", "backup", "--out", str(written))
    found = json.loads(out)
    assert code == 0
    scenario = Scenario(**MODEL, learner=found["learner"])
    assert scenario.learner.batch == B
    assert set(found["errors"]) == {"backup"}
    assert YAML(typ="safe").load(written)["learner"] == found["learner"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": {"batch": B}, "target_accuracy": None}, "nothing to train"),
        ({"target_accuracy": None}, "needs target_accuracy"),
        ({"seeds": 2}, "3 or more"),
        ({"target_accuracy": 0.9999}, "missed target_accuracy"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(
    changes: dict[str, Any], message: str, trainings: Callable[..., None]
) -> None:
    trainings(lambda call, reached: reached._replace(samples=np.inf))
    with pytest.raises(InputError, match=message):
        fit_learner(Scenario(**KEYS | changes))


# -- a scenario that takes the fit -----------------------------------------------------------------


def test_a_fitted_cost_is_varied_within_its_range() -> None:
    case = Scenario(**MODEL, learner={"c_tau": 1.8, "c_tau_range": [1.2, 2.3]})
    assert bounds(case, "learner.c_tau") == (1.2, 2.3)
    assert costs_of_staleness(case) == (1.2, 2.3)
    assert kind_of(case, "learner.c_tau") == "fitted"


def test_a_cost_outside_its_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"c_tau 1 is not in c_tau_range \[1.2, 2.3\]"):
        Scenario(**MODEL, learner={"c_tau_range": [1.2, 2.3]})
