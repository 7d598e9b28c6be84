"""Real training at virtual time: its gradients, samples, updates and results."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag import InputError, Run, Scenario, compare, simulate  # noqa: E402
from simstrag.analysis.derived.ranking import standings  # noqa: E402
from simstrag.analysis.pages.report import report  # noqa: E402
from simstrag.analysis.tables.comparison_tables import accuracy_table, ranking_table  # noqa: E402
from simstrag.analysis.text.cautions import cautions  # noqa: E402
from simstrag.experiments.comparison import Comparison  # noqa: E402
from simstrag.experiments.runner import digest_of_scenario  # noqa: E402
from simstrag.experiments.sensitivity import sensitivity  # noqa: E402
from simstrag.learning import tasks  # noqa: E402
from simstrag.learning.averaging_replay import AveragingReplay  # noqa: E402
from simstrag.learning.batches import Batches, dirichlet_shards, iid_shards  # noqa: E402
from simstrag.learning.gradient_log import GradientLog  # noqa: E402
from simstrag.learning.gradient_replay import GradientReplay  # noqa: E402
from simstrag.learning.gradients import GradientEngine  # noqa: E402
from simstrag.learning.optimizers import OptimizerChoice  # noqa: E402
from simstrag.learning.tasks.task import LearningTask, cross_entropy  # noqa: E402
from simstrag.learning.training import Trained, flushed_denormals  # noqa: E402
from simstrag.runs.run import OF_FORMULA  # noqa: E402
from simstrag.scenario.varied_constants import uncertain  # noqa: E402
from tests.support.plain_training import BATCH, log_of, plain_training  # noqa: E402
from tests.support.refusals import message_of  # noqa: E402

WORKERS = 4
PLAIN = plain_training(WORKERS)
KEYS: dict[str, Any] = {
    "workers": WORKERS,
    "samples": 40 * WORKERS * BATCH,
    "step": {"compute": 0.1, "amp_ratio": 1.5, "cv": 0.2},
    "server": {"service": 0.002, "push": 0.01},
    "trace": [{"time": 0, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 3.0}],
    "microbatches": 4,
}
REAL = {"kind": "real", "task": "tabular", "batch": BATCH, "full": "fp64", "amp": "fp32"}


def scenario(**changes: Any) -> Scenario:
    learner = REAL | changes.pop("learner", {})
    return Scenario(**KEYS | {"learner": learner} | changes)


def logged(policy: str, **keys: Any) -> GradientLog:
    """Of 24 rounds of samples, in which every policy does what sets it apart."""
    return log_of(policy, KEYS | {"samples": 24 * WORKERS * BATCH} | keys)


def batches(task: LearningTask, seed: int = 0) -> Batches:
    return Batches(iid_shards(len(task.inputs), WORKERS, seed), BATCH, seed)


def train(log: GradientLog, task: LearningTask, optimizer: OptimizerChoice, **how: Any) -> Trained:
    engine = GradientEngine(task, how.pop("full", "fp64"), "fp32", how.pop("way", None))
    return GradientReplay(log, engine, batches(task), optimizer).run(1.0, **how)


# -- samples -------------------------------------------------------------------------------------


def test_a_batch_depends_on_seed_rank_and_step_alone() -> None:
    shards = iid_shards(1000, 4, seed=1)
    drawn, other = (Batches(shards, 8, seed) for seed in (1, 2))
    together = drawn.of([0, 3, 3], [5, 5, 6], [8, 8, 8]).reshape(3, 8)
    assert np.array_equal(together[1], drawn.of([3], [5], [8]))
    rows = [*together, other.of([0], [5], [8])]
    assert len({tuple(row) for row in rows}) == 4


def test_a_step_that_was_cut_has_the_first_samples_of_its_batch() -> None:
    drawn = Batches(iid_shards(1000, 4, seed=1), 8, seed=1)
    assert np.array_equal(drawn.of([2], [9], [3]), drawn.of([2], [9], [8])[:3])


def test_every_sample_of_a_shard_is_drawn_equally_often() -> None:
    drawn = Batches(iid_shards(100, 4, seed=1), 20, seed=1)
    found = drawn.of([1] * 5000, range(5000), [20] * 5000)
    counts = np.bincount(found, minlength=100)
    own = counts[counts > 0]
    assert len(own) == 25
    assert ((own - 4000) ** 2 / 4000).sum() < 60  # chi squared of 24 degrees: p = 6e-5


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_shards_hold_every_sample_once(alpha: float) -> None:
    labels = np.arange(1000) % 10
    for shards in (iid_shards(1000, 16, 3), dirichlet_shards(labels, 16, alpha, 3)):
        assert sorted(np.concatenate(shards).tolist()) == list(range(1000))
        assert min(map(len, shards)) > 0


def test_a_small_concentration_leaves_ranks_few_classes() -> None:
    labels = np.arange(1000) % 10

    def classes(alpha: float) -> float:
        shards = dirichlet_shards(labels, 8, alpha, seed=0)
        return float(np.mean([len(np.unique(labels[shard])) for shard in shards]))

    assert classes(0.05) < 5 < classes(100.0)


# -- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tasks.names())
@pytest.mark.parametrize("amp", [False, True])
def test_gradients_computed_together_are_those_computed_alone(name: str, amp: bool) -> None:
    engine = GradientEngine(tasks.load(name), "fp64", "fp32")
    rng = np.random.default_rng(0)
    parameters = [engine.initial + 0.01 * k for k in range(5)]
    sizes = [3, 8, 1, 8, 100]
    samples = torch.from_numpy(rng.integers(0, len(engine.inputs), sum(sizes)))
    weights = torch.from_numpy(rng.random(sum(sizes)))
    together = engine.rows(parameters, samples, weights, sizes, amp)
    parts = zip(parameters, samples.split(sizes), weights.split(sizes), together, strict=True)
    for own, chosen, weighed, row in parts:
        alone = engine.one(own, chosen, weighed, amp)
        assert torch.allclose(row, alone, rtol=1e-4 if amp else 1e-9, atol=1e-6 if amp else 1e-12)


def test_denormals_are_zero_during_training_alone() -> None:
    smallest = torch.finfo(torch.float32).smallest_normal
    with flushed_denormals():
        assert not (torch.tensor(smallest) * 0.5).view(torch.int32).item()
    assert (torch.tensor(smallest) * 0.5).view(torch.int32).item()


def test_a_perceptron_a_network_and_a_convolution_take_their_fastest_ways() -> None:
    found = {name: GradientEngine(tasks.load(name)).way for name in tasks.names()}
    assert (found["digits"], found["characters"], found["digits_cnn"]) == (
        "batched layers", "vmap", "one by one",
    )  # fmt: skip


@pytest.mark.parametrize("way", ["batched layers", "vmap", "one by one"])
def test_reduced_precision_is_that_of_torchs_autocast(way: str) -> None:
    task = tasks.load("digits")
    engine = GradientEngine(task, "fp32", "bf16", way)
    samples = torch.arange(64)
    found = engine.rows([engine.initial] * 2, samples, torch.full((64,), 1 / 32), [32, 32], True)
    model = tasks.load("digits").model
    with torch.autocast("cpu", torch.bfloat16):
        out = model(task.inputs[:32])
        loss = cross_entropy(out.float(), task.targets[:32]).mean()
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])
    exact = engine.one(engine.initial, samples[:32], torch.full((32,), 1 / 32), False)
    assert (found[0] - wanted).norm() < (wanted - exact).norm() / 2


@pytest.mark.parametrize("way", ["batched layers", "vmap", "one by one"])
def test_reduced_precision_below_float64_changes_reduced_steps_alone(way: str) -> None:
    task, samples, weights = tasks.load("digits"), torch.arange(64), torch.full((64,), 1 / 32)
    engine, exact = (GradientEngine(task, "fp64", amp, way) for amp in ("bf16", "fp32"))
    given = [engine.initial] * 2, samples, weights.double(), [32, 32]
    full, reduced = (engine.rows(*given, amp)[0] for amp in (False, True))
    assert torch.equal(full, exact.rows(*given, False)[0])
    assert 1e-4 < (reduced - full).norm() / full.norm() < 1e-1


def rows_of_four() -> torch.Tensor:
    return torch.randn(64, 3, 4, generator=torch.Generator().manual_seed(0))


TIED = nn.Linear(4, 4)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(TIED, nn.Tanh(), TIED, nn.Flatten(), nn.Linear(12, 2)),
        nn.Sequential(nn.Linear(4, 2)),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
    ],
)
def test_layers_that_are_no_perceptron_of_rows_are_computed_as_they_are(model: nn.Module) -> None:
    inputs, targets = rows_of_four(), torch.zeros(64)
    task = LearningTask(
        model, inputs, targets, inputs, targets,
        lambda out, _: out.flatten(1).square().sum(1), lambda out, _: out.flatten(1).sum(1),
    )  # fmt: skip
    task.check()
    engine = GradientEngine(task, "fp64", "fp32")
    samples, weights = torch.arange(8), torch.ones(8, dtype=torch.float64)
    found = engine.rows([engine.initial, 2 * engine.initial], samples, weights, [4, 4], False)
    alone = engine.one(2 * engine.initial, samples[4:], weights[4:], False)
    assert torch.allclose(found[1], alone, rtol=1e-9, atol=1e-12)


# -- updates -------------------------------------------------------------------------------------


POLICIES = (
    "bsp", "asgd", "ssp:bound=1", "backup", "k_async:x=2", "korel", "lb_bsp", "staleness_lr",
    "dropcompute:theta=0.15", "ringmaster", "star_h", "cgp", "lgc", "drain", "amp_all",
)  # fmt: skip


def assert_as_by_torch(
    log: GradientLog, choice: OptimizerChoice, make: Any = torch.optim.SGD, **settings: Any
) -> None:
    found, wanted = PLAIN.replayed(log, choice), PLAIN.one_at_a_time(log, make, **settings)
    reduced = log.gradients["amp"].any()  # in float32 the order of a sum shows
    rtol, atol = (1e-4, 1e-6) if reduced else (1e-9, 1e-12)
    assert torch.allclose(found, wanted, rtol=rtol, atol=atol)
    if reduced:
        full = PLAIN.one_at_a_time(log, make, in_full=True, **settings)
        assert not torch.allclose(found, full, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("policy", POLICIES)
def test_parameters_are_those_of_one_gradient_at_a_time(policy: str) -> None:
    assert_as_by_torch(logged(policy), OptimizerChoice("sgd", 0.05, 0.9), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_a_model_learns_on_without_a_rank_that_fails(policy: str) -> None:
    events = [{"time": 1.05, "rank": 2, "back": 2.5}]
    log = logged(policy, failures={"events": events, "on_fault": "continue", "detection": 0.1})
    assert_as_by_torch(log, OptimizerChoice("sgd", 0.05, 0.9), lr=0.05, momentum=0.9)


@pytest.mark.parametrize(
    ("choice", "make", "settings"),
    [
        (OptimizerChoice("sgd", 0.05, 0.9, nesterov=True, weight_decay=1e-3), torch.optim.SGD,
         {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}),
        (OptimizerChoice("adam", 1e-3), torch.optim.Adam, {"lr": 1e-3}),
        (OptimizerChoice("adamw", 1e-3, betas=(0.8, 0.99), weight_decay=0.1), torch.optim.AdamW,
         {"lr": 1e-3, "betas": (0.8, 0.99), "weight_decay": 0.1}),
    ],
)  # fmt: skip
def test_optimizers_are_torchs(choice: OptimizerChoice, make: Any, settings: Any) -> None:
    assert_as_by_torch(logged("asgd"), choice, make, **settings)


def test_bsp_is_large_batch_training() -> None:
    """20 lines of torch: a round's samples as one batch."""
    log, task = logged("bsp"), tasks.load("tabular")
    found = train(log, task, OptimizerChoice("sgd", 0.05, 0.9)).parameters
    model = tasks.load("tabular").model.double()
    optimizer, drawn = torch.optim.SGD(model.parameters(), 0.05, 0.9), batches(task)
    for step in range(len(log.times)):
        samples = drawn.of(range(WORKERS), [step] * WORKERS, [BATCH] * WORKERS)
        loss = task.loss(model(task.inputs[samples].double()), task.targets[samples]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wanted = nn.utils.parameters_to_vector(model.parameters())
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def averaged_one_at_a_time(log: GradientLog, **settings: Any) -> torch.Tensor:
    """The mean of the models that ranks have at the end, each step by plain torch, in fp64."""
    columns, start = log.gradients, PLAIN.engine.initial
    averages, held = {0: start}, [0] * WORKERS
    models = [nn.Parameter(start.clone()) for _ in range(WORKERS)]
    optimizers = [torch.optim.SGD([model], **settings) for model in models]
    for update in range(1, len(log.times) + 1):
        averages[update] = torch.zeros_like(start)
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            own = np.flatnonzero((columns["update"] == update) & (columns["rank"] == rank))
            if not len(own):
                continue
            assert set(columns["version"][own]) == {held[rank]}
            model.data = averages[held[rank]].clone()
            for step in sorted(columns["step"][own].tolist()):
                model.grad = PLAIN.slope_at(rank, step, model.detach())
                optimizer.step()
            held[rank] = update
            averages[update] += float(columns["weight"][own].sum()) * model.detach()
    return torch.stack([averages[version] for version in held]).mean(0)


@pytest.mark.parametrize("policy", ["local_sgd:h=3", "p_reduce", "p_reduce:p=3"])
def test_averaged_models_are_those_of_one_step_at_a_time(policy: str) -> None:
    log, choice = logged(policy), OptimizerChoice("sgd", 0.05, 0.9)
    wanted = averaged_one_at_a_time(log, lr=0.05, momentum=0.9)
    found = PLAIN.replayed(log, choice, kind=AveragingReplay)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_local_sgd_with_one_step_is_bsp() -> None:
    one, other = (simulate(scenario(), policy) for policy in ("local_sgd:h=1", "bsp"))
    assert one.summary["loss"] == pytest.approx(other.summary["loss"], rel=1e-9)


def test_the_same_run_gives_the_same_bytes_whatever_torchs_threads() -> None:
    log, before = logged("asgd"), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            optimizer = OptimizerChoice("sgd", 0.05)
            found.append(train(log, tasks.load("digits"), optimizer, full="fp32"))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].parameters, found[1].parameters)


