"""The one shape of reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Stream:
    """One reward signal: a value per unit, and which of the unit's sections it is credited to.

    ``None`` is a unit without signal: left out of every mean, advantage 0. ``sections=None`` credits all tokens.
    ``votes[u]`` are the indices (in the tally) of the votes that made unit u's value (SPEC 4.9). ``follows`` is what the
    stream should reward, where the truth is known: a right ``solution``, or ``votes`` for who is right. Training never asks;
    ``peergrad rescore`` and ``check`` measure it.
    """

    name: str
    unit: Literal["agent", "turn"]
    values: tuple[float | None, ...]
    sections: tuple[str, ...] | None = None
    weight: float = 1.0
    votes: tuple[tuple[int, ...], ...] = ()
    follows: Literal["solution", "votes"] | None = None
