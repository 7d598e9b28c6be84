"""The assumptions of a simulation, in sentences that follow from its scenario and its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simstrag.analysis.text.cautions import REDUCING, SERVING, assumed_response
from simstrag.analysis.text.number_format import join, number, percent, seconds
from simstrag.profile.responses import MOST, law_of
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.collectives import ranks_per_node

FORMULAS = {
    "ring": "the ring formula",
    "tree": "the formula of two pipelined binary trees",
    "halving_doubling": "the formula of recursive halving and doubling",
    "hierarchical": "the formula of rings inside the nodes and between them",
}


def assumptions(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """All sentences. runs: an example of each policy."""
    return [
        *_steps(scenario, runs),
        *_communication(scenario, runs),
        *_nodes(scenario),
        *_server(scenario, runs),
        *_learning(scenario, runs),
        *_contention(scenario),
        "No rank fails, joins or leaves, and reading data takes no time of its own.",
    ]


def _steps(scenario: Scenario, runs: Sequence[Run]) -> Iterator[str]:
    yield "All ranks have the same hardware: they differ by contention and noise only."
    times, trace, step = scenario.inputs.times, scenario.inputs.trace, scenario.inputs.step
    if step.noise is not None and not (trace is not None and trace.replays):
        lag = step.noise.lag1
        yield (
            "Noise is drawn anew for every step, independent of the steps before."
            if not lag
            else f"Noise lasts: successive steps of a rank have an autocorrelation of "
            f"{number(lag, 2)}, which falls by the same factor with every step in between."
        )
    if scenario.pace:
        yield (
            "Every run has a pace, one factor of all its steps, with a standard deviation of "
            f"{percent(scenario.pace)} %; policies know the step at pace 1 alone."
        )
    if times is not None and times.compute.kind == "fitted":
        yield (
            f"No step of {scenario.learner.batch} samples was timed: its time comes from the "
            "profile's fit against the batch, and its noise from the nearest batch timed."
        )
    if scenario.microbatches > 1:
        yield (
            f"The {scenario.microbatches} micro-batches of a step are assumed to be equal shares "
            "of its work under one noise factor; a deadline stops a step only where one ends."
        )
    yield (
        "Policies get the clean step, the gain of reduced precision and the gradient noise scale "
        "exactly as they are simulated; a real calibration would be off by its error."
    )
    if not any(run.summary["amp_share"] > 0 for run in runs):
        return
    if step.amp is not None:
        launch, device = step.amp
        yield (
            "The host launches while the device computes, and a step takes the longer of the two: "
            f"{seconds(step.host)} and {seconds(step.gpu)} in full precision, {seconds(launch)} "
            f"and {seconds(device)} in reduced. A host that runs ahead into the next step is not "
            "modelled."
        )
        if step.host >= step.gpu:
            yield (
                "A time does not tell whether the host or the device was slowed. Launching bounds "
                "clean steps here, so korel takes every slow step to be the host's, which reduced "
                "precision does not shorten."
            )
    else:
        share = step.host / step.clean
        yield (
            f"Reduced precision shortens the device's part of a step only; the other part is "
            f"{number(100 * share)} % of an idle step, and contention of the device stretches what "
            "reduced precision leaves in the same proportion."
        )
    profile = scenario.inputs.profile
    w = None if times is None or profile is None else profile.workload
    if w is not None and w.stand_in:
        yield f"Reduced precision is a stand-in here: {w.amp} against {w.full}."
    if step.amp_switch == 0:
        yield "A change of precision costs no time."


def _communication(scenario: Scenario, runs: Sequence[Run]) -> Iterator[str]:
    a = scenario.inputs.allreduce
    if REDUCING & _used(runs) and (a.alpha or a.bytes):
        yield (
            "The time of an all-reduce is extrapolated to any number of ranks by "
            f"{FORMULAS[a.algorithm]}, with {number(100 * a.overlap)} % of it hidden by the "
            "backward pass at any precision and contention. It starts when its last rank is done "
            "and runs at the pace of the slowest network among its members."
        )
    free = [
        run.policy
        for run in runs
        if run.summary["architecture"] == "all-reduce"
        and run.summary["applied"] < scenario.workers * run.summary["updates"]
    ]
    if free:
        yield (
            "After an all-reduce that does not wait for every rank, the ranks outside it get the "
            f"parameters at no cost; {join(free)} would pay for them on a real cluster."
        )


def _nodes(scenario: Scenario) -> Iterator[str]:
    """The speed of links, where links inside a node differ."""
    a = scenario.inputs.allreduce
    differ = (a.intra_alpha, a.intra_bandwidth) != (None, None)
    if not differ and a.algorithm != "hierarchical":
        return
    if scenario.network_places is None:
        yield (
            "The profile tells links inside a node from those between nodes, but nothing says "
            "which ranks share a node (ranks_per_node): each rank is assumed to have a node of its "
            "own, so every message goes over the links between nodes."
        )
        return
    if scenario.rank_places is None:
        yield "The scenario does not place ranks: nodes are filled as those of the profile were."
    alpha, bandwidth = a.inside
    sizes = ranks_per_node(range(scenario.workers), scenario.network_places)
    many = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    yield (
        f"Links inside a node of {many} ranks are assumed to have {seconds(alpha)} per hop and "
        f"{number(bandwidth)} bytes/s, those between nodes {seconds(a.alpha)} and "
        f"{number(a.bandwidth)} bytes/s, however many ranks of a node send at once."
    )


def _server(scenario: Scenario, runs: Sequence[Run]) -> Iterator[str]:
    """The time between a gradient and its update at a parameter server."""
    server, load = scenario.inputs.server, scenario.server_load
    if SERVING & _used(runs):
        yield (
            "The parameter server takes one gradient after the other, "
            f"{seconds(server.job)} each, regardless of load; no other job uses it."
        )
    if len(server.shards) > 1:
        yield (
            f"The {len(server.shards)} shards of the server are assumed to see the same gradients "
            f"in the same order, so that the largest, with {number(100 * max(server.shards))} % of "
            f"{seconds(server.service)}, is always the last to be done."
        )
    if server.fused_allreduce:
        yield (
            "Groups whose sums become one update are assumed to all-reduce among all their ranks "
            "first, while the server waits (fused_allreduce)."
        )
    if load is None:
        return
    works = bool(scenario.inputs.step.host)
    factors = {"host work": load.host if works else 1.0, "communication": load.net}
    slower = [
        f"their {what} takes {number(factor)} times"
        for what, factor in factors.items()
        if factor > 1
    ]
    if slower:
        yield (
            "While a policy makes updates through the server, the ranks on node "
            f"{load.node} are assumed to be slower: {join(slower)} as long, however much the "
            "server has to do."
        )
    if load.host > 1 and not works:
        yield (
            f"The host factor of server_load, {number(load.host)}, has no effect: steps have no "
            "host work here (host_share is 0)."
        )


def _used(runs: Sequence[Run]) -> set[str]:
    """The architectures of all policies; one policy may have several."""
    return {way for run in runs for way in run.summary["architecture"].split(" + ")}


def _learning(scenario: Scenario, runs: Sequence[Run]) -> Iterator[str]:
    learner = scenario.learner
    if learner.is_real:
        yield (
            f"A real model learns: task {learner.task}, by the gradients that each run applied. "
            "That its worth of updates carries over to your model is assumed."
        )
        return
    yield (
        "Progress comes from a model, not from training: S_own / (B_noise + S_own + c_tau "
        f"S_stale), with a noise scale of {number(learner.noise_scale)} samples that stays the "
        f"same throughout and c_tau {number(learner.c_tau)}, both assumed. The model does not "
        "cover the tuning of learning rate and momentum."
    )
    if any(run.summary["amp_share"] > 0 for run in runs):
        yield "A gradient in reduced precision is worth as much as one in full: its penalty is 0."
    if learner.curve is not None:
        yield "Accuracy is read from the declared curve of progress, linear between its points."
    if learner.staleness_loss:
        yield (
            f"Each update of mean staleness takes {number(learner.staleness_loss)} from the final "
            "accuracy, which is assumed."
        )


def _contention(scenario: Scenario) -> Iterator[str]:
    trace = scenario.inputs.trace
    if trace is None:
        return
    yield (
        "Contention does not react to the job: a policy that makes a step shorter leaves the load "
        "of the others as it was."
    )
    if (severity := scenario.contention.severity) != 1:
        yield (
            f"What the trace's contention adds to a step is multiplied by {number(severity)}, the "
            "scenario's severity."
        )
    if assumed := assumed_response(scenario):
        yield (
            f"What a load costs is assumed, not measured: a load u of the trace's "
            f"{join(sorted(scenario.inputs.loads))} slows what it loads by {law_of(assumed)}, and "
            f"loads above {MOST:g} count as {MOST:g} (contention.response {assumed:g})."
        )
    for response in scenario.inputs.responses:
        u = trace.changes
        most = float(u.value[(u.kind == "utilisation") & (u.resource == response.resource)].max())
        fitted = max(each.level for each in response.levels if not each.held_out)
        whole = "the device's part of a step" if response.part == "device" else "a whole step"
        what = "an all-reduce" if response.resource == "net" else whole
        measured = f"{response.precision} at batch {response.batch}" if response.batch else ""
        beyond = f", and is extrapolated up to {number(most)}" if most > fitted else ""
        yield (
            f"Utilisation of {response.resource} in the trace is assumed to be by other jobs and "
            f'to stretch {what} as a load "{response.load}" of that level did: by a '
            f"{response.law.replace('_', ' ')} law fitted to levels up to {number(fitted)}"
            f"{beyond}{measured and f' in {measured}'}, and at any other precision and batch."
        )
    if any(row.kind == "duration" for row in trace.rows):
        yield (
            "Each step consumes the next recorded duration, regardless of the clock. Reduced "
            "precision divides it by the idle ratio, which overstates the gain where contention is "
            "not on the device."
        )
    if scenario.trace_end == "hold":
        yield f"After the trace ends ({number(trace.end)} s) its last values hold."
    elif scenario.trace_end == "loop":
        yield f"After the trace ends ({number(trace.end)} s) it begins anew."