def test_only_versions_that_a_gradient_still_needs_are_kept() -> None:
    replay = GradientReplay(logged("asgd"), PLAIN.engine, PLAIN.batches, OptimizerChoice())
    replay.run(1.0)
    assert not replay._live
    assert not replay._ready


# -- runs ----------------------------------------------------------------------------------------


def test_times_are_those_of_the_run_without_a_model() -> None:
    plain = simulate(Scenario(**KEYS, learner={"batch": BATCH}), "korel", 3)
    real, learned = simulate(scenario(), "korel", 3), {"accuracy", "loss", "diverged", *OF_FORMULA}
    assert real.updates == plain.updates
    of_time = plain.summary.keys() - learned
    assert of_time == real.summary.keys() - learned
    assert [real.summary[name] for name in of_time] == [plain.summary[name] for name in of_time]


def test_the_formula_says_nothing_of_a_real_learner() -> None:
    run = simulate(scenario(), "local_sgd:h=2")
    assert [run.summary[name] for name in OF_FORMULA] == [None] * len(OF_FORMULA)
    with pytest.raises(
        InputError, match=r"learner\.noise_scale is 0, not stated or without effect"
    ):
        sensitivity(scenario(), ["bsp", "asgd"], quantities=["learner.noise_scale"])
    assert not {"learner.c_tau", "learner.noise_scale"} & {*uncertain(scenario())}


