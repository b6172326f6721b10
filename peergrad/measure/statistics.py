"""How sure a number is: 95 % intervals over questions (docs/design/intervals.md).

Questions are drawn, not answers: whatever was measured about one question stands or falls together. The interval is
Wilson's, for as many yes-or-no questions as would be just as uncertain; no random numbers are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = Sequence[float] | NDArray[np.float64]

_Z = 1.959963984540054  # 97.5 % of a normal variable lie below
_T = (12.706, 4.3027, 3.1824, 2.7764)  # the same of Student's t with 1 to 4 degrees of freedom


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and where it may well lie: in 95 of 100 such measurements the truth is from ``low`` to ``high``."""

    value: float
    low: float
    high: float


def mean(values_Q: Floats) -> Interval | None:
    """The mean over questions of values from 0 to 1. NaN: the question has no value. ``None``: no question has."""
    held_Q = _array(values_Q)
    held_Q = held_Q[~np.isnan(held_Q)]
    return _fraction(held_Q, np.ones_like(held_Q), 0.0, 1.0)


def difference(a_Q: Floats, b_Q: Floats) -> Interval | None:
    """The mean of ``a - b`` over the same questions, from -1 to 1. A question without both values is left out."""
    held_Q = _array(a_Q) - _array(b_Q)
    held_Q = held_Q[~np.isnan(held_Q)]
    return _fraction(held_Q, np.ones_like(held_Q), -1.0, 1.0)


def ratio(numerator_Q: Floats, denominator_Q: Floats) -> Interval | None:
    """The share of right ones among many per question, as of votes: Σ numerator / Σ denominator, from 0 to 1.

    Each numerator is from 0 to its denominator. A question with none, or NaN, is left out.
    """
    top_Q, bottom_Q = _array(numerator_Q), _array(denominator_Q)
    held_Q = ~np.isnan(top_Q) & (bottom_Q > 0)
    return _fraction(top_Q[held_Q], bottom_Q[held_Q], 0.0, 1.0)


def _fraction(top_Q: NDArray[np.float64], bottom_Q: NDArray[np.float64], least: float, most: float) -> Interval | None:
    """Σ top / Σ bottom and its interval within ``least`` and ``most``, from the scatter of the questions about it."""
    n = len(top_Q)
    if n == 0:
        return None
    total = float(bottom_Q.sum())
    value = min(max(float(top_Q.sum()) / total, least), most)
    scatter_Q = top_Q - value * bottom_Q
    if n == 1:
        return Interval(value, least, most)  # one question says nothing about the next
    x, z2 = (value - least) / (most - least), _t(n - 1) ** 2
    if float(np.abs(scatter_Q).max()) * n <= 1e-9 * total:
        # No two questions differ. As for 0 right of n, the most that may lie at either end unseen:
        unseen = z2 / (n + z2)
        low, high = x * (1 - unseen), x + (1 - x) * unseen
    else:
        variance = n / (n - 1) * float(scatter_Q @ scatter_Q) / (total * (most - least)) ** 2
        alike = x * (1 - x) / variance  # so many yes-or-no questions would be as uncertain
        centre = (x + z2 / (2 * alike)) / (1 + z2 / alike)
        half = math.sqrt(z2 * x * (1 - x) / alike + (z2 / (2 * alike)) ** 2) / (1 + z2 / alike)
        low, high = centre - half, centre + half
    # Rounding must not put the number itself outside.
    low, high = least + (most - least) * low, least + (most - least) * high
    return Interval(value, max(least, min(low, value)), min(most, max(high, value)))


def _t(freedom: int) -> float:
    """The 97.5 % point of Student's t: so many standard errors to each side, when the scatter is itself an estimate."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return (  # within 0.003 from 5 degrees on (Cornish and Fisher)
        _Z
        + (_Z**3 + _Z) / (4 * freedom)
        + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
        + (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / (384 * freedom**3)
    )


def _array(values: Floats) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)
