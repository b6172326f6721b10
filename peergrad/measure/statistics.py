"""How sure a number is: 95 % intervals over questions (docs/design/intervals.md).

A bootstrap that draws questions, not answers: whatever was measured about one question stands or falls together, and a
difference is taken within the question before anything is drawn, so it is paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = Sequence[float] | Sequence[float | None] | NDArray[np.float64]

DRAWS = 10_000
_Z = 1.959963984540054  # 97.5 % of a normal variable lie below
_T = (12.706, 4.3027, 3.1824, 2.7764)  # the same of Student's t with 1 to 4 degrees of freedom


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and where it may well lie: in 95 of 100 such measurements the truth is from ``low`` to ``high``."""

    value: float
    low: float
    high: float


def mean(values_Q: Floats) -> Interval | None:
    """The mean over questions of values from 0 to 1; a question without one is left out. ``None``: none has one."""
    return ratio(values_Q, np.ones(len(values_Q)))


def difference(a_Q: Floats, b_Q: Floats) -> Interval | None:
    """The mean of ``a - b`` over the same questions, from -1 to 1. A question without both values is left out."""
    held_Q = _array(a_Q) - _array(b_Q)
    held_Q = held_Q[~np.isnan(held_Q)]
    return _fraction(held_Q, np.ones_like(held_Q), -1.0, 1.0)


def ratio(numerator_Q: Floats, denominator_Q: Floats) -> Interval | None:
    """The share of right ones among many per question, as of votes: Σ numerator / Σ denominator, from 0 to 1.

    Each numerator is from 0 to its denominator. A question with none is left out.
    """
    top_Q, bottom_Q = _array(numerator_Q), _array(denominator_Q)
    held_Q = ~np.isnan(top_Q) & (bottom_Q > 0)
    return _fraction(top_Q[held_Q], bottom_Q[held_Q], 0.0, 1.0)


def correlation(xy_Q: Floats, xx_Q: Floats, yy_Q: Floats) -> Interval | None:
    """Pearson's correlation, from each question's sums of products of centred values. ``None`` where x or y is constant."""
    pulled = _pulls(xy_Q, xx_Q, yy_Q)
    if pulled is None:
        return None
    value, pull_Q = pulled
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
    """By how much one x, as ``(xy_Q, xx_Q)``, correlates better with y than another; ``None`` where one is constant."""
    a, b = _pulls(*first, yy_Q), _pulls(*second, yy_Q)
    if a is None or b is None:
        return None
    value, pull_Q = a[0] - b[0], a[1] - b[1]
    half = student_t(len(pull_Q) - 1) * _error(pull_Q) if len(pull_Q) > 1 else math.inf
    return Interval(value, max(-2.0, value - half), min(2.0, value + half))


def _fraction(top_Q: NDArray[np.float64], bottom_Q: NDArray[np.float64], least: float, most: float) -> Interval | None:
    """Σ top / Σ bottom, and its interval within ``least`` and ``most``, from drawing the questions again and again."""
    n = len(top_Q)
    if n == 0:
        return None
    total = float(bottom_Q.sum())
    value = min(max(float(top_Q.sum()) / total, least), most)
    if n == 1:
        return Interval(value, least, most)  # one question says nothing about the next
    t, usual = student_t(n - 1), total / n
    # Questions nobody has seen: t² of them, half at either end, as in the interval of Agresti and Coull; fewer where
    # questions scatter less than yes-or-no ones would, and not many more than were seen.
    unseen = min(t**2, n + 4) * _scatter(top_Q, bottom_Q, value, least, most)
    pairs_K, counts_K = np.unique(top_Q + 1j * bottom_Q, return_counts=True)  # as one number each, which sorts faster
    kinds_K = np.concatenate((np.stack((pairs_K.real, pairs_K.imag), 1), [[least * usual, usual], [most * usual, usual]]))
    chances_K = np.concatenate((counts_K, [unseen / 2, unseen / 2])) / (n + unseen)
    rng, block = np.random.default_rng(0), max(1, 4_000_000 // len(kinds_K))  # always the same draws, few in memory at once
    blocks = [min(block, DRAWS - done) for done in range(0, DRAWS, block)]
    sums_B = np.concatenate([rng.multinomial(round(n + unseen), chances_K, size) @ kinds_K for size in blocks])
    drawn_B = sums_B[:, 0] / sums_B[:, 1]
    # A resample scatters by sqrt((n - 1) / n) too little, and Student's t allows for its scatter being an estimate.
    tail = NormalDist().cdf(-t * math.sqrt(n / (n - 1)))
    low, high = np.quantile(drawn_B, (tail, 1 - tail))
    return Interval(value, max(least, min(float(low), value)), min(most, max(float(high), value)))


def _scatter(top_Q: NDArray[np.float64], bottom_Q: NDArray[np.float64], value: float, least: float, most: float) -> float:
    """How much questions differ, as a share of how much they could; 1 where no two differ, since that may be chance."""
    off_Q = (top_Q - value * bottom_Q) / (bottom_Q.mean() * (most - least))
    x, variance = (value - least) / (most - least), float(off_Q @ off_Q) / (len(top_Q) - 1)
    return min(1.0, variance / (x * (1 - x))) if variance > 1e-12 and 0 < x < 1 else 1.0


def student_t(freedom: int) -> float:
    """The 97.5 % point of Student's t: so many standard errors to each side, when the scatter is itself an estimate."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return (  # within 0.003 from 5 degrees on (Cornish and Fisher)
        _Z
        + (_Z**3 + _Z) / (4 * freedom)
        + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
        + (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / (384 * freedom**3)
    )


def _pulls(xy_Q: Floats, xx_Q: Floats, yy_Q: Floats) -> tuple[float, NDArray[np.float64]] | None:
    """The correlation, and how far each question pulls it from where the others would have it."""
    xy_Q, xx_Q, yy_Q = (_array(sums) for sums in (xy_Q, xx_Q, yy_Q))
    xx, yy = float(xx_Q.sum()), float(yy_Q.sum())
    if xx <= 0 or yy <= 0:
        return None
    scale = math.sqrt(xx * yy)
    value = min(max(float(xy_Q.sum()) / scale, -1.0), 1.0)
    return value, xy_Q / scale - value / 2 * (xx_Q / xx + yy_Q / yy)


def _error(pull_Q: NDArray[np.float64]) -> float:
    """The standard error of a sum over questions."""
    return math.sqrt(len(pull_Q) / (len(pull_Q) - 1) * float(pull_Q @ pull_Q))


def _array(values: Floats) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)