def test_a_run_is_evaluated_at_the_first_update_past_each_interval() -> None:
    run = simulate(scenario(learner={"evaluate_every": 0.5}), "bsp")
    times = run.evaluations["time"]
    updates = np.array(run.updates["time"])
    due = [min(updates[updates >= k * 0.5]) for k in range(1, int(updates[-1] / 0.5) + 1)]
    assert list(times) == [0.0, *dict.fromkeys([*due, updates[-1]])]
    assert run.summary["accuracy"] == run.evaluations["accuracy"][-1]


def test_a_run_ends_at_the_target_accuracy() -> None:
    whole = simulate(scenario(), "asgd")
    target = whole.evaluations["accuracy"][10]
    run = simulate(scenario(target_accuracy=target), "asgd")
    reached = list(np.array(whole.evaluations["accuracy"]) >= target).index(True)
    assert run.summary["time_to_target"] == whole.evaluations["time"][reached]
    assert run.summary["makespan"] == run.summary["time_to_target"]
    assert run.summary["updates"] == run.evaluations["updates"][-1]


def test_a_run_that_misses_its_target_uses_all_samples_and_says_so() -> None:
    run = simulate(scenario(target_accuracy=0.99), "asgd")
    assert any("target_accuracy 0.99 was missed: after all" in text for text in run.warnings)
    assert run.summary["time_to_target"] is None
    assert run.summary["samples"] == KEYS["samples"]


