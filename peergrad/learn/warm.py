"""A supervised start: the policy is shown debates and solutions before it plays its own (SPEC 9.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from peergrad.debate.protocol import BaseProtocol, call_protocol
from peergrad.debate.types import Ask, Debate, Reply, Turn, Usage
from peergrad.learn.data import Datum, credited, datums
from peergrad.learn.trainer import Trainer
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import Truth
from peergrad.reward.tally import tally, verdict_votes

Keep = Literal["readable", "right", "won"]

# (debate so far, ask) → what the agent that is asked should say; None: the debate ends there.
Teacher = Callable[[Debate, Ask], str | None]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A debate to learn from, and the turns of it that count, by round and agent; ``None``: all that can be read.

    With ``protocol`` it is held again in that protocol, in the policy's own tokens: its turns are repeated, or a teacher
    speaks. Without, it has the tokens it was sampled with.
    """

    debate: Debate
    turns: frozenset[tuple[int, int]] | None = None
    protocol: BaseProtocol | None = None
    teacher: Teacher | None = None


class LessonData(NamedTuple):
    """What an update of the warm start learns from: sequences, and how many turns and tokens of replies count in them."""

    data: list[Datum]
    turns: int
    tokens: int


def kept_turns(debate: Debate, keep: Keep, truth: Truth) -> tuple[int, ...]:
    """The turns of a debate that are worth learning from: all that can be read, or of these the right ones, or the winner's.

    A turn of choices has no words to learn.
    """
    readable = [i for i, turn in enumerate(debate.turns) if not (turn.parsed.error or turn.truncated or turn.chosen)]
    if keep == "right":
        return tuple(index for index in readable if truth(index))
    agents = winners(debate) if keep == "won" else range(debate.agents)
    return tuple(index for index in readable if debate.turns[index].agent in agents)


def winners(debate: Debate) -> frozenset[int]:
    """The agents with the best win rate among those with a readable solution, if it is above one half."""
    rates = win_rate(debate.agents, tally(debate).votes + verdict_votes(debate))
    able = {agent: rate for agent, rate in enumerate(rates) if debate.final_turn(agent) is not None}
    return frozenset(agent for agent, rate in able.items() if rate == max(able.values()) > 0.5)


def lesson_batch(lessons: Sequence[Lesson], size: int, update: int) -> Sequence[Lesson]:
    """The lessons of an update, counted from 0: each once an epoch, in order; the last update of an epoch may have fewer."""
    place = update % updates_per_epoch(len(lessons), size)
    return lessons[place * size : (place + 1) * size]


def updates_per_epoch(lessons: int, size: int) -> int:
    """How many updates show every lesson once."""
    return max(1, -(-lessons // size))


def lesson_data(trainer: Trainer, lessons: Sequence[Lesson]) -> LessonData:
    """Training sequences that make the turns that count likelier: their cross-entropy, a mean over tokens.

    Turns that the trainer's context can't hold, or that can't be read by the run's protocol, do not count.
    """
    debates = [_held(trainer, lesson) for lesson in lessons]
    counts = [
        [_counts(turn, lesson, trainer.context) for turn in debate.turns]
        for lesson, debate in zip(lessons, debates, strict=True)
    ]
    lengths = [[0 if turn.tokens is None else len(turn.tokens.ids_T) for turn in debate.turns] for debate in debates]
    tokens = sum(n for c, ns in zip(counts, lengths, strict=True) for count, n in zip(c, ns, strict=True) if count)
    data = [
        cut
        for debate, c, ns in zip(debates, counts, lengths, strict=True)
        for datum in datums(
            debate, [np.full(n, count, np.float32) / np.float32(max(1, tokens)) for count, n in zip(c, ns, strict=True)]
        )
        if (cut := credited(datum))
    ]
    return LessonData(data, sum(map(sum, counts)), tokens)


def _held(trainer: Trainer, lesson: Lesson) -> Debate:
    """The debate of a lesson with its tokens."""
    if lesson.protocol is None:
        return lesson.debate
    texts = {(turn.round, turn.agent): turn.text for turn in lesson.debate.turns}
    debate = Debate(lesson.debate.id, lesson.debate.question, lesson.protocol)
    while wave := call_protocol(debate.protocol, debate.protocol.wave, debate):
        replies: list[Reply] = []
        for ask in wave:
            text = lesson.teacher(debate, ask) if lesson.teacher else texts.get((ask.round, ask.agent))
            if text is None:
                return debate
            if ask.choices:  # probabilities are nothing that the policy says
                replies.append(Reply(text, usage=Usage(0, 0)))
            else:
                replies.append(Reply(text, tokens=trainer.tokens(ask, text)))
        debate = debate.extend(wave, replies)
    return debate


def _counts(turn: Turn, lesson: Lesson, context: int) -> bool:
    chosen = lesson.turns is None or (turn.round, turn.agent) in lesson.turns
    fits = turn.tokens is not None and len(turn.tokens.prompt_T) + len(turn.tokens.ids_T) <= context
    return chosen and fits and turn.parsed.error is None
