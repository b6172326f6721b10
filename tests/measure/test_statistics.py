"""Intervals hold what they promise, on data whose truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peergrad.measure import statistics
from peergrad.measure.statistics import Interval, difference, mean, ratio
from tests.measure.simulated import AVERAGES, PAIRED, VOTES, coverage, exact_coverage

SIZES = (50, 200)  # benchmarks/coverage.py has more
NAN = math.nan


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.8])
def test_coverage_of_yes_or_no_is_computed_not_drawn(p):
    for n in (50, 100, 200):
        assert 0.93 <= exact_coverage(p, n) <= 0.9705, n  # 0.9703 for 50 and p 0.1, where one more right answer decides


@pytest.fixture
def few_draws(monkeypatch):
    """Thousands of intervals are made: fewer draws for each are enough to count which hold the truth."""
    monkeypatch.setattr(statistics, "DRAWS", 500)


# Every fourth one, or every other one where there is time: benchmarks/coverage.py has all of them.
SOME = [*AVERAGES, *PAIRED, *VOTES][::2]
SOME = [pytest.param(setting, marks=[pytest.mark.slow] * (at % 2), id=setting.name) for at, setting in enumerate(SOME)]


@pytest.mark.parametrize("setting", SOME)
def test_coverage_on_simulated_evaluations(setting, few_draws):
    for n in SIZES:
        assert 0.93 <= coverage(setting, n, reps=1000) <= 0.97 + 0.005, n  # 0.5 % for chance: 1,000 measurements


def test_few_questions_err_on_the_safe_side(few_draws):
    for setting in (*AVERAGES, *PAIRED, *VOTES)[::3]:
        assert coverage(setting, 20, reps=300) >= 0.93, setting.name


def test_very_few_questions_say_very_little():
    widths = [mean([0.0] * n).high for n in range(1, 12)]
    assert widths == sorted(widths, reverse=True)
    assert widths[:2] == [1, 1]
    for n in range(2, 10):
        for p in (0.1, 0.3, 0.5):
            assert exact_coverage(p, n) >= 0.95, (n, p)


def test_few_yes_or_no_questions_too():
    for p in (0.1, 0.3, 0.5, 0.8):
        assert exact_coverage(p, 10) >= 0.95
        assert exact_coverage(p, 20) >= 0.95


def test_a_plain_bootstrap_would_not_do():
    """Why there are unseen questions: all wrong must not mean surely 0 %."""
    nothing = mean([0.0] * 20)
    assert (nothing.value, nothing.low) == (0, 0)
    assert 0.1 < nothing.high < 0.3
    same = [0.1, 0.7] * 10
    alike = difference(same, same)
    assert alike.value == 0
    assert -0.3 < alike.low < -0.1
    assert 0.1 < alike.high < 0.3
    assert mean([0.3]) == Interval(0.3, 0, 1)
    assert difference([1.0], [0.0]) == Interval(1, -1, 1)


def test_many_questions_agree_with_the_normal_interval():
    rng = np.random.default_rng(3)
    values = np.round(rng.random(2000) ** 2, 1)
    made, half = mean(values), 1.96 * values.std() / math.sqrt(2000)
    assert (made.low, made.high) == pytest.approx((made.value - half, made.value + half), abs=0.1 * half)
    assert mean(values) == made  # the same draws every time


def test_what_is_missing_is_left_out():
    assert mean([1, NAN, 0, 1]) == mean([1, 0, 1])
    assert difference([1, NAN, 0, 1, 0], [0, 1, NAN, 1, 1]) == difference([1, 1, 0], [0, 1, 1])
    assert ratio([1, 0, 3, NAN], [2, 0, 4, 1]) == ratio([1, 3], [2, 4])
    assert mean([]) is None
    assert mean([NAN]) is None
    assert ratio([0, 0], [0, 0]) is None
    assert difference([NAN], [1]) is None


def test_a_mean_is_a_ratio_of_one_each_and_votes_of_one_question_are_not_more_questions():
    values = [0.0, 0.25, 1.0, 0.75, 0.5, 0.0]
    assert ratio(values, [1] * 6) == mean(values)
    once, tenfold = ratio([1, 0, 1, 1, 0], [1] * 5), ratio([10, 0, 10, 10, 0], [10] * 5)
    assert (once.low, once.high) == pytest.approx((tenfold.low, tenfold.high), abs=0.02)


def test_pairing_pays():
    rng = np.random.default_rng(0)
    hard_Q = rng.random(300)
    worse, better = (rng.random(300) < hard_Q * 0.9) * 1.0, np.zeros(300)
    better[:] = np.maximum(worse, rng.random(300) < 0.1)
    gained = difference(better, worse)
    assert gained.low > 0
    alone = mean(better)
    assert gained.high - gained.low < alone.high - alone.low


fractions = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=50)
@given(fractions)
def test_bounds_hold_and_hold_the_number(rows):
    a, b, many = (np.array(column) for column in zip(*rows, strict=True))
    for made, least in ((mean(a), 0), (difference(a, b), -1), (ratio(a * many, many), 0)):
        if made is not None:
            assert least <= made.low <= made.value <= made.high <= 1
            assert made.high > made.low
    assert mean(a).value == pytest.approx(a.mean())
