"""Correlations over questions: their intervals hold the truth, and stay sane where there is little to go by."""

import numpy as np
import pytest

from peergrad.measure.statistics import Interval, correlation, correlation_difference


def rewarded(rng, n, noise_a, noise_b):
    """Sums of products of two rewards of five agents, 1 to 4 of them right, with their rightness; and both correlations.

    A reward is rightness and noise, half of which the two rewards share. Rightness scatters by k(5-k)/5, 1 on average.
    """
    right = (np.arange(5) < rng.integers(1, 5, (n, 1))).astype(float)
    y = right - right.mean(1, keepdims=True)
    shared = rng.normal(size=y.shape)
    sums = []
    for noise in (noise_a, noise_b):
        x = right + noise * (shared + rng.normal(size=y.shape)) / np.sqrt(2)
        x -= x.mean(1, keepdims=True)
        sums.append(((x * y).sum(1), (x * x).sum(1)))
    return sums[0], sums[1], (y * y).sum(1), [1 / np.sqrt(1 + 4 * noise**2) for noise in (noise_a, noise_b)]


@pytest.mark.parametrize(("noise_a", "noise_b"), [(0.3, 0.5), (1, 1), (2, 4)])
@pytest.mark.parametrize("n", [50, 200])
def test_coverage_of_correlations_and_their_differences(noise_a, noise_b, n):
    rng = np.random.default_rng(0)
    held = held_difference = 0
    for _ in range(2000):
        a, b, yy, truth = rewarded(rng, n, noise_a, noise_b)
        made, apart = correlation(*a, yy), correlation_difference(a, b, yy)
        held += made.low <= truth[0] <= made.high
        held_difference += apart.low <= truth[0] - truth[1] <= apart.high
    assert 0.93 <= held / 2000 <= 0.97
    assert 0.93 <= held_difference / 2000 <= 0.97


def test_correlations_at_the_edge():
    assert correlation([1.0], [1.0], [1.0]) == Interval(1, -1, 1)
    perfect = correlation([2.0] * 20, [2.0] * 20, [2.0] * 20)
    assert (perfect.value, perfect.high) == (1, 1)
    assert perfect.low == pytest.approx(1 - 2 * 2.093**2 / (20 + 2.093**2), abs=1e-4)
    assert correlation([0.0] * 3, [0.0] * 3, [1.0] * 3) is None
    assert correlation([], [], []) is None
    assert correlation_difference(([1.0], [1.0]), ([0.0], [0.0]), [1.0]) is None
    assert correlation_difference(([1.0], [1.0]), ([-1.0], [1.0]), [1.0]) == Interval(2, -2, 2)
    same = ([0.5, 0.2, -0.1], [1.0, 0.3, 0.4])
    assert correlation_difference(same, same, [1.0, 1.0, 0.5]) == Interval(0, 0, 0)
