"""Student's t distribution, and F.

Importing scipy for them would take longer than a what-if analysis.
"""

from __future__ import annotations

import math

TINY, EXACT, MOST = 1e-300, 1e-15, 10_000


def upper_tail(t: float, freedom: float) -> float:
    """Probability that a t variable exceeds t; the degrees of freedom may be no whole number.

    >>> round(upper_tail(2.0, 10), 6), upper_tail(0.0, 3), round(upper_tail(-2.0, 10), 6)
    (0.036694, 0.5, 0.963306)
    """
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t), t * t) / 2
    return half if t >= 0 else 1 - half


def _incomplete_beta(a: float, b: float, x: float, square: float) -> float:
    """The regularized incomplete beta function I_x(a, b), of x = 2 a / (2 a + square).

    By its continued fraction: DLMF 8.17.22, on the side where it converges fast.
    """
    if square == 0:
        return 1.0
    rest = square / (2 * a + square)  # 1 - x without cancellation
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), by Lentz's method."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MOST):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + step * d)
            c = _away(1 + step / c)
            value *= c * d
        if abs(c * d - 1) < EXACT:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > TINY else TINY


def f_upper_tail(ratio: float, above: float, below: float) -> float:
    """Probability that an F variable exceeds a ratio of mean squares; freedoms above and below.

    >>> round(f_upper_tail(2.5, 4, 30), 5), f_upper_tail(0.0, 3, 8)
    (0.06348, 1.0)
    """
    if ratio <= 0:
        return 1.0
    if math.isinf(ratio):
        return 0.0
    square = above * ratio
    return _incomplete_beta(below / 2, above / 2, below / (below + square), square)
