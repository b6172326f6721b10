"""From debates to what is trained on (SPEC 5, 6, 7.3): score, advantages, credit, datums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from peergrad.debate.types import Debate
from peergrad.learn.advantages import Center, Values, advantages, has_signal
from peergrad.learn.credit import credit
from peergrad.learn.datums import Datum, credited, datums
from peergrad.reward.rewards import RewardRules, Scored, Truth, score


class Batch(NamedTuple):
    """Debates with their rewards, the advantages of each, and the training sequences of those with signal."""

    scored: tuple[Scored, ...]
    advantages: tuple[tuple[Values, ...], ...]
    data: tuple[Datum, ...]


def training_data(
    debates: Sequence[Debate],
    rules: RewardRules,
    truth: Callable[[Debate], Truth],
    *,
    center: Center = "group",
    divide_by_std: bool = False,
) -> Batch:
    """What a step trains on: debates with signal (SPEC 5.1), and of their sequences what is credited (SPEC 6.8)."""
    scored = tuple(score(debate, rules, truth(debate)) for debate in debates)
    centred = tuple(map(tuple, advantages(scored, center=center, divide_by_std=divide_by_std)))
    data = tuple(
        cut
        for one, values in zip(scored, centred, strict=True)
        if has_signal(one.streams, values)
        for datum in datums(one.debate, credit(one.debate, one.streams, values))
        if (cut := credited(datum))
    )
    return Batch(scored, centred, data)
