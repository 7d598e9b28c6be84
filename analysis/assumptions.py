"""What a simulation takes for granted, in sentences that follow from its scenario and its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simstrag.analysis.cautions import listed
from simstrag.analysis.formats import number, seconds
from simstrag.run import Run
from simstrag.scenario import Scenario

__all__ = ["assumptions"]

FREE_PULL = (
    "After an all-reduce that does not wait for every rank, the ranks outside it get the "
    "parameters at no cost; {names} would pay for it in truth."
)


def assumptions(scenario: Scenario, runs: Sequence[Run], architectures: Sequence[str]) -> list[str]:
    """Sentences. runs: an example of each policy.  architectures: how each makes its updates."""
    return [
        *_steps(scenario, runs),
        *_communication(scenario, runs, architectures),
        *_learning(scenario, runs),
        *_contention(scenario),
        "No rank fails, joins or leaves, and reading data takes no time of its own.",
    ]


def _steps(scenario: Scenario, runs: Sequence[Run]) -> Iterator[str]:
    yield "All ranks have the same hardware: they differ by contention and noise only."
    profile = None if scenario.step is not None else scenario.inputs.profile
    trace = scenario.inputs.trace
    replayed = trace is not None and trace.replays
    if scenario.inputs.step.draw is not None and not replayed:
        text = "Noise is drawn anew for every step, independent of the steps before"
        lag = None if profile is None else profile.step.noise.lag1_autocorrelation
        if lag is not None:
            text += f", although measured steps had a lag-1 autocorrelation of {number(lag, 2)}"
        yield text + "."
    uses_amp = any(run.summary["amp_share"] > 0 for run in runs)
    if not uses_amp:
        return
    step = scenario.inputs.step
    share = step.host / (step.host + step.gpu)
    yield (
        f"Reduced precision shortens the device's part of a step only; the other part is "
        f"{number(100 * share)} % of an idle step, and contention of the device stretches what "
        "reduced precision leaves in the same proportion."
    )
    yield (
        "Policies are told the gain of reduced precision and the clean step exactly as they are "
        "simulated; a real calibration would be off by its error."
    )
    if profile is not None and profile.workload.stand_in:
        w = profile.workload
        yield f"Reduced precision is a stand-in here: {w.amp} against {w.full}."
    if step.amp_switch == 0:
        yield "A change of precision costs no time."


def _communication(
    scenario: Scenario, runs: Sequence[Run], architectures: Sequence[str]
) -> Iterator[str]:
    a, server = scenario.inputs.allreduce, scenario.inputs.server
    if "all-reduce" in architectures and (a.alpha or a.bytes):
        yield (
            "The time of an all-reduce is extrapolated to any number of ranks by the ring formula, "
            f"with {number(100 * a.overlap)} % of it hidden by the backward pass whatever the "
            "precision and the contention; it starts when the last rank is done and goes at the "
            "pace of the slowest network among its members."
        )
    if "server" in architectures or "leader" in architectures:
        yield (
            "The parameter server takes one gradient after the other, "
            f"{seconds(server.service)} each, whatever the load; nobody else uses it."
        )
    free = [
        run.policy
        for run, architecture in zip(runs, architectures, strict=True)
        if architecture == "all-reduce" and min(run.updates["n_own"]) < scenario.workers
    ]
    if free:
        yield FREE_PULL.format(names=listed(free))


def _learning(scenario: Scenario, runs: Sequence[Run]) -> Iterator[str]:
    learner = scenario.learner
    yield (
        "Progress is the noise-scale model, not training: S_own / (B_noise + S_own + c_tau "
        f"S_stale), with a noise scale of {number(learner.noise_scale)} samples that stays the "
        f"same throughout and c_tau {number(learner.c_tau)}, both assumed; how learning rate and "
        "momentum are tuned is not in it."
    )
    if any(run.summary["amp_share"] > 0 for run in runs):
        yield "A gradient in reduced precision is worth as much as one in full: its penalty is 0."
    if learner.curve is not None:
        yield "Accuracy is read from the declared curve of progress, linear between its points."


def _contention(scenario: Scenario) -> Iterator[str]:
    trace = scenario.inputs.trace
    if trace is None:
        return
    yield (
        "Contention does not react to the job: a policy that makes a step shorter leaves the load "
        "of the others as it was."
    )
    if any(row.kind == "duration" for row in trace.rows):
        yield (
            "Recorded durations are consumed one per step whatever the clock says, and reduced "
            "precision divides them by the idle ratio, which overstates it where contention is not "
            "of the device."
        )
    if scenario.trace_end == "hold":
        yield f"After the trace ends ({number(trace.end)} s) its last values hold."
    elif scenario.trace_end == "loop":
        yield f"After the trace ends ({number(trace.end)} s) it begins anew."
