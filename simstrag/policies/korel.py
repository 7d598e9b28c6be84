"""Bulk-synchronous; ranks slow beyond the noise compute in reduced precision until they recover.

Every update waits for all ranks. A rank whose recent local times stand out by the median absolute
deviation (MAD) is switched to AMP, and back after its full-precision speed has recovered.

Source: Jung, Kim, Yu, "Korel: Mitigating Stragglers via Real-Time Automatic Mixed Precision in
Distributed Deep Learning Environments", IEEE CLOUD 2025, pp. 23-31.

The paper's: a threshold built on MAD, AMP for the flagged ranks, full precision after recovery.  It
gives no window, no multiplier and no test of recovery under AMP.  Ours: the rules A.9.1 to A.9.17
of docs/korel.md, measured in tests/verification.

Three judgements need three different times.  *Slow?* and *recovered?* need the time of a step in
full precision.  An AMP rank is fast because of AMP, so a rule on raw times would switch on and off
for ever.  *Does AMP help?* needs raw times: the full-precision equivalent does not change with the
switch.  The equivalent depends on the known AMP ratio.  So that an error in the ratio cannot keep a
rank in AMP for ever, a *probe* takes a few full-precision steps now and then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Array, Bools, Floats, Ints
from simstrag.contract import UNLIMITED, WINDOW, Block, Hints, Learnt, Plan, Review, View
from simstrag.contract.ties import is_at_most, is_less
from simstrag.policies.estimators.detectors import (
    Baseline,
    Limit,
    baseline,
    find_suspects,
    full_precision_time,
    may_stand_out,
    median,
    robust_z,
)
from simstrag.policies.estimators.windows import Windows

COUNTED = ("activations", "recoveries", "efficacy_stops", "probes", "confirmations")
EVERY_UPDATE = Review(updates=1)

RANK = (
    # kept across activations; versions are numbers of updates
    ("dwell", "i8"), ("cooldown", "i8"), ("cooldown_until", "i8"), ("last_off", "f8"),
    ("on_count", "i8"),
    # of the stay in AMP mode; `steps`: recorded since the last change of mode, and at how many of
    # them its effect is tested and a probe is due; `before`: median raw time before it
    ("in_amp", "?"), ("in_trial", "?"), ("steps", "i8"), ("test_at", "i8"), ("probe_at", "i8"),
    ("off_count", "i8"), ("before", "f8"),
)  # fmt: skip
"""Fields of a rank's state: names and types."""


@dataclass(slots=True)
class _Trial:
    """Full-precision steps of a rank in AMP mode: a probe, or the confirmation of a stop.

    needed: the number of steps.
    amp_median: the AMP median that a confirmation compares them with; None in a probe.
    times: the local times so far.
    """

    needed: int
    amp_median: float | None = None
    times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """The state of every rank, and the plan in force.

    ranks: an array of shape (N,) for each name of `RANK`.
    full, amp: the ranks in full precision, and those in AMP mode.
    raw: the last W raw times of each rank, all in one precision (A.9.4), so that their
        full-precision equivalents are in the same order.
    trials: the running trial of each rank that has one.
    version: of the last check.
    timer: the first version at which an efficacy test or a probe may be due.
    acted: whether ranks have changed mode or begun or ended trials since the plan.
    """

    ranks: dict[str, Array]
    full: Ints
    amp: Ints
    raw: Windows
    plan: Plan
    trials: dict[int, _Trial] = field(default_factory=dict)
    version: int = -1
    timer: int = UNLIMITED
    acted: bool = False
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


