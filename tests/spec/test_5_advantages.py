"""SPEC 5: advantages."""

import math
from dataclasses import replace

import numpy as np
import pytest

from peergrad import EngineError
from peergrad.debate.transcript import dump, load
from peergrad.learn.data import Datum, advantages, has_signal
from peergrad.learn.kl import penalised
from peergrad.reward.rewards import RewardRules, score
from tests.helpers import parallel

NONE3 = ["N/A"] * 3
WIN_RATE = RewardRules(reward="win_rate")
ONE = parallel(3, NONE3, ["Agent 1 > Agent 2", "N/A", "N/A"])  # win rates 0, 1, 0; gen of turns 1, 2: +1, -1
TWO = parallel(3, NONE3, ["Agent 1 > Agent 2", "Agent 2 > Agent 0", "Agent 1 > Agent 0"])  # 0, 1, 0.5


def test_5_1_group():  # SPEC 5.1
    assert advantages([score(ONE, WIN_RATE)])[0][0] == pytest.approx((-1 / 3, 2 / 3, -1 / 3))
    gen, judge, form = advantages([score(ONE)])[0]
    assert gen == (None, 1, -1, None, None, None)  # turns without signal are left out of the mean
    assert judge == (None, None, None, 0, None, None)
    assert form == pytest.approx((1 / 6, 1 / 6, 1 / 6, 1 / 6, -1 / 3, -1 / 3))
    silent = score(parallel(3, NONE3, NONE3), RewardRules(format_penalty=False))
    assert not has_signal(silent.streams, advantages([silent])[0])
    for weight in (0.0, 1.0):
        scored = score(ONE, RewardRules(lambda_gen=weight, format_penalty=False))
        assert has_signal(scored.streams, advantages([scored])[0]) == bool(weight)
    tied = parallel(3, NONE3, ["Agent 1 = Agent 2", "Agent 0 = Agent 2", "Agent 0 = Agent 1"])
    assert advantages([score(tied, WIN_RATE)])[0][0] == (0, 0, 0)


def test_5_5_kl_penalty():  # SPEC 5.5
    sampled, base = np.log(np.array([[0.5, 0.5], [0.25, 0.8]])), np.log(np.array([[0.5, 0.25], [0.5, 0.8]]))
    # Differences: 0, log 2 | -log 2, and one of a token that was not sampled. Their mean is 0.
    data = [datum(sampled[0], [1.0, -1.0], [1, 1]), datum(sampled[1], [0.5, 0.0], [1, 0])]
    made, mean = penalised(data, [base[0], np.array([base[1][0], -np.inf])], 0.1)
    assert mean == pytest.approx(0, abs=1e-6)
    assert made[0].advantages_T == pytest.approx([1, -1 - 0.1 * math.log(2)])
    assert made[1].advantages_T == pytest.approx([0.5 + 0.1 * math.log(2), 0])
    made, mean = penalised(data[:1], [base[0]], 0.1)
    assert mean == pytest.approx(math.log(2) / 2)
    assert made[0].advantages_T == pytest.approx([1 + 0.05 * math.log(2), -1 - 0.05 * math.log(2)])
    with pytest.raises(EngineError, match="finds a token impossible"):
        penalised(data[:1], [np.array([0.0, -np.inf])], 0.1)


def test_5_6_opponents_have_no_part():  # SPEC 5.6
    def seated(debate, *opponents):
        turns = [replace(turn, by="base" if turn.agent in opponents else "") for turn in debate.turns]
        return replace(debate, turns=tuple(turns))

    against = seated(TWO, 1)
    assert load(dump(against)) == against
    assert against.opponents == {1}
    assert score(against, WIN_RATE).streams[0].values == (0, None, 0.5)  # votes by it, and for it, count
    assert advantages([score(against, WIN_RATE)])[0][0] == (-0.25, None, 0.25)
    for stream, own in zip(score(against).streams, score(TWO).streams, strict=True):
        assert stream.values == tuple(None if i % 3 == 1 else value for i, value in enumerate(own.values))
    both = [score(seated(ONE, 1), WIN_RATE), score(against, WIN_RATE)]
    assert advantages(both, center="batch")[1][0] == pytest.approx((-0.125, None, 0.375))
    alone = score(seated(TWO, 0, 1), WIN_RATE)
    assert not has_signal(alone.streams, advantages([alone])[0])


def datum(logprobs_T, advantages_T, mask_T):
    arrays = (np.asarray(column, np.float32) for column in (logprobs_T, advantages_T, mask_T, [1, 1]))
    return Datum("d", 0, (0,), np.array([1, 2]), np.array([2, 3]), *arrays)


def test_5_2_batch():  # SPEC 5.2
    batch = [score(ONE, WIN_RATE), score(TWO, WIN_RATE)]
    mean = (0 + 1 + 0 + 0 + 1 + 0.5) / 6
    centred = advantages(batch, center="batch")
    assert centred[0][0] == pytest.approx((-mean, 1 - mean, -mean))
    assert centred[1][0] == pytest.approx((-mean, 1 - mean, 0.5 - mean))
    std = math.sqrt((3 * mean**2 + 2 * (1 - mean) ** 2 + (0.5 - mean) ** 2) / 6)
    scaled = advantages(batch, center="batch", divide_by_std=True)
    assert scaled[1][0] == pytest.approx((-mean / std, (1 - mean) / std, (0.5 - mean) / std))


def test_5_3_seat():  # SPEC 5.3
    batch = [score(ONE, WIN_RATE), score(TWO, WIN_RATE)]
    centred = advantages(batch, center="seat")
    assert centred[0][0] == (0, 0, -0.25)
    assert centred[1][0] == (0, 0, 0.25)  # agent 1 wins always: that is its seat's credit, not its own
    turns = advantages([score(ONE), score(TWO)], center="seat")
    assert turns[0][0][1] == turns[1][0][1] == 0
    assert (turns[0][0][2], turns[1][0][2]) == (-0.5, 0.5)


@pytest.mark.parametrize("center", ["group", "batch", "seat"])
def test_5_4_advantages_sum_to_zero_over_the_centring_set(center):  # SPEC 5.4
    batch = [score(ONE), score(TWO)]
    centred = advantages(batch, center=center)
    for stream in range(3):
        sets = {}
        for index, scored in enumerate(batch):
            for unit, value in enumerate(centred[index][stream]):
                seat = (scored.debate.turns[unit].agent, unit // 3)
                key = {"group": index, "batch": 0, "seat": seat}[center]
                sets.setdefault(key, []).append(value or 0.0)
        assert all(abs(sum(values)) < 1e-12 for values in sets.values())
