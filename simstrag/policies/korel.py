"""Bulk-synchronous; ranks that are slow beyond the noise compute in reduced precision until well.

Every update waits for all ranks; a rank whose recent local times stand out by the median absolute
deviation (MAD) is switched to AMP, and back once its full-precision speed has recovered.

Source: Jung, Kim, Yu, "Korel: Mitigating Stragglers via Real-Time Automatic Mixed Precision in
Distributed Deep Learning Environments", IEEE CLOUD 2025, pp. 23-31.

The paper gives the idea: a threshold built on MAD, AMP for the flagged ranks, off after recovery.
It does not give the window, the multiplier, nor how recovery is seen while AMP hides it.  Those
are this project's rules, numbered A.9.1 to A.9.17 in docs/korel.md, measured in tests/verification.

Three judgements need three different times.  *Slow?* and *recovered?* ask how long a step would
have taken in full precision, whatever it ran in: an AMP rank looks well only because of AMP, and a
rule that takes its times at face value switches on and off for ever.  *Does AMP help?* asks for raw
times: the full-precision equivalent is the same before and after the switch by construction.  And
since the equivalent is only as good as the known AMP ratio, a *probe* now and then runs a few steps
in full precision, so that no error in that ratio can keep a rank in AMP for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simstrag.policy import Plan, Precision, Review, View
from simstrag.stragglers import Baseline, baseline, full_precision_time, median, suspects

Floats = npt.NDArray[np.float64]
UNKNOWN = math.nan
COUNTED = ("activations", "recoveries", "efficacy_stops", "probes", "confirmations")


@dataclass(slots=True)
class Trial:
    """Full-precision steps of a rank in AMP mode: a probe, or the confirmation of a stop.

    needed: how many.  amp_median: what a confirmation compares them with; None in a probe.
    """

    needed: int
    amp_median: float | None = None
    times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Activation:
    """A rank's stay in AMP mode.

    before: median raw time just before.  steps: in AMP so far.  tested: for its effect.
    """

    before: float
    steps: int = 0
    since_probe: int = 0
    off_count: int = 0
    tested: bool = False
    trial: Trial | None = None


@dataclass(slots=True)
class Rank:
    """What outlives a rank's activations; versions are numbers of updates."""

    dwell: int
    cooldown: int
    on_count: int = 0
    last_off: int | None = None
    cooldown_until: int = 0
    activation: Activation | None = None


@dataclass(slots=True)
class State:
    """Everything learnt so far; arrays have one row per rank.

    equivalent, raw: the last W times, NaN where there is none: what they were or would have been
    in full precision, and as they were.  seen: how many times of each rank have been entered.
    """

    ranks: list[Rank]
    equivalent: Floats
    raw: Floats
    seen: npt.NDArray[np.int64]
    plan: Plan
    version: int = -1
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


