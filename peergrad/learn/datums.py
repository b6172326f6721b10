"""From a debate to the sequences it is trained on (SPEC 6.1, 6.2, 6.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from peergrad.debate.errors import UserError
from peergrad.debate.types import Debate, Floats, Ids, Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Datum:
    """One training sequence: predict ``targets_T[t]`` from ``inputs_T[:t+1]``.

    The other arrays belong to the targets and are 0 where the target was not sampled by the policy (``mask_T`` 0), except
    ``temperatures_T``, which is 1 there. ``turns`` are the turns of the debate whose replies it holds.
    """

    debate: str
    agent: int
    turns: tuple[int, ...]
    inputs_T: Ids
    targets_T: Ids
    logprobs_T: Floats
    advantages_T: Floats
    mask_T: Floats
    temperatures_T: Floats

    def __len__(self) -> int:
        return len(self.targets_T)


def datums(debate: Debate, credit: Sequence[Floats]) -> list[Datum]:
    """Every agent's turns as training sequences, each sampled token in exactly one of them, once.

    Turns are joined while each prompt extends what is already there; else the sequence is closed and a new one begins.
    ``credit`` gives each turn's advantage per token. Raises ``UserError`` for a debate whose tokens were not kept.
    """
    made: list[Datum] = []
    for agent in range(debate.agents):
        sequence = _Sequence()
        for index, turn in enumerate(debate.turns):
            if turn.agent != agent:
                continue
            if turn.tokens is None and turn.usage and not turn.usage.sampled:  # a choice: there are no words to learn
                continue
            if turn.tokens is None:
                raise UserError(
                    f"debate {debate.id!r}, turn {index}: no tokens were kept (its server gives none, or it was thinned "
                    "out), so no reward can be trained on it; its words can be learned from by a warm start (warm_from)"
                )
            if not sequence.extended_by(turn.tokens.prompt_T):
                made.append(sequence.close(debate.id, agent))
                sequence = _Sequence()
            sequence.add(index, turn.tokens, credit[index])
        if sequence.turns:
            made.append(sequence.close(debate.id, agent))
    return made


def credited(datum: Datum) -> Datum | None:
    """A sequence up to its last token with an advantage, ``None`` without any: the rest has no gradient (SPEC 6.8)."""
    tokens = np.flatnonzero(datum.advantages_T)
    if not len(tokens):
        return None
    arrays = {field.name: getattr(datum, field.name) for field in fields(datum) if field.name.endswith("_T")}
    return replace(datum, **{name: array_T[: tokens[-1] + 1] for name, array_T in arrays.items()})


class _Sequence:
    """A datum while it grows."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self._ids_T = np.zeros(0, np.int32)
        self._columns: list[tuple[Floats, Floats, Floats, Floats]] = []

    def extended_by(self, prompt_T: Ids) -> bool:
        return np.array_equal(prompt_T[: len(self._ids_T)], self._ids_T)

    def add(self, turn: int, tokens: Tokens, credit_T: Floats) -> None:
        seen, said = len(tokens.prompt_T) - len(self._ids_T), len(tokens.ids_T)
        zeros, ones = np.zeros(seen, np.float32), np.ones(seen, np.float32)
        self._columns.append((zeros, zeros, zeros, ones))
        sampled, temperature = np.ones(said, np.float32), np.full(said, tokens.temperature, np.float32)
        self._columns.append((tokens.logprobs_T, credit_T, sampled, temperature))
        self._ids_T = np.concatenate((tokens.prompt_T, tokens.ids_T))
        self.turns.append(turn)

    def close(self, debate: str, agent: int) -> Datum:
        logprobs_T, advantages_T, mask_T, temperatures_T = (
            np.concatenate(column)[1:] for column in zip(*self._columns, strict=True)
        )
        return Datum(
            debate=debate,
            agent=agent,
            turns=tuple(self.turns),
            inputs_T=self._ids_T[:-1],
            targets_T=self._ids_T[1:],
            logprobs_T=logprobs_T,
            advantages_T=advantages_T,
            mask_T=mask_T,
            temperatures_T=temperatures_T,
        )
