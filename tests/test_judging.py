"""The benchmark of votes: its scores, and soft votes against the sampler's own log-probabilities."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ballot_forms import SHOWN, Answer, rotated
from benchmarks.judging import Ballot, choose, pooled, row
from peergrad.debate.types import Message
from peergrad.engines.local.engine import Local

PARROT = Path(__file__).parent / "fixtures" / "parrot"
ANSWERS = [[Answer("x" * i, i < 3, "1" if i < 3 else str(i), 0.0, False) for i in range(8)] for _ in range(3)]


@pytest.mark.parametrize(("sign", "share"), [(1.0, 1.0), (-1.0, 0.0), (0.0, 0.5)])
def test_a_score_is_as_good_as_its_ballots(sign, share):
    ballots = [
        Ballot(q, voter, shown, tuple(sign * group[i].right for i in shown))
        for q, group in enumerate(ANSWERS)
        for voter, shown in enumerate(rotated(8, SHOWN, "seed 1"))
    ]
    line = row(ballots, ANSWERS, soft=False)
    assert line["over"][0] == share
    assert line["decided"] == abs(sign)
    assert line["places"] == pytest.approx([0, 0, 0, 0])


def test_equal_values_share_their_score_and_missing_ones_do_not():
    group = [Answer("", True, "1", 0, False), Answer("", True, "1", 0, False), *[Answer("", False, None, 0, False)] * 2]
    assert pooled([1.0, 0.0, 0.5, -0.5], group) == [0.5, 0.5, 0.5, -0.5]


def test_soft_votes_are_the_probabilities_of_the_options():
    local = Local.load_model(str(PARROT), train_tokens=0)
    words = "What is this long question about, and which of the many words in it are the same as before? " * 3
    prompts = [local.chat.prompt((Message("user", f"{i % 3} {words} {i}"),)) for i in range(6)]
    options = [local.chat.tokens((Message("user", "."),), letter, 1.0).ids_T[:1] for letter in "AB"]

    async def scored():
        sampler = local.base_sampler()
        return [[(await sampler.logprobs(np.concatenate((p, o))))[-1] for o in options] for p in prompts]

    likely = np.exp(np.array(asyncio.run(scored())))
    assert choose(local, prompts, "AB") == pytest.approx(likely / likely.sum(1, keepdims=True), abs=1e-5)
