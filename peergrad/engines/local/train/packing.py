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
import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.model.decoder import Adapter, Attend, Forward, Shape
from peergrad.learn.data import Datum

# A shared prefix of fewer tokens gets no node of its own, and neither does one below so many others.
_MIN_SHARED, _MAX_DEPTH = 32, 64


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens ``start`` to ``end`` of a sequence, shared by all below it; a leaf is the rest of a sequence."""

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
    prefixes = [datum.inputs_T[: _shareable(datum)].astype(">i4") for datum in data]
    order = sorted(range(len(data)), key=lambda index: (prefixes[index].tobytes(), index))
    # Sequences with the same prefix are neighbours now; common[i]: how many tokens the i-th shares with the one before.
    common = [0, *(common_prefix(prefixes[one], prefixes[other]) for one, other in pairwise(order))]

    def grow(first: int, last: int, depth: int, above: int) -> Iterator[Node]:
        """The trees of the sequences from ``first`` to ``last``, which share ``depth`` tokens in ``above`` nodes."""
        split = above == _MAX_DEPTH
        edges = [first, *(i for i in range(first + 1, last) if split or common[i] < depth + _MIN_SHARED), last]
        for low, high in pairwise(edges):
            if high - low == 1:
                yield Node(order[low], depth, len(data[order[low]]))
            else:
                end = min(common[low + 1 : high])
                # Longest first: neighbours of similar length are padded together.
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


def _shareable(datum: Datum) -> int:
    """How many tokens may be shared: those before the first sampled one, but not the whole sequence."""
    sampled = np.flatnonzero(datum.mask_T > 0)
    return min(int(sampled[0]) if len(sampled) else len(datum), len(datum) - 1)


def common_prefix(first: Ids, second: Ids) -> int:
    """How many tokens two sequences begin with alike."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


def packed_attention(trees: Sequence[Node], model: Forward, *, kernels: bool = True) -> Attend:
    """Each token attends to those before it in its own sequence. ``kernels``: by our own, on a GPU that can run them."""
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


def _by_calls(trees: Sequence[Node], shape: Shape, device: torch.device) -> Attend:
    """The same by PyTorch's own attention. Each call pads on the right, where no earlier token looks."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # with a mask its gradients can be NaN
    calls: list[tuple[slice, int, int, Tensor, tuple[slice, ...]]] = []
    for start, lengths, before in _calls(trees, 0, ()):
        rows, longest = len(lengths), max(lengths)
        places = np.concatenate([row * longest + np.arange(length) for row, length in enumerate(lengths)])
        calls.append((slice(start, start + sum(lengths)), rows, longest, torch.from_numpy(places).to(device), before))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for tokens, rows, longest, places, before in calls:
            padded = [_Pad.apply(x[tokens], places, rows * longest).view(rows, -1, *x.shape[1:]) for x in (q, k, v)]
            q1, k1, v1 = (x.transpose(1, 2) for x in padded)
            if before:
                shared = (torch.cat([x[part] for part in before]).transpose(0, 1).expand(rows, -1, -1, -1) for x in (k, v))
                k1, v1 = (torch.cat(both, 2) for both in zip(shared, (k1, v1), strict=True))
            y = _attend(q1, k1, v1, shape.windows[layer])
            outputs.append(Unpad.apply(y.transpose(1, 2).flatten(0, 1).flatten(1), places))
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    return attend


def _calls(nodes: Sequence[Node], start: int, before: tuple[slice, ...]) -> list[tuple[int, list[int], tuple[slice, ...]]]:
    """Which nodes are attended to in one call: where they begin, their lengths, and what is before all of them.

    Leaves of similar length that follow each other are one call. Nodes are packed from ``start`` on.
    """
    calls: list[tuple[int, list[int], tuple[slice, ...]]] = []
    lengths: list[int] = []  # of the last call, if another leaf may be added
    for node in nodes:
        length = node.end - node.start
        if not lengths or node.children or not 0.75 * max(lengths) <= length <= min(lengths) / 0.75:
            lengths = []
            calls.append((start, lengths, before))
        lengths.append(length)
        if node.children:
            calls += _calls(node.children, start + length, (*before, slice(start, start + length)))
            lengths = []
        start += node.tokens
    return calls


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
    """Copy rows to places among zeros. The gradient of plain indexing would be summed row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(places)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].index_select(0, ctx.saved_tensors[0]), None, None


class Unpad(torch.autograd.Function):
    """The inverse: the rows at these places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size, *grads[0].shape[1:]).index_copy_(0, places, grads[0]), None


@torch.no_grad()
def next_token_shares(
    decoder: Forward, adapter: Adapter | None, prompts: Sequence[Ids], tokens: Sequence[int], packed: int
) -> Floats:
    """How likely each of some tokens is after each prompt, against the others, at temperature 1: a row per prompt.

    Prompts that begin alike share what they begin with; at most ``packed`` tokens are computed at once, or one prompt.
    """
    shares = np.zeros((len(prompts), len(tokens)), np.float32)
    none = np.zeros(0, np.float32)
    data = [Datum("", 0, (), ids_T, ids_T, none, none, none, none) for ids_T in prompts]
    for trees in micro_batches(prefix_trees(data), packed):
        nodes = [node for tree in trees for node in tree.walk()]
        decoder.grow_rotations(max(node.end for node in nodes))
        ids = np.concatenate([prompts[node.sequence][node.start : node.end] for node in nodes]).astype(np.int64)
        positions = np.concatenate([np.arange(node.start, node.end) for node in nodes])
        ends = np.cumsum([node.end - node.start for node in nodes]) - 1
        leaves = [place for place, node in enumerate(nodes) if not node.children]
        ids_T, positions_T, last = (torch.from_numpy(array).to(decoder.device) for array in (ids, positions, ends[leaves]))
        hidden = decoder.hidden(ids_T, positions_T, packed_attention(trees, decoder), adapter)
        scores = decoder.logits(hidden[last])[:, list(tokens)].float().softmax(-1)
        shares[[nodes[place].sequence for place in leaves]] = scores.cpu().numpy()
    return shares
