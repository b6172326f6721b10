"""From debates to the sequences that are trained on: score, advantages, credit, datums (SPEC 5, 6, 7.3)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import numpy as np

from peergrad.debate.errors import UserError
from peergrad.debate.types import Debate, Floats, Ids, Tokens, Turn
from peergrad.reward.rewards import RewardRules, Scored, Truth, score
from peergrad.reward.streams import Stream

Center = Literal["group", "batch", "seat"]
Values = tuple[float | None, ...]


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
    whole: bool = False,
) -> Batch:
    """What a step trains on: debates with signal (SPEC 5.1), and of their sequences all (``whole``) or what is credited
    (SPEC 6.8).
    """
    scored = tuple(score(debate, rules, truth(debate)) for debate in debates)
    centred = tuple(map(tuple, advantages(scored, center=center, divide_by_std=divide_by_std)))
    data = tuple(
        cut
        for one, values in zip(scored, centred, strict=True)
        if has_signal(one.streams, values)
        for datum in datums(one.debate, credit(one.debate, one.streams, values))
        if (cut := datum if whole else credited(datum))
    )
    return Batch(scored, centred, data)


def advantages(batch: Sequence[Scored], *, center: Center = "group", divide_by_std: bool = False) -> list[list[Values]]:
    """For each debate and each of its streams, the advantage of every unit; ``None`` where there is no signal.

    The baseline is the mean over a centring set: the units of one debate, of the whole batch, or of one seat (an agent
    index, and for turns its round) across the batch. Streams never share a baseline.
    """
    keys: list[list[list[Hashable]]] = []
    sets: dict[Hashable, list[float]] = defaultdict(list)
    for index, scored in enumerate(batch):
        keys.append([])
        for stream in scored.streams:
            keys[-1].append([(stream.name, _set(center, index, scored, stream, u)) for u in range(len(stream.values))])
            for key, value in zip(keys[-1][-1], stream.values, strict=True):
                if value is not None:
                    sets[key].append(value)
    baselines = {key: _baseline(values, divide_by_std) for key, values in sets.items()}
    return [
        [
            tuple(
                None if value is None else (value - baselines[key][0]) / baselines[key][1]
                for key, value in zip(stream_keys, stream.values, strict=True)
            )
            for stream_keys, stream in zip(debate_keys, scored.streams, strict=True)
        ]
        for debate_keys, scored in zip(keys, batch, strict=True)
    ]


def has_signal(streams: Sequence[Stream], advantages: Sequence[Values]) -> bool:
    """Whether anything can be learned from a debate: an advantage that is not zero, in a stream that counts (SPEC 5.1)."""
    return any(any(values) for stream, values in zip(streams, advantages, strict=True) if stream.weight)


def _set(center: Center, index: int, scored: Scored, stream: Stream, unit: int) -> Hashable:
    """The centring set a unit belongs to."""
    if center == "group":
        return index
    if center == "batch":
        return None
    return unit if stream.unit == "agent" else (scored.debate.turns[unit].agent, scored.debate.turns[unit].round)


def _baseline(values: Sequence[float], divide_by_std: bool) -> tuple[float, float]:
    """Mean and divisor. Equal values have exactly their own value as mean, so that they yield exactly nothing."""
    if min(values) == max(values):
        return values[0], 1.0
    mean = math.fsum(values) / len(values)
    if not divide_by_std:
        return mean, 1.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def credit(debate: Debate, streams: Sequence[Stream], advantages: Sequence[Values]) -> list[Floats]:
    """Per turn, the advantage of each of its sampled tokens: every stream's, times its weight, on its sections.

    A turn without tokens gets an empty array.
    """
    per_turn: list[Floats] = []
    for index, turn in enumerate(debate.turns):
        total_T = np.zeros(0 if turn.tokens is None else len(turn.tokens.ids_T), np.float32)
        for stream, values in zip(streams, advantages, strict=True):
            value = values[turn.agent if stream.unit == "agent" else index]
            if not value:
                continue
            for tokens in _tokens_of(turn, stream.sections):
                total_T[tokens] += stream.weight * value
        per_turn.append(total_T)
    return per_turn


def section_tokens(turn: Turn, name: str) -> slice:
    """The tokens of a section: those whose first byte lies in it, tags included. Empty if the turn has no such section.

    Without a contract the whole reply is the solution.
    """
    if turn.contract is None and name == "solution":
        return slice(None)
    section = next((section for section in turn.parsed.sections if section.name == name), None)
    if section is None or turn.tokens is None:
        return slice(0, 0)
    bounds = [_byte_offset(turn.text, section.start), _byte_offset(turn.text, section.end)]
    first, last = np.searchsorted(turn.tokens.starts_T, bounds)
    return slice(int(first), int(last))


def _tokens_of(turn: Turn, sections: tuple[str, ...] | None) -> list[slice]:
    return [slice(None)] if sections is None else [section_tokens(turn, name) for name in sections]


def _byte_offset(text: str, chars: int) -> int:
    """Where a character begins in the UTF-8 bytes of the text."""
    return chars if text.isascii() else len(text[:chars].encode("utf-8", "surrogatepass"))


def datums(debate: Debate, advantages_by_turn: Sequence[Floats]) -> list[Datum]:
    """Every agent's turns as training sequences, each token that the policy sampled in exactly one of them, once.

    Turns are joined while each prompt extends what is already there; else the sequence is closed and a new one begins.
    ``advantages_by_turn`` is from ``credit``. Raises ``UserError`` for a debate whose tokens were not kept.
    """
    made: list[Datum] = []
    for agent in range(debate.agents):
        sequence = _Sequence()
        for index, turn in enumerate(debate.turns):
            if turn.agent != agent or turn.by or turn.chosen:  # of a choice there are no words to learn
                continue
            if turn.tokens is None:
                raise UserError(
                    f"debate {debate.id!r}, turn {index}: no tokens were kept (its server gives none, or it was thinned "
                    "out), so no reward can be trained on it; its words can be learned from by a warm start (warm_from)"
                )
            if not sequence.extended_by(turn.tokens.prompt_T):
                made.append(sequence.close(debate.id, agent))
                sequence = _Sequence()
            sequence.add(index, turn.tokens, advantages_by_turn[index])
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
