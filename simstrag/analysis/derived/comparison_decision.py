"""The decision that a comparison supports, as values: the bill, three lanes, and the choice.

A lane holds the policies that may change training equally much:

- A: every update has all samples of a round, none late, left out, or in reduced precision;
- B: as A, but for some of that;
- C: anything else: asynchrony, independent groups, averaged models.

A policy declares its lane, which thus does not depend on what its runs had reason to do.  One that
declares none has the lane of what its runs did.  Parameters may go further than a policy declares:
where an update has less than half of the samples of a round, its lane is C.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simstrag import policies
from simstrag.analysis.derived.ranking import Standing, Standings, faster
from simstrag.arrays import Floats
from simstrag.contract.policy import LANES
from simstrag.experiments import paired_statistics
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.decision import (
    MODEL_ERROR,
    OWN,
    PolicyDecision,
    Setting,
    SettingSamples,
    alternatives,
)
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate, within
from simstrag.experiments.placeholders import Placeholders
from simstrag.scenario.varied_constants import assumed

ROUND = 1e-6
"""Relative difference up to which an update has all samples of a round."""
HALF = 0.5
"""Share of a round's samples that an update of lane A or B has at least."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What contention cost synchronous training: bsp under the trace against bsp without it.

    share: of its GPU-hours.
    hours: GPU-hours.
    waiting: the share of `hours` in which ranks waited for other ranks.
    node: the node for which ranks waited longest, or the worker where each is several ranks; None
        without waiting, on a single node, or where its share is not shown to be above 0.
    blame: its share of all waiting for ranks.
    """

    share: Estimate
    hours: Estimate
    waiting: Estimate
    node: int | None
    blame: Estimate


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of a policy on training, means over seeds.

    joined: samples of an update, as a share of a round's.
    late: updates between the pull and the application of a gradient.
    lost: share of the steps that were thrown away.
    cut: share of the samples that a deadline left out.
    reduced: share of the steps in reduced precision.
    rebatched: share of the steps with another number of samples.
    groups: most groups of ranks that updated independently, under the first seed.
    averages: whether models are averaged instead of gradients.
    may_reduce: whether the policy may reduce precision, even if its runs had no reason to.
    declared: the lane that the policy declares; None where it declares none.
    """

    joined: float
    late: float
    lost: float
    cut: float
    reduced: float
    rebatched: float
    groups: int
    averages: bool
    may_reduce: bool
    declared: str | None = None

    @property
    def lane(self) -> str:
        """The lane, a letter of `LANES`: the declared one, or C where an update has too little."""
        declared = self.declared or self.measured
        return "C" if self.joined < HALF else declared

    @property
    def measured(self) -> str:
        """The lane of what the runs did."""
        part = self.joined < HALF or (self.late > 0 and self.joined <= HALF)
        if self.averages or self.groups > 1 or part:
            return "C"
        whole = abs(self.joined - 1) < ROUND and not self.may_reduce
        return "A" if whole and not (self.late or self.cut or self.reduced) else "B"


@dataclass(frozen=True, kw_only=True)
class ComparisonDecision(PolicyDecision):
    """A comparison's decision.

    samples: policies whose times do not compare are left out: `Standings.incomparable`.
    bill: None without contention, or where it is not known without it.
    lanes: the policies of each lane but bsp, best mean first.
    effects: by policy, bsp included.
    """

    s: Standings
    bill: Bill | None
    lanes: Mapping[str, tuple[Standing, ...]]
    effects: Mapping[str, Effects]

    @cached_property
    def shown(self) -> set[str]:
        """The policies whose whole interval of the difference from bsp is below 0."""
        s = self.s
        return {p.policy for p in s.others if faster(p.difference[s.decides])}

    @cached_property
    def turns(self) -> Mapping[str, Mapping[float, str]] | None:
        """By constant that was varied, the other choices if it were known to have a value.

        The value is as stated (NaN), or one that was tried.  Only choices that intervals tell apart
        from this one count.  None where one seed tells nothing.
        """
        s = self.s
        if s.seeds < 2 and not s.certain:
            return None
        least = MODEL_ERROR * self.states[OWN][BASELINE]
        clear = self.shown | {p.policy for p in s.others if p.difference[s.decides].low > -least}
        seeds = sorted(s.scenario.seed_list)
        searched = [seeds.index(seed) for seed in s.comparison.search_seeds]
        found = {}
        for key in self._tried:
            known = alternatives(self.samples, key, self.candidates, self.lane_of, clear, searched)
            found[key] = {
                at: choice.policy for at, choice in known.items() if self.safe not in choice.alike
            }
        return {key: choices for key, choices in found.items() if choices}

    @cached_property
    def placeholders(self) -> Placeholders:
        """Those of the scenario, and which of them decide the choice."""
        scenario, decisive = self.s.scenario, None
        if self.turns is not None and {*self._tried} & {*scenario.placeholders}:
            decisive = [key for key in scenario.placeholders if key in self.turns]
        return Placeholders.of(scenario, self._tried, decisive)

    @property
    def _tried(self) -> list[str]:
        """The constants that were varied."""
        return list(dict.fromkeys(key for key, _ in self.states if key))

    def best(self, lane: str) -> Standing | None:
        """Of a lane the choice, or else the best mean among those shown to be faster than bsp."""
        shown = [p for p in self.lanes[lane] if p.policy in self.shown]
        return next((p for p in shown if p.policy == self.safe), next(iter(shown), None))