@dataclass(frozen=True)
class Korel:
    """Selective AMP; times are local times in seconds, counters count updates unless noted.

    W: recent steps of a rank in a judgement.
    z_on, delta_on, k_on: a rank is suspect if z > z_on and its time is at least 1+delta_on times
        the reference; AMP after k_on suspect checks in a row.
    delta_off, z_off, k_off: a rank is well if z is at most z_off and its time at most 1+delta_off
        times the reference; AMP ends after k_off such checks in a row.
    dwell, dwell_cap: least AMP steps of an activation; doubled up to the cap when it flaps.
    flap, quiet: an activation within `flap` of the last end flaps; after more than `quiet` the
        dwell is reset.
    P_probe: AMP steps between two probes.
    probes: whether there are probes and confirmations.
    dear: no probes or confirmations if a change of precision costs more clean steps than this.
    efficacy: AMP helps if its times are below this share of those before.
    cooldown, cooldown_cap: updates without AMP after it did not help; doubled up to the cap.
    f_floor, f_floor_off: least scale of z, as a share of the reference, for on and for off.
    global_shift_guard: whether a cluster slow as a whole is compared with its fastest rank.
    rho: full over reduced-precision time of a clean step; None takes the hint.
    """

    title = "Korel"
    lane = "B"
    reduces_precision = True

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
    state_: Learnt[_State] = field(default_factory=Learnt, init=False, repr=False, compare=False)

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
        self._record_times(state, view)
        x = self._medians(state, state.raw.middles(), view.hints)
        idle = not state.trials and state.version < state.timer
        if idle and not self._restless(state, x[np.newaxis], view.hints)[0]:
            _clear_counts(state)
        else:
            self._judge(state, x, view.hints)
        return state.plan

    @property
    def reviews_ahead(self) -> int:
        """Reviews before the next test or probe; none in a trial."""
        state = self.state_.value
        return 0 if state is None or state.trials else state.timer - 1 - state.version

    def first_change(self, block: Block) -> int:
        state = self.state_.value
        rows = min(len(block), self.reviews_ahead)
        if state is None or rows <= 0 or np.count_nonzero(block.new > 1):
            return 0
        values, amp, cancelled = (
            block.newest(name)[:rows] for name in ("local_times", "amp", "lower_bound")
        )
        usable = ~(cancelled | np.isnan(values)) & (amp == state.ranks["in_amp"])
        usable &= block.new[:rows] == 1  # ranks that are lost take no steps
        ahead, steps = state.raw.copy(), block.steps[:rows]
        x = self._medians(state, ahead.follow_rows(steps, values, usable), block.hints)
        entered = 0
        for k in self._restless(state, x, block.hints).nonzero()[0].tolist():
            if k > entered:
                _clear_counts(state)
            those = slice(entered, k + 1)
            state.raw.follow_rows(steps[those], values[those], usable[those])
            state.ranks["steps"] += np.count_nonzero(usable[those], axis=0)
            entered, state.version, before = k + 1, int(block.versions[k]), state.plan
            self._judge(state, x[k], block.hints)
            if state.plan is not before:
                return k  # `plan` knows its answer there
        if entered < rows:
            _clear_counts(state)
        state.raw, state.version = ahead, int(block.versions[rows - 1])
        state.ranks["steps"] += np.count_nonzero(usable[entered:], axis=0)
        return rows

    def summary(self) -> dict[str, int | float]:
        """Counts of all actions; switches are all changes of mode, on and off."""
        counts = (
            dict.fromkeys(COUNTED, 0) if self.state_.value is None else self.state_.value.counts
        )
        on_and_off = sum(counts[kind] for kind in ("activations", "recoveries", "efficacy_stops"))
        return {"switches": on_and_off, **counts}

    def _state(self, n: int) -> _State:
        if self.state_.value is None:
            ranks: dict[str, Array] = {name: np.zeros(n, kind) for name, kind in RANK}
            ranks["dwell"][:], ranks["cooldown"][:] = self.dwell, self.cooldown
            ranks["last_off"][:] = -math.inf
            none = np.arange(0)
            plan = _plan_of(np.zeros(n, dtype=np.bool_), none)
            state = _State(ranks, np.arange(n), none, Windows(n, self.W), plan)
            self.state_.value = state
        return self.state_.value

    def _record_times(self, state: _State, view: View) -> None:
        """Record new times and count AMP steps (A.9.2).

        Times of another mode are left out: those of steps begun before a switch, and of trials
        (A.9.9).
        """
        new = state.raw.news(view.steps, WINDOW)
        times, amp, cancelled = (
            view.newest(name, new).T for name in ("local_times", "amp", "lower_bound")
        )
        usable = ~(cancelled | np.isnan(times))
        if state.trials:
            tried = np.array([*state.trials])
            fresh = view.steps.take(tried) - state.raw.seen.take(tried)
            tells = usable.take(tried, axis=1) & ~amp.take(tried, axis=1)
            rows, columns = (tells & (np.arange(new, 0, -1)[:, np.newaxis] <= fresh)).nonzero()
            which = tried[columns]
            for i, time in zip(which.tolist(), times[rows, which].tolist(), strict=True):
                state.trials[i].times.append(time)
        usable &= amp == state.ranks["in_amp"]
        state.ranks["steps"] += state.raw.follow(view.steps, times, usable)

    def _medians(
        self, state: _State, middles: Floats | tuple[Floats, Floats], hints: Hints
    ) -> Floats:
        """The median of each window in full precision, from its middles; NaN for none."""
        low, high = middles
        x: Floats = (low + high) / 2
        if len(state.amp):
            low, high = (self._equivalent(part[..., state.amp], hints) for part in middles)
            x[..., state.amp] = (low + high) / 2
        return x

    def _restless(self, state: _State, x: Floats, hints: Hints) -> Bools:
        """Whether a rank may be suspect or well, by rows of medians; shape (R, N) to (R,)."""
        return may_stand_out(
            x,
            state.full,
            state.amp,
            on=Limit(self.delta_on, self.z_on, self.f_floor),
            off=Limit(self.delta_off, self.z_off, self.f_floor_off),
            clean=hints.clean_seconds,
            guard=self.global_shift_guard,
        )

    def _windows(self, state: _State, hints: Hints) -> Floats:
        """All times in the windows in full precision, shape (N, W), ascending; NaN for none."""
        times = state.raw.ordered
        if len(state.amp):
            times = times.copy()
            times[:, state.amp] = self._equivalent(times.take(state.amp, axis=1), hints)
        return times.T

    def _judge(self, state: _State, x: Floats, hints: Hints) -> None:
        """Judge all ranks by their medians; the first action of a rank ends its check (A.9.2)."""
        against = baseline(
            x,
            lambda: self._windows(state, hints),
            clean=hints.clean_seconds,
            delta=self.delta_on,
            floor=self.f_floor,
            guard=self.global_shift_guard,
        )
        slow = self._count_suspect(state, hints, x, against)
        acts, off = self._count_well(state, x, against)
        if not len(slow) and not len(acts):
            return
        if len(slow):
            self._activate(state, slow, x[slow])
        if len(acts):
            in_trial = state.ranks["in_trial"][acts]
            for i in acts[in_trial].tolist():
                self._judge_trial(state, i, state.trials[i], against)
            self._act(state, hints, acts[~in_trial], off[~in_trial], x, against)
        if state.acted:
            state.acted, state.plan = False, self._next_plan(state)
        elif state.version < state.timer:
            return
        steps_left = (_due(state.ranks) - state.ranks["steps"])[state.amp]
        state.timer = state.version + int(np.minimum.reduce(steps_left, initial=UNLIMITED))

    def _act(
        self, state: _State, hints: Hints, which: Ints, off: Ints, x: Floats, against: Baseline
    ) -> None:
        """Act on ranks in no trial; off: of each, good checks in a row with this one."""
        if not len(which):
            return
        may_try = self._may_try(hints, against)
        passed = self._test(state, which, may_try)
        which = self._recover(state, which[passed], off[passed], x)
        if may_try:
            self._probe(state, hints, which)

    def _equivalent(self, time: Floats, hints: Hints) -> Floats:
        """The full-precision equivalent (A.9.17); NaN where no ratio is known."""
        rho = hints.amp_ratio if self.rho is None else self.rho
        if rho is None:
            return np.full_like(time, math.nan)
        if self.rho is None and hints.step is not None:
            return hints.step.in_full(time)
        return full_precision_time(time, rho, hints.host_seconds, hints.clean_seconds)

    def _may_help(self, x: Floats, hints: Hints) -> Bools:
        """Whether AMP may shorten steps of ranks as the efficacy test wants it (A.9.10).

        By what launching and the device take in either precision, where that is known.
        """
        step = hints.step
        if step is None or step.amp_device is None or self.rho is not None:
            return np.ones(len(x), dtype=np.bool_)
        return is_less(step.reduced(x), self.efficacy * x)

    def _count_suspect(self, state: _State, hints: Hints, x: Floats, against: Baseline) -> Ints:
        """Count suspect checks in a row (A.9.10); return the ranks that go to AMP.

        A rank without an x has a count of 0.
        """
        ranks = state.ranks
        which = state.full[find_suspects(x[state.full], against, self.z_on, self.delta_on)]
        which = which[state.version >= ranks["cooldown_until"][which]]
        which = which[self._may_help(x[which], hints)]
        on = ranks["on_count"][which] + 1
        ranks["on_count"][:] = 0
        ranks["on_count"][which] = on
        reached: Ints = which[on >= self.k_on]
        return reached

    def _count_well(self, state: _State, x: Floats, against: Baseline) -> tuple[Ints, Ints]:
        """Count good checks in a row (A.9.11), 0 of a rank without an x.

        Returns the ranks in AMP that need an action, and their counts, which are not kept.
        """
        ranks, which = state.ranks, state.amp
        if not len(which):
            return which, which
        steps, count = ranks["steps"][which], ranks["off_count"][which]
        off = (count + 1) * self._well(x[which], against)
        acts = (off >= self.k_off) & (steps >= ranks["dwell"][which])
        if state.trials or state.version >= state.timer:
            acts |= ranks["in_trial"][which] | (steps >= _due(ranks)[which])
        ranks["off_count"][which] = np.where(acts, count, off)
        return which[acts], off[acts]

    def _well(self, x: Floats, against: Baseline) -> Bools:
        """Whether a rank is as fast as the others again (A.9.11)."""
        near = is_at_most(x, (1 + self.delta_off) * against.reference)
        if not np.count_nonzero(near):
            return near
        scale = max(against.scale, self.f_floor_off * against.reference)
        return near & is_at_most(robust_z(x, against.reference, scale), self.z_off)

    def _activate(self, state: _State, which: Ints, raw_medians: Floats) -> None:
        ranks, state.acted = state.ranks, True
        since, dwell = state.version - ranks["last_off"][which], ranks["dwell"][which]
        flaps = np.minimum(2 * dwell, self.dwell_cap)  # A.9.12
        calm = np.where(since > self.quiet, self.dwell, dwell)
        ranks["dwell"][which] = np.where(since <= self.flap, flaps, calm)
        for name in ("on_count", "off_count", "steps"):
            ranks[name][which] = 0
        ranks["in_amp"][which], ranks["before"][which] = True, raw_medians  # A.9.14
        ranks["test_at"][which], ranks["probe_at"][which] = 2 * self.W, self.P_probe
        state.raw.clear(which)  # A.9.4: times of two modes are never mixed, nor converted
        state.counts["activations"] += len(which)

    def _deactivate(self, state: _State, which: Ints, why: str) -> None:
        state.acted = True
        state.ranks["in_amp"][which] = False
        state.ranks["last_off"][which] = state.version
        state.raw.clear(which)
        state.counts[why] += len(which)

    def _start_trials(self, state: _State, trials: dict[int, _Trial], kind: str) -> None:
        if not trials:
            return
        state.acted = True
        state.trials |= trials
        state.ranks["in_trial"][[*trials]] = True
        state.counts[kind] += len(trials)

    def _judge_trial(self, state: _State, i: int, trial: _Trial, against: Baseline) -> None:
        if len(trial.times) < trial.needed:
            return
        del state.trials[i]
        state.acted = True
        state.ranks["in_trial"][i] = False
        if trial.amp_median is None:  # A.9.13
            if is_at_most(trial.times[-1], (1 + self.delta_off) * against.reference):
                self._deactivate(state, np.array([i]), "recoveries")
        elif not is_less(trial.amp_median, self.efficacy * median(np.array(trial.times))):  # A.9.15
            self._stop(state, np.array([i]))
        else:
            state.ranks["cooldown"][i] = self.cooldown

    def _test(self, state: _State, which: Ints, may_try: bool) -> Bools:
        """Test once, 2W steps after ON, whether raw times have become shorter (A.9.14-16).

        Returns which ranks have not failed now.
        """
        ranks = state.ranks
        is_due = ranks["steps"][which] >= ranks["test_at"][which]
        due = which[is_due]
        if not len(due):
            return ~is_due
        ranks["test_at"][due] = UNLIMITED
        amp_median = state.raw.median(due)
        helps = is_less(amp_median, self.efficacy * ranks["before"][due])
        ranks["cooldown"][due[helps]] = self.cooldown
        failed = due[~helps]
        if may_try:
            pairs = zip(failed.tolist(), amp_median[~helps].tolist(), strict=True)
            trials = {i: _Trial(self.W, own) for i, own in pairs}
            self._start_trials(state, trials, "confirmations")
        else:
            self._stop(state, failed)
        is_due[is_due] = ~helps
        return ~is_due

    def _stop(self, state: _State, which: Ints) -> None:
        """End AMP that does not help, and start the cool-down (A.9.16)."""
        ranks = state.ranks
        self._deactivate(state, which, "efficacy_stops")
        ranks["cooldown_until"][which] = state.version + ranks["cooldown"][which]
        ranks["cooldown"][which] = np.minimum(2 * ranks["cooldown"][which], self.cooldown_cap)

    def _recover(self, state: _State, which: Ints, off: Ints, x: Floats) -> Ints:
        """End AMP of recovered ranks (A.9.11); a rank without an x keeps its count.

        Returns the ranks that have not recovered.
        """
        ranks, known = state.ranks, ~np.isnan(x[which])
        ranks["off_count"][which[known]] = off[known]
        recovers = (off >= self.k_off) & (ranks["steps"][which] >= ranks["dwell"][which])
        if np.count_nonzero(recovers):
            self._deactivate(state, which[recovers], "recoveries")
        return which[~recovers]

    def _probe(self, state: _State, hints: Hints, which: Ints) -> None:
        """Start due probes (A.9.13); the first of two steps may include the switch's cost."""
        ranks = state.ranks
        due = which[ranks["steps"][which] >= ranks["probe_at"][which]]
        if not len(due):
            return
        ranks["probe_at"][due] = ranks["steps"][due] + self.P_probe
        needed = 1 if hints.amp_switch == 0 else 2
        self._start_trials(state, {i: _Trial(needed) for i in due.tolist()}, "probes")

    def _may_try(self, hints: Hints, against: Baseline) -> bool:
        switch, clean = hints.amp_switch, hints.clean_seconds
        step = against.reference if clean is None else clean
        return self.probes and not (switch is not None and is_less(self.dear * step, switch))

    def _next_plan(self, state: _State) -> Plan:
        in_amp = state.ranks["in_amp"]
        (state.full,), (state.amp,) = (~in_amp).nonzero(), in_amp.nonzero()
        return _plan_of(in_amp & ~state.ranks["in_trial"], state.amp)


def _clear_counts(state: _State) -> None:
    """Set the counts of suspect and of normal steps to zero."""
    state.ranks["on_count"].fill(0)
    state.ranks["off_count"].fill(0)


def _due(ranks: dict[str, Array]) -> Ints:
    """AMP steps of each rank at its next efficacy test or probe, shape (N,)."""
    due: Ints = np.minimum(ranks["test_at"], ranks["probe_at"])
    return due


def _plan_of(reduced: Bools, suspects: Ints) -> Plan:
    return Plan(precision=reduced, suspects=suspects, review=EVERY_UPDATE)
