"""Loss and gradient of a batch of datums, in micro-batches that fit into memory.

Sequences are packed end to end, each attending to itself alone, so nothing is padded. The vocabulary is looked at only
where a token was sampled, a chunk at a time: the loss is a sum over tokens, so its gradient with respect to the hidden
states can be had chunk by chunk, and then goes back through the layers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.engines.local.decoder import Attend, Decoder
from peergrad.engines.local.lora import Lora
from peergrad.engines.local.losses import token_losses
from peergrad.learn.datums import Datum
from peergrad.learn.losses import LossName

_CHUNK = 2048


@dataclass(frozen=True, eq=False)
class Gradient:
    """The summed loss, its gradient by name, and per datum the policy's log-probabilities of what was sampled, else 0."""

    loss: float
    by_name: dict[str, Tensor]
    logprobs: list[np.ndarray]


def gradient(decoder: Decoder, lora: Lora, data: Sequence[Datum], loss: LossName, tokens: int) -> Gradient:
    """Loss and gradient over all data, in micro-batches of at most ``tokens`` tokens; out of memory halves them."""
    total = {name: torch.zeros_like(weight) for name, weight in lora.weights.items()}
    logprobs: list[np.ndarray | None] = [None] * len(data)
    value = 0.0
    waiting = micro_batches([len(datum) for datum in data], tokens)
    while waiting:
        indices = waiting.pop(0)
        grads, found = (), []
        try:
            part, grads, found = _micro_batch(decoder, lora, [data[i] for i in indices], loss)
        except torch.OutOfMemoryError:
            if len(indices) == 1:
                raise
            part = None
        if part is None:  # only here has the exception let go of the tensors it held
            torch.cuda.empty_cache()
            half = len(indices) // 2
            waiting[:0] = [indices[:half], indices[half:]]
            continue
        value += part
        for sum_, grad in zip(total.values(), grads, strict=True):
            sum_ += grad
        for index, array in zip(indices, found, strict=True):
            logprobs[index] = array
    return Gradient(value, total, [array for array in logprobs if array is not None])


def micro_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices in batches of at most ``tokens`` tokens, longest first; a longer one is a batch of its own."""
    batches: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = next((b for b, left in enumerate(room) if left >= lengths[index]), None)
        if fits is None:
            batches.append([index])
            room.append(tokens - lengths[index])
        else:
            batches[fits].append(index)
            room[fits] -= lengths[index]
    return batches


def _micro_batch(
    decoder: Decoder, lora: Lora, data: Sequence[Datum], loss: LossName
) -> tuple[float, tuple[Tensor, ...], list[np.ndarray]]:
    device = decoder.device
    lengths = [len(datum) for datum in data]
    decoder.grow_rotations(max(lengths))

    def packed(arrays: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(device, dtype)

    ids = packed([datum.inputs_T for datum in data], torch.int64)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    sampled_T = np.concatenate([datum.mask_T for datum in data]) > 0
    where = torch.from_numpy(np.flatnonzero(sampled_T)).to(device)
    columns = [
        packed([getattr(datum, name) for datum in data], dtype)[where]
        for name, dtype in (
            ("targets_T", torch.int64),
            ("logprobs_T", torch.float32),
            ("advantages_T", torch.float32),
            ("temperatures_T", torch.float32),
        )
    ]
    hidden = decoder.hidden(ids, positions, _packed_attention(lengths, device), lora.adapter())[where]
    back = torch.empty_like(hidden)
    value = 0.0
    found: list[Tensor] = []
    for start in range(0, len(where), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        targets, old, advantages, temperatures = (column[chunk] for column in columns)
        with torch.no_grad():
            temperatures = temperatures.clamp(min=1e-6)  # as the sampler does
            scores = decoder.logits(hidden[chunk]) / temperatures[:, None]
            logprobs = scores.gather(1, targets[:, None])[:, 0] - scores.logsumexp(-1)
        logprobs.requires_grad_()
        sum_ = token_losses(loss, logprobs, old, advantages).sum()
        (slope,) = torch.autograd.grad(sum_, logprobs)
        with torch.no_grad():  # d logprob / d scores = one at the target less the probabilities
            scores = torch.softmax(scores, -1).neg_()
            scores.scatter_add_(1, targets[:, None], torch.ones_like(scores[:, :1]))
            scores.mul_((slope / temperatures)[:, None])
            back[chunk] = scores.to(hidden.dtype) @ decoder.unembedding
        value += sum_.item()
        found.append(logprobs.detach())
    grads = torch.autograd.grad(hidden, list(lora.weights.values()), back)
    everywhere = np.zeros(len(sampled_T), np.float32)
    everywhere[sampled_T] = torch.cat(found).cpu().numpy() if found else 0.0
    return value, grads, np.split(everywhere, np.cumsum(lengths)[:-1])


def _packed_attention(lengths: Sequence[int], device: torch.device) -> Attend:
    """Each sequence attends to itself, causally. Neighbours of similar length are attended to in one call.

    A call pads its sequences on the right, where no earlier token looks, so padding costs a little time and nothing else.
    """
    groups: list[tuple[slice, int, int, Tensor]] = []  # tokens, how many sequences, the longest, places when padded
    start = first = 0
    while first < len(lengths):
        last = first + 1
        while last < len(lengths) and 0.75 * lengths[first] <= lengths[last] <= lengths[first]:
            last += 1
        places = [row * lengths[first] + np.arange(length) for row, length in enumerate(lengths[first:last])]
        total = sum(lengths[first:last])
        index = torch.from_numpy(np.concatenate(places)).to(device)
        groups.append((slice(start, start + total), last - first, lengths[first], index))
        start, first = start + total, last

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for tokens, rows, longest, places in groups:
            padded = [_Pad.apply(x[tokens], places, rows * longest).view(rows, longest, *x.shape[1:]) for x in (q, k, v)]
            q1, k1, v1 = (x.transpose(1, 2) for x in padded)
            y = F.scaled_dot_product_attention(q1, k1, v1, is_causal=True, enable_gqa=True)
            outputs.append(_Unpad.apply(y.transpose(1, 2).flatten(0, 1).flatten(1), places))
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    return attend


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