def decide(s: Standings) -> ComparisonDecision:
    """The decision of a comparison."""
    effects = {p.policy: _effects(s, p) for p in s.policies}
    lane_of = {name: found.lane for name, found in effects.items()}
    others = s.others
    lanes = {lane: tuple(p for p in others if lane_of[p.policy] == lane) for lane in LANES}
    return ComparisonDecision(
        samples=_samples(s, s.incomparable), lane_of=lane_of,
        s=s, bill=_bill(s), lanes=lanes, effects=effects,
    )  # fmt: skip


def _bill(s: Standings) -> Bill | None:
    trace, workers = s.scenario.inputs.trace, s.scenario.workers
    if trace is None or s.delay < NEGLIGIBLE:
        return None
    column = s.comparison.column
    whole, clean = (
        np.fmax(*(column(BASELINE, name, v) for name in ("makespan", "time_to_target")))
        for v in ("contended", "clean")
    )
    lost = paired_statistics.ratio(whole - clean, whole)
    devices = s.scenario.gpus / 3600
    hours = Estimate(*(devices * x for x in s.gap(whole, clean)))
    table = s.comparison.waiting
    case = s.scenario
    places = np.array((case.places if case.worker is None else None) or range(workers))
    by_node, clean_waits = (
        table[table["variant"] == v]
        .pivot(index="seed", columns="rank", values="seconds")
        .T.groupby(places)
        .sum()
        .T
        for v in ("contended", "clean")
    )  # seeds x nodes
    total = by_node.sum(axis=1).to_numpy()
    more = total - clean_waits.sum(axis=1).to_numpy()
    waiting = paired_statistics.ratio(more, workers * (whole - clean))
    node = int(by_node.columns.to_numpy()[by_node.mean().argmax()])
    blame = within(paired_statistics.ratio(by_node[node].to_numpy(), total), 0.0, 1.0)
    named = total.any() and by_node.shape[1] > 1 and not blame.low <= 0
    return Bill(lost, hours, waiting, node if named else None, blame)


def _effects(s: Standings, p: Standing) -> Effects:
    scenario, mean = s.scenario, s.known_mean
    column = s.comparison.column
    started = column(p.policy, "started").sum()
    samples = column(p.policy, "samples").sum() / column(p.policy, "updates").sum()
    lost = column(p.policy, "dropped").sum() + column(p.policy, "aborted").sum()
    policy = policies.load(p.policy)
    return Effects(
        float(samples / (scenario.workers * scenario.learner.batch)),
        mean(p.policy, "mean_staleness"),
        float(lost / started),
        mean(p.policy, "cut_share"),
        mean(p.policy, "amp_share"),
        mean(p.policy, "rebatched_share"),
        max((s.comparison.examples[p.policy].decisions or {"groups": [1]})["groups"]),
        "model averaging" in p.architecture,
        bool(getattr(policy, "reduces_precision", False)),
        policies.declared_lane(policy, p.policy),
    )


def _samples(s: Standings, left_out: Collection[str]) -> SettingSamples:
    """Seconds in the scenario itself, and with each assumed constant that was varied.

    Constants that are stated or measured decide nothing: `varied_constants.assumed`.
    Where `Standings.is_untested`, the search for thresholds says nothing about contention and is
    left out.
    """
    known = [p.policy for p in s.policies if p.policy not in left_out]
    column = s.comparison.column
    names = dict.fromkeys([*known, BASELINE])
    own = {name: column(name, s.decides) for name in names}
    samples: dict[Setting, Mapping[str, Floats]] = {OWN: own}
    for c in s.costs:
        if c != s.scenario.learner.c_tau:
            stale = {name: s.at_cost(name, c) for name in known}
            samples["learner.c_tau", c] = {BASELINE: own[BASELINE], **stale}
    varied: dict[Setting, dict[str, list[float]]] = {}
    decisive = assumed(s.scenario)
    if s.comparison.extremes is not None and not s.is_untested:
        rows = s.comparison.extremes[["quantity", "value", "policy", "seconds"]]
        for key, value, name, seconds in rows.itertuples(index=False):
            if name in known and key in decisive:
                varied.setdefault((key, value), {}).setdefault(name, []).append(seconds)
    return samples | {
        state: {name: np.array(of) for name, of in times.items()}
        for state, times in varied.items()
        if state not in samples and BASELINE in times
    }
