"""A supervised start: the policy is shown debates before it plays its own (SPEC 9.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from peergrad.debate.types import Debate, Protocol, Question, Reply
from peergrad.learn.datums import Datum, datums
from peergrad.learn.trainer import Trainer

# (debate so far, agent) → what that agent should say now.
Teacher = Callable[[Debate, int], str]


def demonstrate(trainer: Trainer, protocol: Protocol, question: Question, say: Teacher) -> Debate:
    """A debate in which every agent says what the teacher would, in the policy's own tokens."""
    debate = Debate(f"lesson/{question.id}", question, protocol)
    while wave := protocol.wave(debate):
        replies: list[Reply] = []
        for ask in wave:
            text = say(debate, ask.agent)
            replies.append(Reply(text, tokens=trainer.tokens(ask, text)))
        debate = debate.extend(wave, replies)
    return debate


def lesson(debates: Sequence[Debate]) -> list[Datum]:
    """Training sequences that make every word of these debates likelier; their cross-entropy is the mean per token."""
    said = sum(len(turn.tokens.ids_T) for debate in debates for turn in debate.turns if turn.tokens)
    return [
        datum
        for debate in debates
        for datum in datums(
            debate,
            [
                np.full(0 if turn.tokens is None else len(turn.tokens.ids_T), 1 / max(1, said), np.float32)
                for turn in debate.turns
            ],
        )
    ]


def recorded(debates: Sequence[Debate]) -> Teacher:
    """A teacher who repeats recorded debates, matched by question."""
    by_question = {debate.question.id: debate for debate in debates}

    def say(debate: Debate, agent: int) -> str:
        round_ = len(debate.turns) // debate.agents
        record = by_question[debate.question.id]
        turns = [turn for index, turn in enumerate(record.turns) if record.round(index) == round_ and turn.agent == agent]
        return turns[0].text if turns else ""

    return say