def test_training_that_diverges_ends_and_says_when() -> None:
    run = simulate(scenario(learner={"optimizer": {"lr": 1e6}}), "bsp")
    assert 0 < run.summary["diverged"] <= run.summary["makespan"]
    assert any(text.startswith("training diverged after") for text in run.warnings)


def test_a_run_tells_how_far_its_training_is() -> None:
    told: list[tuple[float, int, float | None]] = []
    run = simulate(scenario(), "asgd", on_update=lambda *update: told.append(update))
    times, samples = run.evaluations["time"][1:], run.evaluations["samples"][1:]
    assert told == [(*pair, None) for pair in zip(times, samples, strict=True)]


def test_the_report_of_a_run_draws_its_accuracy(tmp_path: Path) -> None:
    simulate(scenario(target_accuracy=0.5), "bsp", out=tmp_path / "run")
    page = report(tmp_path / "run").read_text()
    assert "<h2>Accuracy over time</h2>" in page
    assert "Accuracy over time under bsp" in page  # the picture
    assert "accuracy-over-time" in page
    simulate(Scenario(**KEYS), "bsp", out=tmp_path / "plain")
    assert "Accuracy over time" not in report(tmp_path / "plain").read_text()


def test_a_run_keeps_its_evaluations_on_disk(tmp_path: Path) -> None:
    run = simulate(scenario(), "bsp", out=tmp_path / "run")
    again = Run.read(tmp_path / "run")
    assert again.evaluations == run.evaluations
    assert again.frame("evaluations").columns.tolist() == [
        "time", "updates", "samples", "accuracy", "loss",
    ]  # fmt: skip


