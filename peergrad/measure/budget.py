"""Equal cost: what a debate took in tokens, and how many independent answers the same tokens buy."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from peergrad.debate.types import Debate

Cost = Literal["processed", "sampled"]


def cost(debate: Debate, by: Cost = "processed") -> int | None:
    """The tokens a debate took; ``None`` if its engine did not count them.

    ``sampled`` counts replies alone. ``processed`` counts prompts as well, each token once where it is computed once: the
    prompts of a parallel agent are one growing dialogue, so its last prompt and reply hold all there was. Prompts of
    different agents, of sequential turns and of independent answers are counted in full, each by itself.
    """
    used = [turn.used for turn in debate.turns]
    if any(one is None for one in used):
        return None
    if by == "sampled":
        return sum(one.sampled for one in used if one)
    if debate.protocol.one_dialogue:
        last = {turn.agent: one for turn, one in zip(debate.turns, used, strict=True) if one}
        return sum(one.prompt + one.sampled for one in last.values())
    return sum(one.prompt + one.sampled for one in used if one)


def draws(spent: Sequence[Sequence[int]], budgets: Sequence[int], least: int) -> list[int]:
    """How many more answers to draw to each question, given what those drawn so far cost; all 0 when there are enough.

    At least ``least`` answers to a question are drawn, and then until they cost what may be spent on it. Most of what is
    left is drawn at once, and the last ones one by one, so that few are drawn in vain.
    """
    drawn = [price for prices in spent for price in prices]
    usual = sum(drawn) / len(drawn) if drawn else None
    more: list[int] = []
    for prices, budget in zip(spent, budgets, strict=True):
        missing = least - len(prices)
        left = budget - sum(prices)
        if left > 0 and usual:
            price = sum(prices) / len(prices) if prices else usual
            missing = max(missing, 1, int(0.8 * left / max(price, 1.0)))
        more.append(max(missing, 0))
    return more


def affordable(spent: Sequence[Sequence[int]], budgets: Sequence[int]) -> list[int]:
    """How many of the answers drawn to each question count, in the order drawn, at least one.

    The number whose cost comes closest; what was spent too much or too little is made up for at the next question, so that
    over all questions the cost differs by less than one answer's.
    """
    counted: list[int] = []
    carried = 0
    for prices, budget in zip(spent, budgets, strict=True):
        sums = list(accumulate(prices))
        target = budget + carried
        after = min(bisect.bisect_left(sums, target), len(sums) - 1)
        best = min(after, max(after - 1, 0), key=lambda index: abs(sums[index] - target))
        counted.append(best + 1)
        carried = target - sums[best]
    return counted
