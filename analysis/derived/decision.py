"""The decision that a comparison supports, as values: the bill, three lanes, and a safe choice.

A lane holds the policies that change training equally much.  It follows from what their runs did,
so a policy of the reader's own has one, too:

- A: every update has all samples of a round, none late, left out, or in reduced precision;
- B: as A, but for some of that; an update still has at least half of the samples of a round;
- C: anything else: asynchrony, independent groups, averaged models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simstrag import policies
from simstrag.analysis.derived.standings import NEGLIGIBLE, Standing, Standings, faster
from simstrag.experiments import paired_statistics
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate

LANES = "ABC"
ROUND = 1e-6
"""Relative difference up to which an update has all samples of a round."""
HALF = 0.5
"""Share of a round's samples that an update of lane B has at least."""
SAFE_TIE = 0.005
"""Worst regrets that differ by less count as equal, as a delay below it counts as none
(`NEGLIGIBLE`); the earlier lane is then the safer choice."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What contention cost synchronous training: bsp under the trace against bsp without it.

    share: of its GPU-hours.
    hours: GPU-hours.
    waiting: the share of `hours` in which ranks waited for other ranks.
    node: the node for which ranks waited longest; None without waiting, or on a single node.
    blame: its share of all waiting for ranks.
    """

    share: Estimate
    hours: Estimate
    waiting: Estimate
    node: int | None
    blame: Estimate