def test_the_example_reaches_its_target() -> None:
    case = Scenario.read(Path(__file__).parents[2] / "examples/real-learning.yaml")
    for policy in case.policies:
        run = simulate(case, policy)
        assert run.summary["time_to_target"] == run.summary["makespan"] < 20, policy


def compared(*policies: str, seeds: int = 2, rounds: int = 10, **changes: Any) -> Comparison:
    """A comparison on so many rounds of samples."""
    keys = {"samples": rounds * WORKERS * BATCH, "policies": policies, "seeds": seeds}
    return compare(scenario(**keys | changes), jobs=1)


def test_a_comparison_says_who_is_as_accurate() -> None:
    comparison = compared("bsp", "asgd", "backup", seeds=3, rounds=20, learner={"margin": 1.0})
    assert set(comparison.evaluations["policy"]) == {"bsp", "asgd", "backup"}
    assert "accuracy" in comparison.ranking
    table = accuracy_table(standings(comparison))
    verdict = table.headers.index("as accurate as bsp")
    assert {row[0]: row[verdict] for row in table.rows} == {
        "bsp": "", "asgd": "yes", "backup": "yes",
    }  # fmt: skip


def test_a_policy_that_missed_the_target_has_no_place_and_the_report_says_why() -> None:
    learner = {"task": "digits", "optimizer": {"lr": 0.4, "momentum": 0.9}}
    found = standings(compared("bsp", "asgd", rounds=80, target_accuracy=0.7, learner=learner))
    assert [p.place for p in found.policies] == [(1, 1), None]
    notes = " ".join(ranking_table(found).notes)
    assert "for asgd: the target was not reached under every seed" in notes
    assert "M: not defined" not in notes
    reached = {row[0]: row[3] for row in accuracy_table(found).rows}
    assert reached == {"bsp": "2 of 2", "asgd": "0 of 2"}


def test_a_comparison_with_a_diverged_bsp_says_that_it_shows_no_accuracy() -> None:
    found = standings(compared("bsp", "asgd", learner={"optimizer": {"lr": 1e6}}))
    assert "bsp's own training diverged under 2 of 2 seeds" in cautions(found)[0]


