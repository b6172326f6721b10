"""How closely one thing follows another over questions, and how sure that is (docs/design/intervals.md)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peergrad.measure.statistics import (
    Floats,
    Interval,
    student_t,
)


def correlation(xy_Q: Floats, xx_Q: Floats, yy_Q: Floats) -> Interval | None:
    """Pearson's correlation, from each question's sums of products of centred values. ``None`` where x or y is constant."""
    found = _pulls(xy_Q, xx_Q, yy_Q)
    if found is None:
        return None
    value, pull_Q = found
    n = len(pull_Q)
    if n == 1:
        return Interval(value, -1.0, 1.0)
    error = _error(pull_Q)
    if error <= 1e-9 or abs(value) >= 1 - 1e-12:
        unseen = student_t(n - 1) ** 2 / (n + student_t(n - 1) ** 2)  # as for a mean of equal values
        return Interval(value, value - (1 + value) * unseen, value + (1 - value) * unseen)
    # On Fisher's scale the error is nearly the same everywhere, and the interval stays within bounds.
    half = student_t(n - 1) * error / (1 - value**2)
    return Interval(value, math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half))


def correlation_difference(first: tuple[Floats, Floats], second: tuple[Floats, Floats], yy_Q: Floats) -> Interval | None:
    """By how much one x correlates better with y than another does, each as ``(xy_Q, xx_Q)`` over the same questions.

    ``None`` where either x, or y, is constant.
    """
    a, b = _pulls(*first, yy_Q), _pulls(*second, yy_Q)
    if a is None or b is None:
        return None
    value, pull_Q = a[0] - b[0], a[1] - b[1]
    half = student_t(len(pull_Q) - 1) * _error(pull_Q) if len(pull_Q) > 1 else math.inf
    return Interval(value, max(-2.0, value - half), min(2.0, value + half))


def _pulls(xy_Q: Floats, xx_Q: Floats, yy_Q: Floats) -> tuple[float, NDArray[np.float64]] | None:
    """The correlation, and how far each question pulls it from where the others would have it."""
    xy_Q, xx_Q, yy_Q = (np.asarray(sums, np.float64) for sums in (xy_Q, xx_Q, yy_Q))
    xx, yy = float(xx_Q.sum()), float(yy_Q.sum())
    if xx <= 0 or yy <= 0:
        return None
    scale = math.sqrt(xx * yy)
    value = min(max(float(xy_Q.sum()) / scale, -1.0), 1.0)
    return value, xy_Q / scale - value / 2 * (xx_Q / xx + yy_Q / yy)


def _error(pull_Q: NDArray[np.float64]) -> float:
    """The standard error of a sum over questions."""
    return math.sqrt(len(pull_Q) / (len(pull_Q) - 1) * float(pull_Q @ pull_Q))
