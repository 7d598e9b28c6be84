"""The noise-scale learner: the progress of updates under gradient noise and staleness.

All gradients applied between two consecutive pulls form one *visible* update, because no rank has
read the parameters in between.  A visible update of S_own samples, whose gradients are S_stale
applied samples old on average, makes a progress of

    S_own / (B_noise + S_own + c_tau * S_stale)            (1 = one noise-free update)

For a synchronous update that is McCandlish et al., "An Empirical Model of Large-Batch Training"
(arXiv:1812.06162); the staleness term is this project's (docs/semantics.md, rule 25).
"""

from __future__ import annotations

from collections.abc import Iterable

from simstrag.contract import Plan, Weigh


def unmodelled(plan: Plan) -> str | None:
    """The reason why the formula does not hold for a plan's updates; None where it does.

    >>> unmodelled(Plan(average=True))
    'it averages private models'
    """
    if plan.outer is not None:
        return "an outer optimizer steps by the average of private models"
    if plan.average:
        return "it averages private models"
    if any(quorum.rounds > 1 for quorum in plan.quorums):
        return "its groups compute on models of their own between two updates"
    if plan.weigh is not Weigh.WORLD:
        return "it weighs gradients by the members of their update"
    if plan.damping.power:
        return "it damps stale gradients"
    if plan.compensation is not None:
        return "it compensates stale gradients"
    if plan.screen is not None:
        return "it screens gradients by a test"
    return None


class NoiseScale:
    """The progress of a run while an engine applies gradients; all amounts are samples.

    batch: nominal samples per gradient.
    noise_scale: B_noise.
    c_tau: the cost of a stale sample.
    lost: the reason why progress is unknown, after an update for which the formula does not hold.

    >>> learner = NoiseScale(batch=128, noise_scale=896, c_tau=1.0)
    >>> learner.apply([(128, 0)])
    >>> learner.progress
    0.125
    """

    def __init__(self, batch: int, noise_scale: float, c_tau: float = 1.0) -> None:
        self.batch = batch
        self.noise_scale = noise_scale
        self.c_tau = c_tau
        self.lost: str | None = None
        self.samples = 0
        self.stale_samples = 0
        self._booked = 0.0
        self._began_at = 0
        self._own = 0
        self._stale = 0
        self._fresh, self._fresh_until = 0.0, 0

    def apply(self, gradients: Iterable[tuple[int, int]]) -> None:
        """Record applied gradients: the samples of each, and `samples` at its pull."""
        if not self._own:
            self._began_at = self.samples
        for own, seen in gradients:
            self._own += own
            self._stale += own * (self._began_at - seen)
            self.samples += own

    def pull(self) -> None:
        """Record a pull, which ends the open visible update."""
        if self._own:
            self._booked += self._open()
            self.stale_samples += self._stale
            self._own = self._stale = 0

    def resume(self, booked: float, began_at: int, own: int, stale: int) -> None:
        """Continue from the progress of closed visible updates and from the open one."""
        self._booked, self._began_at, self._own, self._stale = booked, began_at, own, stale

    def begin_at(self, samples: int) -> None:
        """Go on after so many samples, whose progress does not count here."""
        self.samples = self._fresh_until = samples

    def rescale(self, noise_scale: float) -> None:
        """Set the noise scale for the open visible update and those to come."""
        self._fresh, self._fresh_until = self.fresh_progress, self.samples
        self.noise_scale = noise_scale

    @property
    def fresh_progress(self) -> float:
        """The progress of the same samples in fresh gradients of one worker."""
        return self._fresh + (self.samples - self._fresh_until) / (self.noise_scale + self.batch)

    @property
    def progress(self) -> float | None:
        """The progress, as if the open visible update ended now; None where it is unknown."""
        if self.lost:
            return None
        return self._booked + self._open() if self._own else self._booked

    @property
    def effective_staleness(self) -> float:
        """S_stale / batch, mean over samples (docs/semantics.md, rule 22)."""
        return (self.stale_samples + self._stale) / (self.samples or 1) / self.batch

    def _open(self) -> float:
        own = self._own
        return own / (self.noise_scale + own + self.c_tau * (self._stale / own))
