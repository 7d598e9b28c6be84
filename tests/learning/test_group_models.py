"""A group with rounds trains a model of its own between two updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag import InputError, Scenario, simulate  # noqa: E402
from simstrag.contract import Damping, Plan, Quorum, Review, Via, View, Weigh  # noqa: E402
from simstrag.engine.recorder import Recorder  # noqa: E402
from simstrag.engine.simulate import simulate_into  # noqa: E402
from simstrag.learning import tasks  # noqa: E402
from simstrag.learning.batches import Batches, iid_shards  # noqa: E402
from simstrag.learning.gradient_log import GradientLog  # noqa: E402
from simstrag.learning.gradient_replay import GradientReplay  # noqa: E402
from simstrag.learning.gradients import GradientEngine  # noqa: E402
from simstrag.learning.optimizers import OptimizerChoice  # noqa: E402

WORKERS, BATCH = 4, 8
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


def log_of(policy: Any, **keys: Any) -> GradientLog:
    log = GradientLog()
    scenario = Scenario(**KEYS | keys, learner={"batch": BATCH})
    simulate_into(Recorder(keep_gradients=True, storage=log), scenario, policy, 0)
    return log


def replayed(log: GradientLog, choice: OptimizerChoice) -> torch.Tensor:
    task = tasks.load("tabular")
    drawn = Batches(iid_shards(len(task.inputs), WORKERS, 0), BATCH, 0)
    engine = GradientEngine(task, "fp64", "fp32")
    return GradientReplay(log, engine, drawn, choice).run(1.0).parameters


def one_at_a_time(log: GradientLog, make: Any, **settings: Any) -> torch.Tensor:
    """In plain torch: every gradient at its rank's model, which is trained anew from its pull."""
    task, rows = tasks.load("tabular"), log.gradients
    drawn = Batches(iid_shards(len(task.inputs), WORKERS, 0), BATCH, 0)
    model, known = task.model.double(), dict[int, torch.Tensor]()
    whole = nn.Parameter(nn.utils.parameters_to_vector(model.parameters()).detach())
    optimizer, versions = make([whole], **settings), [whole.detach().clone()]

    def own_model(row: int) -> torch.Tensor:
        alike = [rows[name] == rows[name][row] for name in ("rank", "version", "update")]
        earlier = np.flatnonzero(np.all(alike, 0) & (rows["step"] < rows["step"][row]))
        flat = nn.Parameter(versions[rows["version"][row]].clone())
        own = make([flat], **settings)
        for before in sorted(earlier, key=lambda k: rows["step"][k]):
            members = np.flatnonzero(rows["round"] == rows["round"][before])
            flat.grad = sum(gradient(k) * (BATCH / (WORKERS * BATCH)) for k in members.tolist())
            own.step()
        return flat.detach()

    def gradient(row: int) -> torch.Tensor:
        if row not in known:
            nn.utils.vector_to_parameters(own_model(row), model.parameters())
            of = [rows[name][row : row + 1] for name in ("rank", "step", "samples")]
            samples = torch.from_numpy(drawn.of(*of))
            out, targets = model(task.inputs[samples].double()), task.targets[samples].double()
            each = torch.autograd.grad(task.loss(out, targets).mean(), [*model.parameters()])
            known[row] = torch.cat([part.flatten() for part in each])
        return known[row]

    for update in range(1, len(log.times) + 1):
        own = np.flatnonzero(rows["update"] == update)
        whole.grad = sum(gradient(k) * float(rows["weight"][k]) for k in own.tolist())
        optimizer.step()
        versions.append(whole.detach().clone())
    return whole.detach()


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
    log = log_of(policy)
    assert len(np.unique(log.gradients["round"])) > 5
    found, wanted = replayed(log, choice), one_at_a_time(log, make, **settings)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_round_counts_what_was_dropped_after_it() -> None:
    rows = log_of(Moving(), samples=1280).gradients
    lost = rows["round"][rows["update"] == 0]
    assert set(lost) & set(rows["round"][rows["update"] > 0])


def test_a_finished_run_gives_the_log_that_was_kept_as_it_ran() -> None:
    run = simulate(
        Scenario(**KEYS | {"samples": 1280}, learner={"batch": BATCH}), Moving(),
        record_gradients=True,
    )  # fmt: skip
    found, kept = GradientLog.of(run).gradients, log_of(Moving(), samples=1280).gradients
    assert {name: own.tolist() for name, own in found.items()} == {
        name: own.tolist() for name, own in kept.items()
    }


def test_one_group_with_rounds_ends_where_as_many_updates_of_plain_sgd_do() -> None:
    class Together(Moving):
        groups = ((([0, 1, 2, 3], 4),),) * 3

        def plan(self, view: View) -> Plan:
            return Plan(super().plan(view).quorums)

    choice = OptimizerChoice("sgd", 0.05)
    rounds, updates = log_of(Together()), log_of("bsp")
    assert len(updates.times) == 4 * len(rounds.times) == 24
    found, wanted = replayed(rounds, choice), replayed(updates, choice)
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
