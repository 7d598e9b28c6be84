"""Trains the real learner of a scenario by the gradients of one of its runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from simstrag.errors import InputError
from simstrag.learning.gradient_log import GradientLog
from simstrag.learning.update_rule import UpdateRule, common_rule
from simstrag.scenario.scenario import Scenario

if TYPE_CHECKING:
    from simstrag.learning.training import Trained

EVALUATIONS = 50
"""Evaluations of a run of bsp without contention, where `evaluate_every` is not stated."""


def train(
    scenario: Scenario,
    seed: int,
    log: GradientLog,
    rules: Collection[UpdateRule],
    on_update: Callable[[float, int, None], None] | None = None,
) -> Trained:
    """The training that a run makes, under the run's seed.

    rules: of its plans.
    on_update: called at each evaluation, with its time, the samples applied and None.

    The seed gives the initial parameters, data that are drawn, the shards and the batches, the same
    for every policy.  Raises `InputError` where the task cannot be trained so.
    """
    from simstrag.learning import tasks
    from simstrag.learning.averaging_replay import AveragingReplay
    from simstrag.learning.batches import Batches, dirichlet_shards, iid_shards
    from simstrag.learning.gradient_replay import GradientReplay
    from simstrag.learning.gradients import GradientEngine
    from simstrag.learning.optimizers import OptimizerChoice
    from simstrag.learning.outer_replay import OuterReplay

    rule = common_rule(rules)
    kind = OuterReplay if rule.has_global_model else AveragingReplay
    learner, workers = scenario.learner, scenario.workers
    assert learner.task is not None
    task = tasks.load(learner.task, seed, scenario.folder)
    if learner.dirichlet is None:
        shards = iid_shards(len(task.inputs), workers, seed)
    elif task.label is None:
        raise InputError(
            f"learner.dirichlet: task {learner.task} has no classes to share out; leave it out, "
            "or take a task with a label for each sample"
        )
    else:
        shards = dirichlet_shards(task.label.numpy(), workers, learner.dirichlet, seed)
    replay = (kind if rule.average else GradientReplay)(
        log,
        GradientEngine(task, learner.full, learner.amp, device=learner.device),
        Batches(shards, learner.batch, seed),
        OptimizerChoice(**learner.optimizer.model_dump()),
        rule,
    )
    every = evaluation_interval(scenario)
    own = tasks.one_line_errors(learner.task) if ":" in learner.task else nullcontext()
    with own:
        found = replay.run(every, scenario.target_accuracy, on_update)
    if found.reached == 0:
        raise InputError(
            f"target_accuracy is {scenario.target_accuracy:g}, but before the first update the "
            f"accuracy is {found.evaluations.accuracy[0]:.3g} already: raise it"
        )
    return found


def task_source(scenario: Scenario) -> Path | None:
    """The file of a task of the user's own; None for a built-in one."""
    from simstrag.learning import tasks

    assert scenario.learner.task is not None
    return tasks.source(scenario.learner.task, scenario.folder)


def evaluation_interval(scenario: Scenario) -> float:
    """Seconds between evaluations: as stated, or a fiftieth of the computing of bsp's rounds."""
    if scenario.learner.evaluate_every is not None:
        return scenario.learner.evaluate_every
    if scenario.replays:
        raise InputError(
            "learner.evaluate_every is missing: steps take recorded durations, so nothing says how "
            "long a run is; give the seconds between evaluations"
        )
    step, samples = scenario.inputs.step, scenario.sample_target
    assert samples is not None
    rounds = samples / (scenario.workers * scenario.learner.batch)
    return rounds * step.clean / EVALUATIONS
