"""Attention over sequences packed end to end, for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.engines.local.families import Family
from peergrad.engines.local.forward import Attend


@dataclass(frozen=True)
class _Call:
    """Sequences attended to in one call: which tokens, how many, the longest, places when padded, what all share."""

    tokens: slice
    rows: int
    longest: int
    places: Tensor
    shared: slice


def packed_attention(families: Sequence[Family], device: torch.device, windows: Sequence[int | None]) -> Attend:
    """Each sequence attends to itself, causally, and to what its family shares. Similar lengths are one call.

    A call pads its sequences on the right, where no earlier token looks, so padding costs a little time and nothing else.
    """
    calls: list[_Call] = []
    start = 0
    for shared, lengths in _in_order(families):
        before = slice(start, start + shared)
        if shared:
            calls.append(_Call(before, 1, shared, torch.arange(shared, device=device), slice(0, 0)))
            start += shared
        first = 0
        while first < len(lengths):
            last = first + 1
            while last < len(lengths) and 0.75 * lengths[first] <= lengths[last] <= lengths[first]:
                last += 1
            places = [row * lengths[first] + np.arange(length) for row, length in enumerate(lengths[first:last])]
            total = sum(lengths[first:last])
            index = torch.from_numpy(np.concatenate(places)).to(device)
            calls.append(_Call(slice(start, start + total), last - first, lengths[first], index, before))
            start, first = start + total, last

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for call in calls:
            size = call.rows * call.longest
            padded = [_Pad.apply(x[call.tokens], call.places, size).view(call.rows, -1, *x.shape[1:]) for x in (q, k, v)]
            q1, k1, v1 = (x.transpose(1, 2) for x in padded)
            if call.shared.stop > call.shared.start:
                k1, v1 = (
                    torch.cat((x[call.shared].transpose(0, 1).expand(call.rows, -1, -1, -1), own), 2)
                    for x, own in ((k, k1), (v, v1))
                )
            y = _attend(q1, k1, v1, windows[layer])
            outputs.append(_Unpad.apply(y.transpose(1, 2).flatten(0, 1).flatten(1), call.places))
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    return attend


def _in_order(families: Sequence[Family]) -> Iterator[tuple[int, list[int]]]:
    """What is shared and what is left of each member; neighbours who share nothing are taken together."""
    alone: list[int] = []
    for family in families:
        if not family.shared:
            alone += family.lengths
            continue
        if alone:
            yield 0, alone
            alone = []
        yield family.shared, [length - family.shared for length in family.lengths]
    if alone:
        yield 0, alone


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


class _Unpad(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size, *grads[0].shape[1:]).index_copy_(0, places, grads[0]), None
