"""Training sequences that begin alike: the tokens they share are computed once.

Debates of a batch share their instructions, and the gradient of what is shared is the sum over those who share it, which
is what going back through it once gives. The result is the same; a third of the work or more is not done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peergrad.learn.datums import Datum

# What begins alike for fewer tokens than this is not worth a mask.
_LEAST = 32


@dataclass(frozen=True, slots=True)
class Family:
    """Sequences, longest first, that begin with the same ``shared`` tokens, none of which was sampled."""

    members: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: int

    @property
    def tokens(self) -> int:
        """How many tokens have to be computed."""
        return self.shared + sum(length - self.shared for length in self.lengths)

    def split(self) -> tuple[Family, Family]:
        """Two halves of it."""
        half = len(self.members) // 2
        return self.of(slice(half)), self.of(slice(half, None))

    def of(self, some: slice) -> Family:
        """Some of its members; one alone shares nothing."""
        members, lengths = self.members[some], self.lengths[some]
        return Family(members, lengths, self.shared if len(members) > 1 else 0)


def families(data: Sequence[Datum]) -> list[Family]:
    """Every sequence in one family, by how it begins."""
    alike: dict[bytes, list[int]] = {}
    for index, datum in enumerate(data):
        start = datum.inputs_T[:_LEAST].tobytes() if len(datum) > _LEAST else f"alone {index}".encode()
        alike.setdefault(start, []).append(index)
    made: list[Family] = []
    for members in alike.values():
        members.sort(key=lambda index: -len(data[index]))
        lengths = tuple(len(data[index]) for index in members)
        shared = min((_common(data[members[0]], data[index]) for index in members[1:]), default=0)
        if shared >= _LEAST:
            made.append(Family(tuple(members), lengths, shared))
        else:
            made += [Family((index,), (length,), 0) for index, length in zip(members, lengths, strict=True)]
    return made


def micro_batches(found: Sequence[Family], tokens: int) -> list[list[Family]]:
    """Families in batches of at most ``tokens`` tokens, largest first; one that is larger by itself is divided."""
    whole: list[Family] = []
    waiting = list(found)
    while waiting:
        family = waiting.pop()
        # Each member has a copy of the keys and values they share, so that counts too, if less.
        crowded = len(family.members) * family.shared > 8 * tokens
        if (family.tokens > tokens or crowded) and len(family.members) > 1:
            waiting += family.split()
        else:
            whole.append(family)
    batches: list[list[Family]] = []
    room: list[int] = []
    for family in sorted(whole, key=lambda one: (-one.tokens, one.members)):
        fits = next((b for b, left in enumerate(room) if left >= family.tokens), None)
        if fits is None:
            batches.append([family])
            room.append(tokens - family.tokens)
        else:
            batches[fits].append(family)
            room[fits] -= family.tokens
    return batches


def _common(first: Datum, second: Datum) -> int:
    """How long two sequences are the same and nothing was sampled: what a sampled token is worth is each one's own."""
    length = min(len(first), len(second)) - 1  # something is left of each
    differ = first.inputs_T[:length] != second.inputs_T[:length]
    differ |= (first.mask_T[:length] > 0) | (second.mask_T[:length] > 0)
    places = np.flatnonzero(differ)
    return int(places[0]) if len(places) else length
