"""A supervised start: the policy is shown debates before it plays its own (SPEC 9.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from peergrad.debate.protocol import BaseProtocol, call_protocol
from peergrad.debate.types import Ask, Debate, Question, Reply, Usage
from peergrad.learn.data import Datum, datums
from peergrad.learn.trainer import Trainer

# (debate so far, ask) → what the agent that is asked should say; None: the lesson is over.
Teacher = Callable[[Debate, Ask], str | None]


def demonstrate(trainer: Trainer, protocol: BaseProtocol, question: Question, say: Teacher) -> Debate:
    """A debate in which every agent says what the teacher would, in the policy's own tokens."""
    debate = Debate(f"lesson/{question.id}", question, protocol)
    while wave := call_protocol(protocol, protocol.wave, debate):
        replies: list[Reply] = []
        for ask in wave:
            text = say(debate, ask)
            if text is None:
                return debate
            if ask.choices:  # probabilities are nothing that the policy says
                replies.append(Reply(text, usage=Usage(0, 0)))
            else:
                replies.append(Reply(text, tokens=trainer.tokens(ask, text)))
        debate = debate.extend(wave, replies)
    return debate


def lesson(debates: Sequence[Debate]) -> list[Datum]:
    """Training sequences that make every readable turn of these debates likelier: its cross-entropy, a mean over tokens."""
    weights = [
        [np.full(0 if t.tokens is None else len(t.tokens.ids_T), t.parsed.error is None, np.float32) for t in debate.turns]
        for debate in debates
    ]
    said = sum(float(weight_T.sum()) for turns in weights for weight_T in turns)
    return [
        datum
        for debate, turns in zip(debates, weights, strict=True)
        for datum in datums(debate, [weight_T / max(1.0, said) for weight_T in turns])
    ]


def recorded(debates: Sequence[Debate]) -> Teacher:
    """A teacher who repeats recorded debates, each about the question that has its debate's name for an id."""
    by_name = {debate.id: debate for debate in debates}

    def say(debate: Debate, ask: Ask) -> str | None:
        turns = by_name[debate.question.id].turns
        return next((turn.text for turn in turns if (turn.round, turn.agent) == (ask.round, ask.agent)), None)

    return say