@dataclass(frozen=True)
class Korel:
    """Selective AMP; times are local times in seconds, counters count updates unless said.

    W: recent steps that a judgement looks at.
    z_on, delta_on, k_on: suspect if z > z_on and at least 1+delta_on times the reference; AMP
        after k_on suspect checks in a row.
    delta_off, z_off, k_off: well if z < z_off and at most 1+delta_off times the reference; off
        after k_off such checks in a row.
    dwell, dwell_cap: least AMP steps of an activation; doubled up to the cap when it flaps.
    flap, quiet: back on within `flap` of the last off is flapping; after more than `quiet` it is
        forgiven.
    P_probe: AMP steps between two probes.
    probes: whether there are probes and confirmations at all.
    dear: clean steps; where a change of precision costs more, there are none either.
    efficacy: AMP does not help if its times are above this share of those before.
    cooldown, cooldown_cap: no AMP for so long after it did not help; doubled up to the cap.
    f_floor, f_floor_off: least scale of z, as a share of the reference, for on and for off.
    global_shift_guard: whether a cluster slow as a whole is compared with its fastest rank.
    rho: full over reduced-precision time of a clean step; None takes the hint.
    """

    W: int = 10
    z_on: float = 3.5
    delta_on: float = 0.10
    k_on: int = 3
    delta_off: float = 0.05
    z_off: float = 2.0
    k_off: int = 5
    dwell: int = 20
    dwell_cap: int = 160
    flap: int = 50
    quiet: int = 500
    P_probe: int = 200
    probes: bool = True
    dear: float = 5.0
    efficacy: float = 0.95
    cooldown: int = 500
    cooldown_cap: int = 4000
    f_floor: float = 0.01
    f_floor_off: float = 0.025
    global_shift_guard: bool = True
    rho: float | None = None
    state_: State | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        least = dict.fromkeys(("W", "k_on", "k_off", "P_probe"), 1)
        least |= dict.fromkeys(("delta_on", "delta_off", "dwell", "flap", "quiet", "cooldown"), 0)
        least |= {"dear": 0, "dwell_cap": self.dwell, "cooldown_cap": self.cooldown}
        for name, bound in least.items():
            if not getattr(self, name) >= bound:
                raise ValueError(f"{name} must be {bound} or more, not {getattr(self, name)}")
        for name in ("z_on", "z_off", "efficacy", "f_floor", "f_floor_off"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.rho is not None and not 0 < self.rho < math.inf:
            raise ValueError(f"rho must be above 0 and finite, or none, not {self.rho}")

    def plan(self, view: View) -> Plan:
        state = self._state(view.world_size)
        if view.version <= state.version:  # A.9.1
            return state.plan
        state.version = view.version
        self._enter(state, view)
        x = median(state.equivalent)
        against = baseline(
            x,
            state.equivalent,
            clean=view.hints.clean_seconds,
            delta=self.delta_on,
            floor=self.f_floor,
            guard=self.global_shift_guard,
        )
        in_amp = [rank for rank, r in enumerate(state.ranks) if r.activation is not None]
        self._switch_on(state, x, against)
        for rank in in_amp:
            self._attend(state, view, rank, float(x[rank]), against)
        state.plan = self._planned(state)
        return state.plan

    def summary(self) -> dict[str, int | float]:
        """What was done so far; switches are all changes of mode, on and off."""
        counts = dict.fromkeys(COUNTED, 0) if self.state_ is None else self.state_.counts
        on_and_off = sum(counts[kind] for kind in ("activations", "recoveries", "efficacy_stops"))
        return {"switches": on_and_off, **counts}

    def _state(self, n: int) -> State:
        if self.state_ is None:
            state = State(
                [Rank(self.dwell, self.cooldown) for _ in range(n)],
                np.full((n, self.W), UNKNOWN),
                np.full((n, self.W), UNKNOWN),
                np.zeros(n, dtype=np.int64),
                _plan_of((Precision.FULL,) * n, frozenset()),
            )
            object.__setattr__(self, "state_", state)  # frozen are the parameters
            return state
        return self.state_

    def _enter(self, state: State, view: View) -> None:
        """A.9.2: the times that are new, each by the precision it really had."""
        fresh = np.minimum(view.steps - state.seen, view.local_times.shape[1])
        state.seen[:] = view.steps
        for back in range(int(fresh.max()), 0, -1):
            time, amp = view.local_times[:, -back], view.amp[:, -back]
            usable = (fresh >= back) & ~view.lower_bound[:, -back] & ~np.isnan(time)
            equivalent = np.where(amp, self._equivalent(time, view), time) if amp.any() else time
            enters = np.zeros_like(usable)
            for i in np.flatnonzero(usable):
                enters[i] = self._take(state.ranks[i], float(time[i]), bool(amp[i]))
            for ring, values in ((state.equivalent, equivalent), (state.raw, time)):
                ring[enters, :-1] = ring[enters, 1:]
                ring[enters, -1] = values[enters]

    def _take(self, rank: Rank, time: float, amp: bool) -> bool:
        """Count one time, and say whether it enters the rings: not if it is of another mode,
        that is of a step begun before a switch, nor of a trial (A.9.9).
        """
        activation = rank.activation
        if activation is None:
            return not amp
        if amp:
            activation.steps += 1
            activation.since_probe += 1
        elif activation.trial is not None:
            activation.trial.times.append(time)
        return amp

    def _equivalent(self, time: Floats, view: View) -> Floats:
        """A.9.17; with no ratio known an AMP rank has no x, and only a probe ends its stay."""
        hints = view.hints
        rho = hints.amp_ratio if self.rho is None else self.rho
        if rho is None:
            return np.full_like(time, UNKNOWN)
        return full_precision_time(time, rho, hints.host_seconds, hints.clean_seconds)

    def _switch_on(self, state: State, x: Floats, against: Baseline) -> None:
        """A.9.10 for all full-precision ranks that have an x (A.9.5)."""
        flagged = suspects(x, against, self.z_on, self.delta_on)
        for i in np.flatnonzero(~np.isnan(x)):
            rank = state.ranks[i]
            if rank.activation is not None:
                continue
            cooling = state.version < rank.cooldown_until
            rank.on_count = rank.on_count + 1 if flagged[i] and not cooling else 0
            if rank.on_count >= self.k_on:
                self._on(state, int(i))

    def _on(self, state: State, i: int) -> None:
        rank = state.ranks[i]
        rank.on_count = 0
        rank.activation = Activation(before=float(median(state.raw[i])))  # A.9.14
        since = math.inf if rank.last_off is None else state.version - rank.last_off
        if since <= self.flap:  # A.9.12
            rank.dwell = min(2 * rank.dwell, self.dwell_cap)
        elif since > self.quiet:
            rank.dwell = self.dwell
        self._empty(state, i)
        state.counts["activations"] += 1

    def _off(self, state: State, i: int, why: str) -> None:
        rank = state.ranks[i]
        rank.activation = None
        rank.last_off = state.version
        self._empty(state, i)
        state.counts[why] += 1

    def _empty(self, state: State, i: int) -> None:
        """A.9.4: times of two modes are never mixed, nor converted."""
        state.equivalent[i] = state.raw[i] = UNKNOWN

    def _attend(self, state: State, view: View, i: int, x: float, against: Baseline) -> None:
        """A.9.2 for one rank in AMP mode: the first action ends its check."""
        activation = state.ranks[i].activation
        assert activation is not None
        if activation.trial is not None:
            self._judge_trial(state, i, activation, activation.trial, against)
        elif not (
            self._fails(state, view, i, activation, against)
            or self._recovers(state, i, activation, x, against)
        ):
            self._probe(state, view, activation, against)

    def _judge_trial(
        self, state: State, i: int, activation: Activation, trial: Trial, against: Baseline
    ) -> None:
        if len(trial.times) < trial.needed:
            return
        activation.trial = None
        if trial.amp_median is None:  # A.9.13
            if trial.times[-1] <= (1 + self.delta_off) * against.reference:
                self._off(state, i, "recoveries")
        elif trial.amp_median > self.efficacy * float(median(np.array(trial.times))):  # A.9.15
            self._stop(state, i)
        else:
            state.ranks[i].cooldown = self.cooldown

    def _fails(
        self, state: State, view: View, i: int, activation: Activation, against: Baseline
    ) -> bool:
        """A.9.14-16: once, 2W steps after ON, whether raw times have become shorter at all."""
        if activation.tested or activation.steps < 2 * self.W:
            return False
        activation.tested = True
        amp_median = float(median(state.raw[i]))
        if amp_median <= self.efficacy * activation.before:
            state.ranks[i].cooldown = self.cooldown
            return False
        if self._may_try(view, against):
            activation.trial = Trial(self.W, amp_median)
            state.counts["confirmations"] += 1
        else:
            self._stop(state, i)
        return True

    def _stop(self, state: State, i: int) -> None:
        """A.9.16."""
        rank = state.ranks[i]
        self._off(state, i, "efficacy_stops")
        rank.cooldown_until = state.version + rank.cooldown
        rank.cooldown = min(2 * rank.cooldown, self.cooldown_cap)

    def _recovers(
        self, state: State, i: int, activation: Activation, x: float, against: Baseline
    ) -> bool:
        """A.9.11; a rank without an x keeps its count."""
        if math.isnan(x):
            return False
        scale = max(against.scale, self.f_floor_off * against.reference)
        near = x <= (1 + self.delta_off) * against.reference
        well = near and (x - against.reference) / scale < self.z_off
        activation.off_count = activation.off_count + 1 if well else 0
        if activation.off_count < self.k_off or activation.steps < state.ranks[i].dwell:
            return False
        self._off(state, i, "recoveries")
        return True

    def _probe(self, state: State, view: View, activation: Activation, against: Baseline) -> None:
        """A.9.13; the first of two steps is not counted, it may pay for the change of precision."""
        if activation.since_probe >= self.P_probe and self._may_try(view, against):
            activation.since_probe = 0
            activation.trial = Trial(1 if view.hints.amp_switch == 0 else 2)
            state.counts["probes"] += 1

    def _may_try(self, view: View, against: Baseline) -> bool:
        switch, clean = view.hints.amp_switch, view.hints.clean_seconds
        step = against.reference if clean is None else clean
        return self.probes and not (switch is not None and switch > self.dear * step)

    def _planned(self, state: State) -> Plan:
        """The same object unless a precision or a suspect changed."""
        activations = [rank.activation for rank in state.ranks]
        taken = frozenset(i for i, a in enumerate(activations) if a is not None)
        precision = tuple(
            Precision.FULL if a is None or a.trial is not None else Precision.AMP
            for a in activations
        )
        plan = state.plan
        if (plan.precision, plan.suspects) == (precision, taken):
            return plan
        return _plan_of(precision, taken)


def _plan_of(precision: tuple[Precision, ...], taken: frozenset[int]) -> Plan:
    return Plan(precision=precision, suspects=taken, review=Review(updates=1))
