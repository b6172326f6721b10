"""Training sequences packed as prefix trees: the tokens that several of them begin with are computed once.

The debates of a batch share their instructions, and the answers to a question share the question. The gradient of what is
shared is the sum over those who share it, which is what going back through it once gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.engines.local.model.decoder import Attend, Forward, Shape
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


def packed_attention(trees: Sequence[Node], model: Forward, *, kernels: bool = True) -> Attend:
    """Each token attends to those before it in its own sequence: by kernels of our own on a GPU, unless told otherwise."""
    if model.device.type == "cuda" and kernels:
        from peergrad.engines.local.train import tree_kernels

        if tree_kernels.fit(model.shape.head_size, model.dtype, model.device):
            return _by_kernels(trees, model.shape, model.device)
    return _by_calls(trees, model.shape, model.device)


def _by_kernels(trees: Sequence[Node], shape: Shape, device: torch.device) -> Attend:
    from peergrad.engines.local.train import tree_kernels

    nodes = [node for tree in trees for node in tree.walk()]
    starts = np.cumsum([0, *(node.end - node.start for node in nodes)])
    ends = [np.full(node.end - node.start, start + node.tokens) for node, start in zip(nodes, starts, strict=False)]
    positions = [np.arange(node.start, node.end) for node in nodes]
    where = tree_kernels.layout(np.concatenate(ends).astype(np.int32), np.concatenate(positions).astype(np.int32), device)
    return lambda layer, q, k, v: tree_kernels.tree_attention(q, k, v, where, shape.windows[layer])


@dataclass(frozen=True)
class _Call:
    """Nodes attended to in one call: which tokens, how many, the longest, places when padded, what all have before them."""

    tokens: slice
    rows: int
    longest: int
    places: Tensor
    before: tuple[slice, ...]


def _by_calls(trees: Sequence[Node], shape: Shape, device: torch.device) -> Attend:
    """The same by PyTorch's own attention. Neighbours of similar length are one call.

    A call pads on the right, where no earlier token looks, so padding costs a little time and nothing else.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # with a mask its gradients can be NaN
    calls = [_call(device, *group) for group in _groups(trees)]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for call in calls:
            size = call.rows * call.longest
            padded = [_Pad.apply(x[call.tokens], call.places, size).view(call.rows, -1, *x.shape[1:]) for x in (q, k, v)]
            q1, k1, v1 = (x.transpose(1, 2) for x in padded)
            if call.before:
                shared = ([x[part] for part in call.before] for x in (k, v))
                k1, v1 = (
                    torch.cat((torch.cat(parts).transpose(0, 1).expand(call.rows, -1, -1, -1), own), 2)
                    for parts, own in zip(shared, (k1, v1), strict=True)
                )
            y = _attend(q1, k1, v1, shape.windows[layer])
            outputs.append(Unpad.apply(y.transpose(1, 2).flatten(0, 1).flatten(1), call.places))
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    return attend


def _groups(trees: Sequence[Node]) -> Iterator[tuple[int, list[int], tuple[slice, ...]]]:
    """In the order of packing: where nodes begin, their lengths, and what they have before them."""
    start = 0

    def below(nodes: Sequence[Node], before: tuple[slice, ...]) -> Iterator[tuple[int, list[int], tuple[slice, ...]]]:
        nonlocal start
        alike: list[int] = []
        for node in nodes:
            length = node.end - node.start
            if alike and (node.children or not 0.75 * max(alike) <= length <= min(alike) / 0.75):
                yield start, alike, before
                start, alike = start + sum(alike), []
            alike.append(length)
            if node.children:
                yield start, alike, before
                own = slice(start, start + length)
                start, alike = start + length, []
                yield from below(node.children, (*before, own))
        if alike:
            yield start, alike, before
            start += sum(alike)

    yield from below(trees, ())


def _call(device: torch.device, start: int, lengths: list[int], before: tuple[slice, ...]) -> _Call:
    longest = max(lengths)
    places = np.concatenate([row * longest + np.arange(length) for row, length in enumerate(lengths)])
    tokens = slice(start, start + sum(lengths))
    return _Call(tokens, len(lengths), longest, torch.from_numpy(places).to(device), before)


def _attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Causal attention of the last tokens to all, or to the newest ``window`` of them where there is a window."""
    new, length = q.shape[2], k.shape[2]
    window = length if window is None else window
    if new == length and window >= length:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    at = torch.arange(length, device=q.device)
    age = at[length - new :, None] - at
    # Heads are repeated by hand: a GPU has no quick kernel for shared heads and a mask together.
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(age >= 0) & (age < window))


class _Pad(torch.autograd.Function):
    """Rows to their places among zeros; back by picking them. Plain indexing would add up gradients one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(places)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].index_select(0, ctx.saved_tensors[0]), None, None


class Unpad(torch.autograd.Function):
    """The other way round: rows at these places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size, *grads[0].shape[1:]).index_copy_(0, places, grads[0]), None
