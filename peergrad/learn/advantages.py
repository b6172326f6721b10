"""Advantages: rewards less a baseline (SPEC 5)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

from peergrad.reward.rewards import Scored
from peergrad.reward.stream import Stream

Center = Literal["group", "batch", "seat"]
Values = tuple[float | None, ...]


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
