"""The assumptions of a simulation, in sentences that follow from its scenario and its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simstrag.analysis.text.number_format import number
from simstrag.analysis.text.remark import say
from simstrag.profile.responses import MOST, law_of
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import uses, value_of
from simstrag.timing.collectives import ranks_per_node

FORMULAS = {
    "ring": "the ring formula",
    "tree": "the formula of two pipelined binary trees",
    "halving_doubling": "the formula of recursive halving and doubling",
    "hierarchical": "the formula of rings inside the nodes and between them",
}
ASSUMPTIONS = {
    "hardware": "All ranks have the same hardware: they differ by contention and noise only.",
    "noise": "Noise is drawn anew for every step, independent of the steps before.",
    "lasting noise": "Noise lasts: successive steps of a rank have an autocorrelation of "
    "{lag:.2g}, which falls by the same factor with every step in between.",
    "pace": "Every run has a pace, one factor of all its steps, with a standard deviation of "
    "{pace:%}; policies know the step at pace 1 alone.",
    "fitted batch": "No step of {batch} samples was timed: its time comes from the profile's fit "
    "against the batch, and its noise from the nearest batch timed.",
    "micro-batches": "The {count} micro-batches of a step are assumed to be equal shares of its "
    "work under one noise factor; a deadline stops a step only where one ends.",
    "known constants": "Policies get the clean step, the gain of reduced precision and the "
    "gradient noise scale exactly as they are simulated; a real calibration is off by its error.",
    "overlap": "The host launches while the device computes, and a step takes the longer of the "
    "two: {host:s} and {device:s} in full precision, {amp_host:s} and {amp_device:s} in reduced. A "
    "host that runs ahead into the next step is not modelled.",
    "launching": "Launching bounds clean steps here, and a time does not tell which of the two was "
    "slowed: korel takes every slow step to be the host's, which reduced precision does not "
    "shorten.",
    "device part": "Reduced precision shortens the device's part of a step only; the other part is "
    "{share:%} of an idle step, and contention of the device stretches what reduced precision "
    "leaves in the same proportion.",
    "stand-in": "Reduced precision is a stand-in here: {amp} against {full}.",
    "free switch": "A change of precision costs no time.",
    "all-reduce": "The time of an all-reduce is extrapolated to any number of ranks by {formula}, "
    "with {overlap:%} of it hidden by the backward pass at any precision and contention. It starts "
    "when its last rank is done, at the pace of the slowest network among its members.",
    "free parameters": "After an all-reduce that does not wait for every rank, the ranks outside "
    "it get the parameters at no cost; {who} would pay for them on a real cluster.",
    "no nodes": "The profile tells links inside a node from those between nodes, but nothing says "
    "which ranks share a node (ranks_per_node): each rank is assumed to have a node of its own.",
    "profile's nodes": "The scenario does not place ranks: nodes are filled as those of the "
    "profile were.",
    "links": "Links inside a node of {ranks} ranks are assumed to have {alpha:s} per hop and "
    "{bandwidth} bytes/s, those between nodes {far_alpha:s} and {far_bandwidth} bytes/s, however "
    "many ranks of a node send at once.",
    "server": "The parameter server takes one gradient after the other, {job:s} each, regardless "
    "of load; no other job uses it.",
    "shards": "The {count} shards of the server are assumed to see the same gradients in the same "
    "order, so that the largest, with {largest:%} of {service:s}, is always the last to be done.",
    "fused": "Groups whose sums become one update are assumed to all-reduce among all their ranks "
    "first, while the server waits (fused_allreduce).",
    "server load": "While a policy makes updates through the server, the ranks on node {node} are "
    "assumed to be slower: {slower} as long, however much the server has to do.",
    "no host work": "The host factor of server_load, {factor}, has no effect: steps have no host "
    "work here (host_share is 0).",
    "real model": "A real model learns: task {task}, by the gradients that each run applied. That "
    "its worth of updates carries over to your model is assumed.",
    "progress": "Progress comes from a model, not from training: S_own / (B_noise + S_own + c_tau "
    "S_stale), with a constant noise scale of {noise} samples and c_tau {c_tau}, both assumed. It "
    "does not cover the tuning of learning rate and momentum.",
    "equal precision": "A gradient in reduced precision is worth as much as one in full.",
    "curve": "Accuracy is read from the declared curve of progress, linear between its points.",
    "staleness loss": "Each update of mean staleness takes {loss} from the final accuracy, which "
    "is assumed.",
    "deaf contention": "Contention does not react to the job: a policy that makes a step shorter "
    "leaves the load of the others as it was.",
    "severity": "What the trace's contention adds to a step is multiplied by {severity}, the "
    "scenario's severity.",
    "response": "What a load costs is assumed, not measured: a load u of the trace's {loads} slows "
    "what it loads by {law}, and loads above {most:g} count as {most:g} (contention.response "
    "{response:g}).",
    "measured response": "Utilisation of {resource} in the trace is assumed to be by other jobs "
    'and to stretch {what} as a load "{load}" of that level did: by a {law} law fitted to levels '
    "up to {fitted}{beyond}{measured}, and at any other precision and batch.",
    "durations": "Each step consumes the next recorded duration, regardless of the clock. Reduced "
    "precision divides it by the idle ratio, which overstates the gain where contention is not on "
    "the device.",
    "trace holds": "After the trace ends ({end} s) its last values hold.",
    "trace repeats": "After the trace ends ({end} s) it begins anew.",
    "no failures": "No rank fails, joins or leaves, and reading data takes no time of its own.",
}
"""The sentence of each kind."""

Row = tuple[str, Mapping[str, Any]]
"""The kind of an assumption, and its values."""


def assumptions(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """All sentences. runs: an example of each policy."""
    found = (
        *_steps(scenario, runs), *_communication(scenario, runs), *_nodes(scenario),
        *_server(scenario, runs), *_learning(scenario, runs), *_contention(scenario),
        ("no failures", {}),
    )  # fmt: skip
    return [say(ASSUMPTIONS[kind], **values) for kind, values in found]


def _steps(scenario: Scenario, runs: Sequence[Run]) -> Iterator[Row]:
    yield "hardware", {}
    times, trace, step = scenario.inputs.times, scenario.inputs.trace, scenario.inputs.step
    if step.noise is not None and not (trace is not None and trace.replays):
        lag = step.noise.lag1
        yield "lasting noise" if lag else "noise", {"lag": lag}
    if scenario.pace:
        yield "pace", {"pace": scenario.pace}
    if times is not None and times.compute.kind == "fitted":
        yield "fitted batch", {"batch": scenario.learner.batch}
    if scenario.microbatches > 1:
        yield "micro-batches", {"count": scenario.microbatches}
    yield "known constants", {}
    if not any(run.summary["amp_share"] > 0 for run in runs):
        return
    if step.amp is not None:
        launch, device = step.amp
        yield "overlap", {
            "host": step.host, "device": step.gpu, "amp_host": launch, "amp_device": device,
        }  # fmt: skip
        if step.host >= step.gpu:
            yield "launching", {}
    else:
        yield "device part", {"share": step.host / step.clean}
    profile = scenario.inputs.profile
    w = None if times is None or profile is None else profile.workload
    if w is not None and w.stand_in:
        yield "stand-in", {"amp": w.amp, "full": w.full}
    if step.amp_switch == 0:
        yield "free switch", {}


def _communication(scenario: Scenario, runs: Sequence[Run]) -> Iterator[Row]:
    a = scenario.inputs.allreduce
    if _use(runs, "allreduce") and (a.alpha or a.bytes):
        yield "all-reduce", {"formula": FORMULAS[a.algorithm], "overlap": a.overlap}
    free = [
        run.policy
        for run in runs
        if run.summary["architecture"] == "all-reduce"
        and run.summary["applied"] < scenario.workers * run.summary["updates"]
    ]
    if free:
        yield "free parameters", {"who": free}


def _nodes(scenario: Scenario) -> Iterator[Row]:
    """The speed of links, where links inside a node differ."""
    a = scenario.inputs.allreduce
    differ = (a.intra_alpha, a.intra_bandwidth) != (None, None)
    if not differ and a.algorithm != "hierarchical":
        return
    if scenario.network_places is None:
        yield "no nodes", {}
        return
    if scenario.rank_places is None:
        yield "profile's nodes", {}
    alpha, bandwidth = a.inside
    sizes = ranks_per_node(range(scenario.workers), scenario.network_places)
    yield "links", {
        "ranks": " to ".join(dict.fromkeys(map(str, (min(sizes), max(sizes))))), "alpha": alpha,
        "bandwidth": bandwidth, "far_alpha": a.alpha, "far_bandwidth": a.bandwidth,
    }  # fmt: skip


def _server(scenario: Scenario, runs: Sequence[Run]) -> Iterator[Row]:
    """The time between a gradient and its update at a parameter server."""
    server, load = scenario.inputs.server, scenario.server_load
    if _use(runs, "server"):
        yield "server", {"job": server.job}
    if len(server.shards) > 1:
        yield "shards", {
            "count": len(server.shards), "largest": max(server.shards), "service": server.service,
        }  # fmt: skip
    if server.fused_allreduce:
        yield "fused", {}
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
        yield "server load", {"node": load.node, "slower": slower}
    if load.host > 1 and not works:
        yield "no host work", {"factor": load.host}


def _use(runs: Sequence[Run], section: str) -> bool:
    """Whether updates of any run spend time of a section of the scenario."""
    return any(uses(run.summary, section) for run in runs)


def _learning(scenario: Scenario, runs: Sequence[Run]) -> Iterator[Row]:
    learner = scenario.learner
    if learner.is_real:
        yield "real model", {"task": learner.task}
        return
    yield "progress", {"noise": learner.noise_scale, "c_tau": learner.c_tau}
    if any(run.summary["amp_share"] > 0 for run in runs):
        yield "equal precision", {}
    if learner.curve is not None:
        yield "curve", {}
    if learner.staleness_loss:
        yield "staleness loss", {"loss": learner.staleness_loss}


def _contention(scenario: Scenario) -> Iterator[Row]:
    trace = scenario.inputs.trace
    if trace is None:
        return
    yield "deaf contention", {}
    if (severity := scenario.contention.severity) != 1:
        yield "severity", {"severity": severity}
    if assumed := value_of(scenario, "contention.response"):
        yield "response", {
            "loads": sorted(scenario.inputs.loads), "law": law_of(assumed), "most": MOST,
            "response": assumed,
        }  # fmt: skip
    for response in scenario.inputs.responses:
        u = trace.changes
        most = float(u.value[(u.kind == "utilisation") & (u.resource == response.resource)].max())
        fitted = max(each.level for each in response.levels if not each.held_out)
        whole = "the device's part of a step" if response.part == "device" else "a whole step"
        yield "measured response", {
            "resource": response.resource, "load": response.load, "fitted": fitted,
            "what": "an all-reduce" if response.resource == "net" else whole,
            "law": response.law.replace("_", " "),
            "beyond": f", and is extrapolated up to {number(most)}" if most > fitted else "",
            "measured": response.batch and f" in {response.precision} at batch {response.batch}",
        }  # fmt: skip
    if any(row.kind == "duration" for row in trace.rows):
        yield "durations", {}
    if scenario.trace_end in ("hold", "loop"):
        kind = "trace holds" if scenario.trace_end == "hold" else "trace repeats"
        yield kind, {"end": trace.end}
