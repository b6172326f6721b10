"""Evaluations with known truth: every setting draws one measurement after another, and says what it is a measurement of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Literal

import numpy as np

from peergrad.measure.statistics import Interval, difference, mean, ratio

Kind = Literal["mean", "difference", "ratio"]
MEASURES: dict[Kind, Callable[..., Interval | None]] = {"mean": mean, "difference": difference, "ratio": ratio}


@dataclass(frozen=True)
class Setting:
    """``draw(rng, reps, n)`` gives the arguments of the measure for many measurements, each of shape ``(reps, n)``."""

    name: str
    kind: Kind
    truth: float
    draw: Callable[..., tuple[np.ndarray, ...]]


def yes_or_no(p):
    return Setting(f"yes or no, p {p}", "mean", p, lambda rng, reps, n: ((rng.random((reps, n)) < p).astype(float),))


def average(truth, alike, k):
    """avg@k: questions differ in difficulty, the more so the smaller ``alike``."""

    def draw(rng, reps, n):
        return (rng.binomial(k, _difficulty(rng, truth, alike, (reps, n))) / k,)

    return Setting(f"avg@{k}, p {truth}, alike {alike}", "mean", truth, draw)


def paired(easy, alike, gain, k):
    """Two methods on the same questions. The first also solves a share ``gain`` of what the second can't."""

    def draw(rng, reps, n):
        p = _difficulty(rng, easy, alike, (reps, n))
        return rng.binomial(k, p + gain * (1 - p)) / k, rng.binomial(k, p) / k

    return Setting(f"k {k}, p {easy}, alike {alike}, gain {gain}", "difference", gain * (1 - easy), draw)


def votes(truth, alike, least, most):
    """Right votes among the votes of a question, whose number varies; those of one question agree."""

    def draw(rng, reps, n):
        count = rng.integers(least, most + 1, (reps, n))
        return rng.binomial(count, _difficulty(rng, truth, alike, (reps, n))).astype(float), count.astype(float)

    return Setting(f"{least} to {most} votes, p {truth}, alike {alike}", "ratio", truth, draw)


def _difficulty(rng, p, alike, shape):
    return rng.beta(p * alike, (1 - p) * alike, shape)


YES_OR_NO = [yes_or_no(p) for p in (0.1, 0.3, 0.5, 0.8)]
AVERAGES = [average(0.1, 1, 4), average(0.3, 2, 8), average(0.5, 0.5, 4), average(0.5, 20, 8), average(0.8, 3, 16)]
PAIRED = [
    paired(0.5, 2, 0, 1),
    paired(0.5, 2, 0.2, 1),
    paired(0.5, 0.6, 0.1, 1),
    paired(0.2, 5, 0.1, 1),
    paired(0.8, 5, 0.3, 1),
    paired(0.5, 0.6, 0.1, 8),
    paired(0.5, 20, 0.1, 8),
    paired(0.05, 20, 0.02, 8),
]
VOTES = [
    votes(0.6, 4, 1, 6),
    votes(0.7, 1, 1, 10),
    votes(0.9, 5, 1, 6),
    votes(0.5, 30, 3, 12),
    votes(0.6, 4, 0, 3),
    votes(0.95, 10, 1, 4),
]
HARD = [
    yes_or_no(0.02),
    yes_or_no(0.05),
    average(0.05, 1, 8),
    average(0.02, 50, 4),
    paired(0.5, 0.1, 0.05, 1),
    paired(0.05, 20, 0, 1),
]


def coverage(setting, n, reps, seed=0):
    """How often the interval of ``setting`` at ``n`` questions holds the truth."""
    drawn = setting.draw(np.random.default_rng([seed, n]), reps, n)
    measure = MEASURES[setting.kind]
    intervals = [measure(*values) for values in zip(*drawn, strict=True)]
    return sum(made is not None and made.low <= setting.truth <= made.high for made in intervals) / reps


def exact_coverage(p, n):
    """The same for yes or no, without drawing: a sum over how many of ``n`` are right."""
    chance = [lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log(1 - p) for k in range(n + 1)]
    return sum(exp(c) for c, interval in zip(chance, _of_yes_or_no(n), strict=True) if interval.low <= p <= interval.high)


@functools.cache
def _of_yes_or_no(n):
    """The interval for every number of right answers."""
    return [mean([1.0] * k + [0.0] * (n - k)) for k in range(n + 1)]