def test_a_policy_that_is_not_shown_to_be_as_accurate_is_not_chosen() -> None:
    chosen = [
        compared("bsp", "asgd", seeds=3, rounds=20, learner={"margin": m, "optimizer": {"lr": 0.5}})
        .answer.to_dict()["choice"] for m in (1.0, 0.0)
    ]  # fmt: skip
    assert chosen == ["asgd", "bsp"]


def test_one_seed_shows_no_accuracy_and_seeds_differ_also_without_noise() -> None:
    found = standings(compared("bsp", "asgd", seeds=1, step={"compute": 0.1}))
    assert not found.certain
    assert math.isnan(found.accuracy_gap("asgd").low)
    assert "asgd" in found.incomparable


OWN = """
from dataclasses import replace
from simstrag.learning.tasks.synthetic import tabular
from tests.support.refusals import message_of

def make(seed):
    return tabular(seed)
"""


def with_own_task(folder: Path, module: str) -> Scenario:
    """A scenario in a file beside the module of its task."""
    (folder / f"{module}.py").write_text(OWN)
    learner = REAL | {"task": f"{module}:make"}
    (folder / "own.yaml").write_text(json.dumps(KEYS | {"learner": learner}))
    return Scenario.read(folder / "own.yaml")


def test_a_task_of_the_users_is_found_beside_the_scenario(tmp_path: Path) -> None:
    case = with_own_task(tmp_path, "own_task")
    assert simulate(case).summary["accuracy"] == simulate(scenario()).summary["accuracy"]


def test_a_kept_run_is_of_the_task_as_it_is_now(tmp_path: Path) -> None:
    case = with_own_task(tmp_path, "kept_task")
    before = digest_of_scenario(case)
    assert digest_of_scenario(case) == before
    (tmp_path / "kept_task.py").write_text(OWN + "# other\n")
    assert digest_of_scenario(case) != before


