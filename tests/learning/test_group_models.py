"""A group with rounds trains a model of its own between two updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from simstrag import InputError, Scenario, simulate  # noqa: E402
from simstrag.contract import Damping, Plan, Quorum, Review, Via, View, Weigh  # noqa: E402
from simstrag.learning.gradient_log import GradientLog  # noqa: E402
from simstrag.learning.optimizers import OptimizerChoice  # noqa: E402
from tests.support.plain_training import BATCH, log_of, plain_training  # noqa: E402

WORKERS = 4
KEYS: dict[str, Any] = {
    "workers": WORKERS,
    "samples": 24 * WORKERS * BATCH,
    "step": {"compute": 0.1, "cv": 0.2},
    "server": {"service": 0.002, "push": 0.01},
    "trace": [
        {"time": 0, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 3.0},
        {"time": 3, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 1.0},
        {"time": 3, "node": 2, "resource": "gpu", "kind": "slowdown", "value": 2.5},
    ],
}


class Moving:
    """Groups whose members change in the middle of their rounds; a rank leaves and comes back."""

    groups: Any = (([0, 1], 3), ([2, 3], 2)), (([0, 2], 2), ([3], 4)), (([0, 1, 2, 3], 3),)

    def plan(self, view: View) -> Plan:
        quorums = [
            Quorum(ranks, via=Via.LEADER, rounds=rounds)
            for ranks, rounds in self.groups[view.version % 3]
        ]
        return Plan(quorums, fuse=True, damping=Damping(0.5, shift=1.0), review=Review(updates=1))


def logged(policy: Any, **keys: Any) -> GradientLog:
    return log_of(policy, KEYS | keys)


@pytest.mark.parametrize("policy", ["cgp:groups=rounds,every=2", Moving()])
@pytest.mark.parametrize(
    ("choice", "make", "settings"),
    [
        (OptimizerChoice("sgd", 0.05, 0.9), torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
        (OptimizerChoice("adam", 1e-3), torch.optim.Adam, {"lr": 1e-3}),
    ],
)
def test_parameters_are_those_of_groups_that_train_one_gradient_at_a_time(
    policy: Any, choice: OptimizerChoice, make: Any, settings: Any
) -> None:
    log, plain = logged(policy), plain_training(WORKERS)
    assert len(np.unique(log.gradients["round"])) > 5
    wanted = plain.one_at_a_time(log, make, **settings)
    assert torch.allclose(plain.replayed(log, choice), wanted, rtol=1e-9, atol=1e-12)


def test_a_round_counts_what_was_dropped_after_it() -> None:
    rows = logged(Moving(), samples=1280).gradients
    lost = rows["round"][rows["update"] == 0]
    assert set(lost) & set(rows["round"][rows["update"] > 0])


def test_a_finished_run_gives_the_log_that_was_kept_as_it_ran() -> None:
    case = Scenario(**KEYS | {"samples": 1280}, learner={"batch": BATCH})
    found = GradientLog.of(simulate(case, Moving(), record_gradients=True)).gradients
    kept = logged(Moving(), samples=1280).gradients
    assert found.keys() == kept.keys()
    assert all(own.tolist() == kept[name].tolist() for name, own in found.items())


def test_one_group_with_rounds_ends_where_as_many_updates_of_plain_sgd_do() -> None:
    class Together(Moving):
        groups = ((([0, 1, 2, 3], 4),),) * 3

        def plan(self, view: View) -> Plan:
            return Plan(super().plan(view).quorums)

    rounds, updates = logged(Together()), logged("bsp")
    assert len(updates.times) == 4 * len(rounds.times) == 24
    found, wanted = (
        plain_training(WORKERS).replayed(log, OptimizerChoice("sgd", 0.05))
        for log in (rounds, updates)
    )
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_policy_whose_groups_have_models_of_their_own_trains() -> None:
    learner = {"kind": "real", "task": "tabular", "batch": BATCH}
    run = simulate(Scenario(**KEYS, learner=learner), "cgp:groups=rounds,every=2")
    assert 0.2 < run.summary["accuracy"] < 1


def test_groups_with_rounds_that_weigh_by_the_members_of_an_update_are_refused() -> None:
    class Members(Moving):
        def plan(self, view: View) -> Plan:
            return Plan(super().plan(view).quorums, weigh=Weigh.MEMBERS)

    learner = {"kind": "real", "task": "tabular", "batch": BATCH}
    with pytest.raises(InputError, match="groups with rounds need weigh WORLD for a real learner"):
        simulate(Scenario(**KEYS, learner=learner), Members())
