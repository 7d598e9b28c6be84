"""The loss scale of float16, which moves as that of `torch.amp.GradScaler`."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000
"""Parameters of the loss scale, as in `torch.amp.GradScaler`."""
LARGEST = 2.0**127


@dataclass(slots=True)
class LossScale:
    """The factor of the losses of one rank in float16.

    value: the factor now.
    finite_steps: since it last changed.

    >>> scale = LossScale()
    >>> scale.update(finite=False)
    >>> scale.value
    32768.0
    """

    value: float = field(default_factory=lambda: FIRST)
    finite_steps: int = 0

    def update(self, finite: bool) -> None:
        """Take the outcome of a step: halve after infinities, double after 2,000 without."""
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.value *= BACKOFF
        elif self.finite_steps == INTERVAL:
            self.finite_steps = 0
            self.value = min(self.value * GROWTH, LARGEST)
