"""Rewards of one's own: plain functions from a debate, its valid votes and the truth to streams.

    peergrad train --preset demo-parallel --reward my_rewards:agreement        # in the folder of this file
    peergrad score debates.jsonl --reward my_rewards:agreement

or ``RewardRules(reward="my_rewards:agreement")`` in Python.
"""

from __future__ import annotations

from collections import Counter

from peergrad.debate.question import last_boxed
from peergrad.debate.types import Debate
from peergrad.reward.rewards import Truth
from peergrad.reward.streams import Stream
from peergrad.reward.tally import Tally


def agreement(debate: Debate, tally: Tally, truth: Truth) -> list[Stream]:
    """Self-consistency: a turn is worth the share of the other agents whose last answer is the same as its own."""
    said = [None if turn.parsed.error else last_boxed(turn.text) for turn in debate.turns]
    last = {turn.agent: answer for turn, answer in zip(debate.turns, said, strict=True)}
    counts = Counter(answer for answer in last.values() if answer is not None)
    values = tuple(
        None if answer is None else (counts[answer] - (last[turn.agent] == answer)) / max(1, debate.agents - 1)
        for turn, answer in zip(debate.turns, said, strict=True)
    )
    return [Stream("agreement", "turn", values, ("solution",), follows="solution")]


def correctness(debate: Debate, tally: Tally, truth: Truth) -> list[Stream]:
    """Ordinary reinforcement learning with answers that can be checked: 1 for a right solution, 0 for a wrong one."""
    right = [truth(turn) for turn in range(len(debate.turns))]
    values = tuple(None if r is None else float(r) for r in right)
    return [Stream("correct", "turn", values, ("solution",), follows="solution")]