@dataclass(frozen=True, slots=True)
class Effects:
    """What a policy did to training, means over seeds.

    joined: samples of an update, as a share of a round's.
    late: updates between the pull and the application of a gradient.
    lost: share of the steps that were thrown away.
    cut: share of the samples that a deadline left out.
    reduced: share of the steps in reduced precision.
    rebatched: share of the steps with another number of samples.
    groups: most groups of ranks that updated independently, under the first seed.
    averages: whether models are averaged instead of gradients.
    may_reduce: whether the policy may reduce precision, even if its runs had no reason to.
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

    @property
    def lane(self) -> str:
        """The lane, a letter of `LANES`."""
        part = self.joined < HALF or (self.late > 0 and self.joined <= HALF)
        if self.averages or self.groups > 1 or part:
            return "C"
        whole = abs(self.joined - 1) < ROUND and not self.may_reduce
        return "A" if whole and not (self.late or self.lost or self.cut or self.reduced) else "B"


@dataclass(frozen=True, slots=True)
class Regret:
    """The worst regret of a policy over all states that were simulated.

    worst: additional time over the best policy of the state, as a share of the best's.
    state: the state, (key of a constant, its value); ("", nan) for the scenario itself.
    """

    worst: float
    state: tuple[str, float]


@dataclass(frozen=True, slots=True)
class Decision:
    """A comparison's decision.

    bill: None without contention, or where it is not known without it.
    lanes: the policies of each lane but bsp, best mean first.
    effects, regrets: by policy, bsp included.
    states: how many states the regrets are over.
    safe: the least worst regret among bsp and the policies shown to be faster than it. Samples of
        unknown worth are no safe choice, nor are stale ones where no target is declared.
    """

    s: Standings
    bill: Bill | None
    lanes: Mapping[str, tuple[Standing, ...]]
    effects: Mapping[str, Effects]
    regrets: Mapping[str, Regret]
    states: int
    safe: str

    def best(self, lane: str) -> Standing | None:
        """The best mean of a lane among those shown to be faster than bsp."""
        s = self.s
        return next((p for p in self.lanes[lane] if faster(p.difference[s.decides])), None)


def decide(s: Standings) -> Decision:
    """The decision of a comparison."""
    effects = {p.policy: _effects(s, p) for p in s.policies}
    others = [p for p in s.policies if p.policy != BASELINE]
    lanes = {lane: tuple(p for p in others if effects[p.policy].lane == lane) for lane in LANES}
    states = _states(s)
    regrets = _regrets(states)
    doubtful = {*s.unknown, *(() if s.comparison.has_target else s.stale)}
    shown = [p.policy for p in others if faster(p.difference[s.decides])]
    candidates = [n for n in (*shown, BASELINE) if n in regrets and n not in doubtful]
    least = min((regrets[name].worst for name in candidates), default=math.inf)
    alike = [name for name in candidates if regrets[name].worst <= least + SAFE_TIE]
    safe = min(alike, key=lambda name: _change(name, effects, regrets), default=BASELINE)
    return Decision(s, _bill(s), lanes, effects, regrets, len(states), safe)


def _change(
    name: str, effects: Mapping[str, Effects], regrets: Mapping[str, Regret]
) -> tuple[str, float]:
    """How much a policy changes training, and its worst regret; bsp changes nothing."""
    return ("" if name == BASELINE else effects[name].lane), regrets[name].worst


def _bill(s: Standings) -> Bill | None:
    trace, workers = s.comparison.scenario.inputs.trace, s.comparison.scenario.workers
    if trace is None or s.delay < NEGLIGIBLE:
        return None
    column = s.comparison.column
    whole, clean = (
        np.fmax(*(column(BASELINE, name, v) for name in ("makespan", "time_to_target")))
        for v in ("contended", "clean")
    )
    lost = paired_statistics.ratio(whole - clean, whole)
    devices = workers * s.comparison.scenario.cost.gpus / 3600
    hours = Estimate(*(devices * x for x in s.gap(whole, clean)))
    table = s.comparison.waiting
    places = np.array(s.comparison.scenario.places or range(workers))
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
    blame = paired_statistics.ratio(by_node[node].to_numpy(), total)
    named = total.any() and by_node.shape[1] > 1
    return Bill(lost, hours, waiting, node if named else None, blame)


def _effects(s: Standings, p: Standing) -> Effects:
    scenario, mean = s.comparison.scenario, s.known_mean
    column = s.comparison.column
    started = column(p.policy, "started").sum()
    samples = column(p.policy, "samples").sum() / column(p.policy, "updates").sum()
    lost = column(p.policy, "dropped").sum() + column(p.policy, "aborted").sum()
    return Effects(
        float(samples / (scenario.workers * scenario.learner.batch)),
        mean(p.policy, "mean_staleness"),
        float(lost / started),
        mean(p.policy, "cut_share"),
        mean(p.policy, "amp_share"),
        mean(p.policy, "rebatched_share"),
        max((s.comparison.examples[p.policy].decisions or {"groups": [1]})["groups"]),
        "model averaging" in p.architecture,
        bool(getattr(policies.load(p.policy), "reduces_precision", False)),
    )


def _states(s: Standings) -> dict[tuple[str, float], dict[str, float]]:
    """Mean times of the policies in the scenario itself and with each constant that was varied."""
    known = [p.policy for p in s.policies if p.policy not in s.unknown]
    column = s.comparison.column
    names = dict.fromkeys([*known, BASELINE])
    own = {name: float(column(name, s.decides).mean()) for name in names}
    states = {("", math.nan): own}
    if s.comparison.has_target:
        for c in s.costs:
            if c != s.comparison.scenario.learner.c_tau:
                stale = {name: float(s.at_cost(name, c).mean()) for name in known}
                states["learner.c_tau", c] = {BASELINE: own[BASELINE], **stale}
    varied: dict[tuple[str, float], dict[str, float]] = {}
    if s.comparison.extremes is not None:
        for key, value, name, seconds in s.comparison.extremes.itertuples(index=False):
            if name in known:
                varied.setdefault((key, value), {})[name] = seconds
    return states | {
        state: times for state, times in varied.items() if state not in states and BASELINE in times
    }


def _regrets(states: Mapping[tuple[str, float], Mapping[str, float]]) -> dict[str, Regret]:
    found: dict[str, Regret] = {}
    for state, times in states.items():
        best = min(times.values())
        for name, seconds in times.items():
            regret = seconds / best - 1
            if name not in found or regret > found[name].worst:
                found[name] = Regret(regret, state)
    return found
