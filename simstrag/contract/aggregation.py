"""How the gradients or models of an update become parameters, beyond their weighted sum.

No time of a run depends on it: an engine carries these choices to the real learner and to real
ranks, which follow them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simstrag.contract.checks import real, whole
from simstrag.errors import PlanError


@dataclass(frozen=True, slots=True)
class Outer:
    """An outer SGD optimizer, whose gradient is the parameters less the mean of private models.

    lr: learning rate; 1 without momentum is the mean of the models itself.
    momentum, nesterov: as in torch.
    mix: share of its private model that a rank keeps when it takes a fragment over.
    delay: updates from one change of the momentum to the next; 1 is the usual momentum.

    Source: Douillard et al., "DiLoCo", arXiv:2311.08105; `mix` is alpha of "Streaming DiLoCo",
    arXiv:2501.18512; `delay` is N of delayed Nesterov momentum, Liu et al., arXiv:2401.09135.
    Raises `PlanError` where a value is impossible.

    >>> Outer(lr=0.7, momentum=0.9, nesterov=True).delay
    1
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    mix: float = 0.0
    delay: int = 1

    def __post_init__(self) -> None:
        if not 0 < real("outer: lr", self.lr) < math.inf:
            raise PlanError(f"outer: lr must be positive, not {self.lr:g}")
        if not 0 <= real("outer: momentum", self.momentum) < 1:
            raise PlanError(f"outer: momentum must be 0 or more and below 1, not {self.momentum:g}")
        if not 0 <= real("outer: mix", self.mix) <= 1:
            raise PlanError(f"outer: mix must be between 0 and 1, not {self.mix:g}")
        if not isinstance(self.nesterov, bool):
            raise PlanError(f"outer: nesterov must be True or False, not {self.nesterov!r}")
        if self.nesterov and not self.momentum:
            raise PlanError("outer: nesterov needs a momentum above 0")
        if whole("outer: delay", self.delay, least=1) > 1 and not self.nesterov:
            raise PlanError("outer: delay needs nesterov")


@dataclass(frozen=True, slots=True)
class Compensation:
    """A correction of stale gradients by how far the parameters have moved since their pull.

    A gradient g becomes g + strength * g * g * (parameters now - parameters pulled), by element.

    strength: lambda; with a decay, divided by the root of the mean square of the gradients.
    decay: of that mean square, per gradient; 0 for a constant strength.

    Source: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation",
    ICML 2017, arXiv:1609.08326.
    Raises `PlanError` where a value is impossible.

    >>> Compensation(strength=2.0, decay=0.95).decay
    0.95
    """

    strength: float = 0.04
    decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < real("compensation: strength", self.strength) < math.inf:
            raise PlanError(f"compensation: strength must be positive, not {self.strength:g}")
        if not 0 <= real("compensation: decay", self.decay) < 1:
            raise PlanError(
                f"compensation: decay must be 0 or more and below 1, not {self.decay:g}"
            )


@dataclass(frozen=True, slots=True)
class Screen:
    """A test of each gradient against one of the server's own; one that fails counts 0.

    A gradient g is first scaled to the norm of the server's gradient v.  It passes if
    lr * <v, g> - rho * |g|^2 + lr * epsilon >= 0, where lr is the optimizer's learning rate.

    rho: penalty of the norm.
    epsilon: slack.
    every: updates from one gradient of the server to the next.
    batch: samples of one, which the server draws itself.

    Source: Xie et al., "Zeno++", ICML 2020, arXiv:1903.07020.
    Raises `PlanError` where a value is impossible.

    >>> Screen().every
    10
    """

    rho: float = 0.001
    epsilon: float = 0.0
    every: int = 10
    batch: int = 128

    def __post_init__(self) -> None:
        for name in ("rho", "epsilon"):
            if not 0 <= real(f"screen: {name}", getattr(self, name)) < math.inf:
                raise PlanError(f"screen: {name} must be 0 or more, not {getattr(self, name):g}")
        whole("screen: every", self.every, least=1)
        whole("screen: batch", self.batch, least=1)
