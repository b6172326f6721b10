"""Training sequences as prefix trees: the tokens that several of them begin with are computed once.

The debates of a batch share their instructions, and the answers to a question share the question. The gradient of what is
shared is the sum over those who share it, which is what going back through it once gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from peergrad.learn.datums import Datum

# What begins alike for fewer tokens than this is not worth a node of its own, and neither is what lies deeper than that.
_LEAST, _DEEPEST = 32, 64


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens ``start`` to ``end`` of a sequence, which all below begin with; without children, the rest of the sequence."""

    sequence: int
    start: int
    end: int
    children: tuple[Node, ...] = ()
    tokens: int = field(init=False)
    """How many tokens have to be computed, all below it included."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", self.end - self.start + sum(child.tokens for child in self.children))

    @property
    def leaves(self) -> list[Node]:
        """The sequences below it."""
        return [leaf for child in self.children for leaf in child.leaves] if self.children else [self]

    def split(self) -> tuple[Node, Node] | None:
        """Two trees with half of what is below each, if there is more than one sequence; both hold what is shared."""
        if len(self.children) == 1:
            halves = self.children[0].split()
            return halves and (replace(self, children=(halves[0],)), replace(self, children=(halves[1],)))
        if not self.children:
            return None
        middle = len(self.children) // 2
        return replace(self, children=self.children[:middle]), replace(self, children=self.children[middle:])

    def walk(self) -> Iterator[Node]:
        """It and all below, each before its children: the order in which their tokens are packed."""
        yield self
        for child in self.children:
            yield from child.walk()


def prefix_trees(data: Sequence[Datum]) -> list[Node]:
    """Every sequence as a leaf of one tree."""
    free = [_free(datum) for datum in data]
    starts = [datum.inputs_T[:length].astype(">i4") for datum, length in zip(data, free, strict=True)]
    order = sorted(range(len(data)), key=lambda index: (starts[index].tobytes(), index))
    # Those that begin alike are neighbours now; alike[i]: for how long the i-th in order is like the one before.
    alike = [0, *(_common(starts[one], starts[other]) for one, other in pairwise(order))]

    def grow(first: int, last: int, depth: int, above: int) -> Iterator[Node]:
        """The trees of those from ``first`` up to ``last``, who have ``depth`` tokens in common, in nodes ``above``."""
        apart = above == _DEEPEST
        edges = [first, *(i for i in range(first + 1, last) if apart or alike[i] < depth + _LEAST), last]
        for low, high in pairwise(edges):
            if high - low == 1:
                yield Node(order[low], depth, len(data[order[low]]))
            else:
                end = min(alike[low + 1 : high])
                # Longest first: neighbours of similar length are attended to together where that needs padding.
                below = sorted(grow(low, high, end, above + 1), key=lambda node: -node.tokens)
                yield Node(order[low], depth, end, tuple(below))

    return list(grow(0, len(order), 0, 0)) if order else []


def micro_batches(trees: Sequence[Node], tokens: int) -> list[list[Node]]:
    """Trees in batches of at most ``tokens`` tokens, largest first; one that is larger by itself is divided."""
    whole: list[Node] = []
    waiting = list(trees)
    while waiting:
        tree = waiting.pop()
        halves = tree.split() if tree.tokens > tokens else None
        if halves:
            waiting += halves
        else:
            whole.append(tree)
    batches: list[list[Node]] = []
    room: list[int] = []
    for tree in sorted(whole, key=lambda one: (-one.tokens, one.sequence)):
        fits = next((b for b, left in enumerate(room) if left >= tree.tokens), None)
        if fits is None:
            batches.append([tree])
            room.append(tokens - tree.tokens)
        else:
            batches[fits].append(tree)
            room[fits] -= tree.tokens
    return batches


def _free(datum: Datum) -> int:
    """How many tokens may be shared: what a sampled one is worth is each one's own, and something is left of each."""
    sampled = np.flatnonzero(datum.mask_T > 0)
    return min(int(sampled[0]) if len(sampled) else len(datum), len(datum) - 1)


def _common(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]) -> int:
    length = min(len(first), len(second))
    places = np.flatnonzero(first[:length] != second[:length])
    return int(places[0]) if len(places) else length
