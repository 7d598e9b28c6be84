"""The noise-scale learner: what updates are worth under gradient noise and staleness.

Gradients applied between two consecutive pulls by anyone form one *visible* update: nobody has
seen the parameters in between.  One of S_own samples, whose gradients were computed S_stale
applied samples ago in the mean, makes a progress of

    S_own / (B_noise + S_own + c_tau * S_stale)            (1 = one noise-free update)

which is McCandlish et al., "An Empirical Model of Large-Batch Training" (arXiv:1812.06162), for a
synchronous update; the staleness term is this project's (docs/semantics.md, rule 25).
"""

from __future__ import annotations

from collections.abc import Iterable

from simstrag.plan import Plan, Weigh

__all__ = ["NoiseScale", "unmodelled"]


def unmodelled(plan: Plan) -> str | None:
    """Why the formula does not say what updates under a plan are worth; None where it does.

    >>> unmodelled(Plan(average=True))
    'it averages private models'
    """
    if plan.average:
        return "it averages private models"
    if any(quorum.rounds > 1 for quorum in plan.quorums):
        return "its groups compute on models of their own between two updates"
    if plan.weigh is not Weigh.WORLD:
        return "it weighs gradients by the members of their update"
    if plan.damping.power:
        return "it damps stale gradients"
    return None


class NoiseScale:
    """Books progress while an engine applies gradients; samples everywhere.

    batch: nominal samples per gradient.  noise_scale: B_noise.  c_tau: cost of a stale sample.
    lost: set to the reason where updates are made for which the formula does not hold; there is no
        progress then.

    >>> learner = NoiseScale(batch=128, noise_scale=896, c_tau=1.0)
    >>> learner.applied([(128, 0)])
    >>> learner.progress
    0.125
    """

    def __init__(self, batch: int, noise_scale: float, c_tau: float) -> None:
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

    def applied(self, gradients: Iterable[tuple[int, int]]) -> None:
        """Gradients became part of the parameters: samples of each, and `samples` at its pull."""
        if not self._own:
            self._began_at = self.samples
        for own, seen in gradients:
            self._own += own
            self._stale += own * (self._began_at - seen)
            self.samples += own

    def pulled(self) -> None:
        """Somebody has seen the parameters: the open visible update, if any, ends."""
        if self._own:
            self._booked += self._open()
            self.stale_samples += self._stale
            self._own = self._stale = 0

    def resume(self, booked: float, began_at: int, own: int, stale: int) -> None:
        """Go on from what was booked, and from the open visible update."""
        self._booked, self._began_at, self._own, self._stale = booked, began_at, own, stale

    @property
    def progress(self) -> float | None:
        """Booked so far, and the open visible update as if it ended now; None where it is lost."""
        if self.lost:
            return None
        return self._booked + self._open() if self._own else self._booked

    @property
    def effective_staleness(self) -> float:
        """S_stale / batch, mean over samples: how many gradients nobody had seen (rule 22)."""
        return (self.stale_samples + self._stale) / (self.samples or 1) / self.batch

    def _open(self) -> float:
        own = self._own
        return own / (self.noise_scale + own + self.c_tau * (self._stale / own))
