"""Loss and gradient of a batch of datums, in micro-batches that fit into memory.

Sequences are packed end to end, each attending to itself alone and to what it shares with others (see ``families``), so
nothing is padded and nothing computed twice. The vocabulary is looked at only
where a token was sampled, a chunk at a time: the loss is a sum over tokens, so its gradient with respect to the hidden
states can be had chunk by chunk, and then goes back through the layers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from peergrad.engines.local.families import Family, families, micro_batches
from peergrad.engines.local.forward import Forward
from peergrad.engines.local.lora import Lora
from peergrad.engines.local.losses import token_losses
from peergrad.engines.local.memory import FULL, ran_out
from peergrad.engines.local.packed import packed_attention
from peergrad.learn.datums import Datum
from peergrad.learn.losses import Bounds, LossName

_CHUNK = 2048


@dataclass(frozen=True, eq=False)
class Gradient:
    """The summed loss, its gradient by name, and per datum the policy's log-probabilities of what was sampled, else 0."""

    loss: float
    by_name: dict[str, Tensor]
    logprobs: list[np.ndarray]


def gradient(
    decoder: Forward,
    lora: Lora,
    data: Sequence[Datum],
    loss: LossName,
    tokens: int,
    bounds: Bounds | None = None,
) -> Gradient:
    """Loss and gradient over all data, in micro-batches of at most ``tokens`` tokens; out of memory halves them.

    ``bounds`` are those of the ratios, if they are not to be the usual ones of the loss.
    """
    total = {name: torch.zeros_like(weight) for name, weight in lora.weights.items()}
    logprobs: list[np.ndarray | None] = [None] * len(data)
    value = 0.0
    waiting = micro_batches(families(data), tokens)
    while waiting:
        batch = waiting.pop(0)
        grads, found = (), {}
        try:
            part, grads, found = _micro_batch(decoder, lora, data, batch, loss, bounds)
        except FULL as error:
            if (len(batch) == 1 and len(batch[0].members) == 1) or not ran_out(error):
                raise
            part = None
        if part is None:  # only here has the exception let go of the tensors it held
            if decoder.device.type == "cuda":
                torch.cuda.empty_cache()
            half = len(batch) // 2
            waiting[:0] = [batch[:half], batch[half:]] if half else [[part] for part in batch[0].split()]
            continue
        value += part
        for sum_, grad in zip(total.values(), grads, strict=True):
            sum_ += grad
        for index, array in found.items():
            logprobs[index] = array
    return Gradient(value, total, [array for array in logprobs if array is not None])


def _micro_batch(
    decoder: Forward,
    lora: Lora,
    data: Sequence[Datum],
    batch: Sequence[Family],
    loss: LossName,
    bounds: Bounds | None,
) -> tuple[float, tuple[Tensor, ...], dict[int, np.ndarray]]:
    device = decoder.device
    # What is packed, in this order: for each family what it shares, then the rest of each member. (datum, from, to)
    parts = [
        part
        for family in batch
        for part in (
            *([(family.members[0], 0, family.shared)] if family.shared else []),
            *((index, family.shared, length) for index, length in zip(family.members, family.lengths, strict=True)),
        )
    ]
    decoder.grow_rotations(max(end for _, _, end in parts))

    def packed(name: str, dtype: torch.dtype) -> Tensor:
        arrays = [getattr(data[index], name)[start:end] for index, start, end in parts]
        return torch.from_numpy(np.concatenate(arrays)).to(device, dtype)

    ids = packed("inputs_T", torch.int64)
    positions = torch.from_numpy(np.concatenate([np.arange(start, end) for _, start, end in parts])).to(device)
    sampled_T = np.concatenate([data[index].mask_T[start:end] for index, start, end in parts]) > 0
    where = torch.from_numpy(np.flatnonzero(sampled_T)).to(device)
    columns = [
        packed(name, dtype)[where]
        for name, dtype in (
            ("targets_T", torch.int64),
            ("logprobs_T", torch.float32),
            ("advantages_T", torch.float32),
            ("temperatures_T", torch.float32),
        )
    ]
    attend = packed_attention(batch, device, decoder.shape.windows)
    hidden = decoder.hidden(ids, positions, attend, lora.adapter())[where]
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
        sum_ = token_losses(loss, logprobs, old, advantages, bounds).sum()
        (slope,) = torch.autograd.grad(sum_, logprobs)
        with torch.no_grad():  # d logprob / d scores = one at the target less the probabilities
            scores = torch.softmax(scores, -1).neg_()
            scores.scatter_add_(1, targets[:, None], torch.ones_like(scores[:, :1]))
            scores.mul_((slope / temperatures)[:, None])
            back[chunk] = scores.to(hidden.dtype) @ decoder.unembedding
        value += sum_.item()
        found.append(logprobs.detach())
    # A matrix that no token came by, an expert's perhaps, has no gradient; here that is zero.
    grads = torch.autograd.grad(hidden, list(lora.weights.values()), back, allow_unused=True, materialize_grads=True)
    everywhere = np.zeros(len(sampled_T), np.float32)
    everywhere[sampled_T] = torch.cat(found).cpu().numpy() if found else 0.0
    logprobs = {index: np.zeros(len(data[index]), np.float32) for family in batch for index in family.members}
    for (index, start, end), values in zip(
        parts, np.split(everywhere, np.cumsum([b - a for _, a, b in parts])[:-1]), strict=True
    ):
        logprobs[index][start:end] = values
    return value, grads, logprobs