def test_a_task_that_draws_without_a_seed_is_the_same_in_every_run(tmp_path: Path) -> None:
    (tmp_path / "drawn_task.py").write_text(
        OWN + "import torch\n\ndef drawn(seed):\n"
        "    return replace(tabular(seed), inputs=torch.rand(8192, 10))\n"
    )
    state = torch.get_rng_state()
    drawn = [tasks.load("drawn_task:drawn", seed, tmp_path).inputs for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(state, torch.get_rng_state())


def test_a_run_says_which_torch_trained_it() -> None:
    assert simulate(scenario()).provenance["torch"] == torch.__version__


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner": {"task": "digit"}}, "there is no task 'digit'; known: .*'digits'"),
        ({"learner": {"task": "nowhere:make"}}, "No module named 'nowhere'"),
        ({"workers": 4096, "samples": 4096 * 8}, "a batch of 8 is larger than the shard of rank"),
        ({"learner": {"dirichlet": 1.0}}, "learner.dirichlet: task tabular has no classes"),
    ],
)
def test_a_task_that_cannot_be_trained_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        simulate(scenario(**changes))


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        ({"kind": "real", "task": None}, "kind real needs a task"),
        ({"kind": "real", "task": "digits", "curve": [[0, 0], [1, 1]]}, "curve is a key of kind"),
        ({"kind": "real", "task": "digits", "c_tau": 2.0}, "c_tau is a key of kind noise-scale"),
        ({"task": "digits"}, "task is a key of kind real; this one is noise-scale"),
        ({"margin": 0.1}, "margin is a key of kind real; this one is noise-scale"),
        ({"optimizer": {"kind": "adam", "momentum": 0.9}}, "momentum is not a setting of adam"),
        ({"optimizer": {"nesterov": True}}, "nesterov needs a momentum above 0"),
        ({"kind": "real", "task": "digits", "amp": "fp32"}, "only beside full: fp64"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(learner: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Scenario(workers=2, samples=64, step={"compute": 0.1}, learner=learner)


def test_a_real_learner_needs_a_budget_of_samples_that_memory_holds() -> None:
    with pytest.raises(InputError, match="give samples, beside it target_accuracy"):
        Scenario(workers=2, target_accuracy=0.9, step={"compute": 0.1}, learner=REAL)
    words = "a run has 400,000,000 gradients of learner.batch 8, more than memory is meant for"
    assert re.search(words, message_of(lambda: scenario(samples=3_200_000_000)))


def test_recorded_durations_train_where_an_interval_of_evaluations_is_stated() -> None:
    recorded = [
        {"time": step, "node": node, "resource": "step", "kind": "duration", "value": 1 + node}
        for node in range(WORKERS)
        for step in range(3)
    ]
    keys = {"samples": 3 * WORKERS * BATCH, "step": None, "trace": recorded}
    with pytest.raises(
        InputError, match=r"learner\.evaluate_every is missing: steps take recorded"
    ):
        simulate(scenario(**keys))
    run = simulate(scenario(**keys, learner={"evaluate_every": 5.0}))
    assert run.evaluations["time"] == pytest.approx([0, 8, 12], abs=0.2)  # the slowest takes 4 s


def test_a_target_that_is_met_at_once_is_refused() -> None:
    with pytest.raises(InputError, match=r"before the first update the accuracy is .* raise it"):
        simulate(scenario(target_accuracy=1e-6, learner={"task": "digits"}), "bsp")


def test_a_comparison_whose_bsp_misses_the_target_says_what_it_reached() -> None:
    case = scenario(target_accuracy=0.999, policies=["bsp", "asgd"])
    done: list[int] = []
    with pytest.raises(InputError, match=r"bsp missed target_accuracy 0.999 under seed 0; its acc"):
        compare(case, seeds=3, jobs=1, on_progress=lambda *count: done.append(count[0]))
    assert max(done, default=0) <= 1  # at once, and not after all the runs
    with pytest.raises(InputError, match=r"its training diverged after .* s: raise samples"):
        compare(case.replaced(learner=REAL | {"optimizer": {"lr": 1e6}}), jobs=1)


def a_task(model: nn.Module, scale: float = 1.0) -> LearningTask:
    data = scale * torch.randn(64, 4), torch.zeros(64, dtype=torch.int64)
    return LearningTask(model, *data, *data, cross_entropy, cross_entropy)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_targets": torch.zeros(3)}, "64 test_inputs and 3 test_targets; want as many"),
        ({"inputs": np.zeros((64, 4))}, "inputs is of type ndarray; want a tensor"),
        ({"score": lambda out, _: out.mean()}, r"score of 8 samples has shape \(\); want one"),
        ({"score": lambda out, _: out[:, 0] * torch.nan}, "score is nan before the first update"),
        ({"label": torch.zeros(3)}, r"label has shape \(3,\); want \(64,\)"),
        ({"model": nn.Flatten()}, "no parameter of its model requires a gradient"),
    ],
)
def test_a_task_whose_parts_do_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(a_task(nn.Linear(4, 2)), **changes).check()


def test_whatever_a_task_of_the_users_raises_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken_task.py").write_text(
        OWN + "\ndef wide(seed):\n"
        "    task = tabular(seed)\n    return replace(task, inputs=task.inputs[:, :3])\n"
        "def none(seed):\n    return None\n"
    )
    for name, words in (("wide", "RuntimeError: mat1"), ("none", "returned NoneType; want a Lea")):
        with pytest.raises(InputError, match=f"task 'broken_task:{name}': {words}"):
            tasks.load(f"broken_task:{name}", 0, tmp_path)


def test_what_a_task_raises_in_training_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_task.py").write_text(
        OWN + "\ndef late(seed):\n    return replace(tabular(seed), loss=at_most_8)\n\n"
        "def at_most_8(out, y):\n    if len(out) > 8:\n        raise ValueError('more\\nthan 8')\n"
        "    return (out.squeeze(-1) - y).square()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"^task 'late_task:late': ValueError: more than 8$"):
        simulate(scenario(learner={"task": "late_task:late"}))


def a_random_loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(nn.functional.dropout(out), y)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (a_task(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))), "BatchNorm, .* GroupNorm"),
        (a_task(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))), "dropout, .* set its p to 0"),
        (replace(a_task(nn.Linear(4, 2)), loss=a_random_loss),
         "the loss of the same samples differs from one call to the next"),
        (a_task(nn.Linear(4, 2), float("nan")), "its loss is nan before the first update"),
    ],
)  # fmt: skip
def test_a_model_whose_gradients_are_no_function_of_its_samples_is_refused(
    task: LearningTask, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        task.check()
