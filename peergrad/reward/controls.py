"""What may stand in place of the agents' votes (SPEC 4.13), and the truth beside them (SPEC 4.14)."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from peergrad.debate.types import Debate
from peergrad.reward.streams import Stream

Votes = Literal["peer", "shuffled", "majority", "none"]


def shuffled(debate: Debate, stream: Stream) -> Stream:
    """The same values among other turns: those of each round that have one, dealt out by a draw seeded with the debate's id.

    What a turn gets then says nothing about it, while a round has the same values as before.
    """
    source = list(range(len(debate.turns)))
    for round_ in range(debate.rounds):
        own = [i for i, turn in enumerate(debate.turns) if turn.round == round_ and turn.agent not in debate.opponents]
        turns = [i for i in own if stream.values[i] is not None]
        drawn = random.Random(f"{debate.id}/{round_}/{stream.name}").sample(turns, len(turns))
        for turn, other in zip(turns, drawn, strict=True):
            source[turn] = other
    return replace(stream, values=tuple(stream.values[i] for i in source), votes=tuple(stream.votes[i] for i in source))


def majority(debate: Debate, stream: Stream) -> Stream:
    """Self-consistency: +1 for an answer with the most frequent final value of its round, -1 for any other.

    Of several equally frequent values one is drawn, as it were: each is worth what a fair draw gives it on average.
    """
    answers = [debate.question.style.value(turn.solution or "") if turn.asked_to_answer else None for turn in debate.turns]
    times: dict[int, Counter[str]] = defaultdict(Counter)
    for turn, answer in zip(debate.turns, answers, strict=True):
        if answer is not None:
            times[turn.round][answer] += 1
    values: list[float | None] = []
    for turn, answer in zip(debate.turns, answers, strict=True):
        counts = [*times[turn.round].values()]
        if not counts or not turn.asked_to_answer:
            values.append(None)
        elif answer is not None and times[turn.round][answer] == max(counts):
            values.append(2 / counts.count(max(counts)) - 1)
        else:
            values.append(-1.0)
    return _without_votes(stream, values)


def nothing(debate: Debate, stream: Stream) -> Stream:
    """No score at all."""
    return _without_votes(stream, [None] * len(debate.turns))


def with_truth(
    debate: Debate, stream: Stream, truth: Callable[[int], bool | None], *, weight: float, bonus: float
) -> Stream:
    """``(1 - weight) * score + weight * correct``, correct being +1 or -1, and a bonus for a right final answer.

    What is missing, a score or a grade, counts as 0; a turn without either has no signal.
    """
    final = {turn.agent: index for index, turn in enumerate(debate.turns) if turn.asked_to_answer}.values() if bonus else ()
    values: list[float | None] = []
    for index, score in enumerate(stream.values):
        right = truth(index) if weight or index in final else None
        parts = [(1 - weight) * score] if score is not None and weight < 1 else []
        if right is not None and weight:
            parts.append(weight if right else -weight)
        if right is not None and index in final:
            parts.append(bonus if right else 0.0)
        values.append(sum(parts) if parts else None)
    return replace(stream, values=tuple(values))


def _without_votes(stream: Stream, values: list[float | None]) -> Stream:
    return replace(stream, values=tuple(values), votes=((),) * len(values))
