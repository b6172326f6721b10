"""Loss and gradient of a batch of datums, in micro-batches that fit into memory.

Sequences are packed end to end as prefix trees (see ``prefix_tree``), so nothing is padded and nothing computed twice.
Logits are computed only for sampled tokens, a chunk at a time: the loss is a sum over tokens, so its gradient with respect
to the hidden states is computed chunk by chunk, and then goes back through the layers once.

The host does not wait for the device between two micro-batches. Whether each was finite is read when all are done, and
those that were not are retried: each sequence by itself, with PyTorch's own attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from peergrad.engines.local.memory import catch_out_of_memory, to_device
from peergrad.engines.local.model import ops
from peergrad.engines.local.model.decoder import Adapter, Forward
from peergrad.engines.local.model.lora import Lora
from peergrad.engines.local.train.packing import Node, Unpad, micro_batches, packed_attention, prefix_trees
from peergrad.learn.data import Datum
from peergrad.learn.losses import RATIO_BOUNDS, Bounds, LossName


@dataclass(frozen=True, eq=False)
class Gradient:
    """The summed loss, its gradient by weight, and per datum the policy's log-probabilities of sampled tokens, else 0.

    ``error`` says what is not finite, if anything, and ``bad`` in which datums. ``retried`` counts retried micro-batches.
    """

    loss: float
    by_name: dict[str, Tensor]
    logprobs: list[np.ndarray]
    error: str = ""
    bad: tuple[int, ...] = ()
    retried: int = 0


def gradient(
    decoder: Forward, lora: Lora, data: Sequence[Datum], loss: LossName, tokens: int, bounds: Bounds | None = None
) -> Gradient:
    """Loss and gradient over all data, in micro-batches of at most ``tokens`` tokens; out of memory halves them.

    ``bounds`` replace the loss's default bounds of ratios.
    """
    batch = _Batch(decoder, lora.trainable(), data, loss, bounds, lora.name_of)
    bad = batch.add(micro_batches(prefix_trees(data), tokens))
    apart = [[Node(leaf.sequence, 0, leaf.end)] for part in bad for tree in part for leaf in tree.leaves]
    still_bad = batch.add(apart, retry=True) if bad else []
    return Gradient(
        loss=batch.loss,
        by_name=lora.unfused(batch.sums),
        logprobs=batch.logprobs(),
        error=batch.error if still_bad else "",
        bad=tuple(alone.sequence for (alone,) in still_bad),
        retried=len(bad),
    )


@torch.no_grad()
def token_logprobs(decoder: Forward, adapter: Adapter | None, data: Sequence[Datum], tokens: int) -> list[np.ndarray]:
    """The log-probabilities of each datum's sampled tokens, else 0; without ``adapter`` those of the base model."""
    batch = _Batch(decoder, adapter, data)
    bad = batch.add(micro_batches(prefix_trees(data), tokens))
    batch.add([[Node(leaf.sequence, 0, leaf.end)] for part in bad for tree in part for leaf in tree.leaves], retry=True)
    return batch.logprobs()


class _Batch:
    """The sums over the micro-batches so far. Without a loss there is no gradient: only log-probabilities."""

    def __init__(
        self,
        decoder: Forward,
        adapter: Adapter | None,
        data: Sequence[Datum],
        loss: LossName | None = None,
        bounds: Bounds | None = None,
        name_of: Callable[[int], str] = str,
    ) -> None:
        """``name_of`` gives the name of a matrix of the adapter by its number."""
        self._decoder, self._adapter, self._data, self._bounds = decoder, adapter, data, bounds
        self._loss: LossName | None = loss
        self._name_of = name_of
        matrices = [matrix for layer in adapter or () for pair in layer.values() for matrix in pair]
        self._weights = matrices if loss else []
        self.sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in self._weights]
        self.loss, self.error = 0.0, ""
        self._logprobs: list[tuple[list[_Span], npt.NDArray[np.bool_], Tensor]] = []

    def add(self, batches: Sequence[list[Node]], *, retry: bool = False) -> list[list[Node]]:
        """Add micro-batches, and return those that were not finite. They are left out of the sums, except in a retry."""
        waiting = list(batches)
        done: list[tuple[list[Node], Tensor]] = []
        while waiting:
            trees, result = waiting.pop(0), None
            halves = _halves(trees)
            with catch_out_of_memory(when=halves is not None):
                result = self._micro_batch(trees, kernels=not retry)
            if result is None:
                torch.cuda.empty_cache()
                waiting[:0] = halves or ()
                continue
            grads, checks = result
            counts = checks.isfinite().all() | retry
            for sum_, grad in zip(self.sums, grads, strict=True):
                sum_ += torch.where(counts, grad, 0.0)
            done.append((trees, checks))
        if not done:
            return []
        bad: list[list[Node]] = []
        for (trees, _), checks in zip(done, torch.stack([checks for _, checks in done]).tolist(), strict=True):
            error = self._non_finite(np.isfinite(checks))
            self.loss += checks[0] if retry or not error else 0.0
            if error:
                self.error = error
                bad.append(trees)
        return bad

    def _non_finite(self, finite: npt.NDArray[np.bool_]) -> str:
        """What was not finite, given whether the loss and each matrix was; the backward pass starts at the last matrix."""
        if not finite[0]:
            return "the loss is not finite"
        bad = np.flatnonzero(~finite[1:])
        return f"the gradient is not finite, first in {self._name_of(int(bad[-1]))}" if len(bad) else ""

    def logprobs(self) -> list[np.ndarray]:
        """The policy's log-probabilities of each datum's sampled tokens; of those that were retried, the retry's."""
        by_datum = [np.zeros(len(datum), np.float32) for datum in self._data]
        values = torch.cat([tensor for _, _, tensor in self._logprobs]).cpu().numpy() if self._logprobs else np.zeros(0)
        for spans, sampled_T, tensor in self._logprobs:
            everywhere = np.zeros(len(sampled_T), np.float32)
            everywhere[sampled_T], values = values[: len(tensor)], values[len(tensor) :]
            for sequence, start, end in spans:
                by_datum[sequence][start:end], everywhere = everywhere[: end - start], everywhere[end - start :]
        return by_datum

    def _micro_batch(self, trees: Sequence[Node], *, kernels: bool) -> tuple[Sequence[Tensor], Tensor]:
        """The gradient, and numbers that are all finite if it is: the loss, and the largest entry of each matrix."""
        decoder, data, device = self._decoder, self._data, self._decoder.device
        spans = [(node.sequence, node.start, node.end) for tree in trees for node in tree.walk()]
        decoder.grow_rotations(max(end for _, _, end in spans))

        def packed(name: str, kind: Any) -> Tensor:
            arrays = [getattr(data[sequence], name)[start:end] for sequence, start, end in spans]
            return to_device(np.concatenate(arrays).astype(kind, copy=False), device)

        sampled_T = np.concatenate([data[sequence].mask_T[start:end] for sequence, start, end in spans]) > 0
        where = to_device(np.flatnonzero(sampled_T), device)
        targets, old, advantages, temperatures = (
            packed(name, kind)[where]
            for name, kind in (
                ("targets_T", np.int64),
                ("logprobs_T", np.float32),
                ("advantages_T", np.float32),
                ("temperatures_T", np.float32),
            )
        )
        temperatures = temperatures.clamp(min=1e-6)  # as the sampler does
        positions = to_device(np.concatenate([np.arange(start, end) for _, start, end in spans]), device)
        attend = packed_attention(trees, decoder, kernels=kernels)
        hidden = Unpad.apply(decoder.hidden(packed("inputs_T", np.int64), positions, attend, self._adapter), where)
        to_hidden = torch.empty_like(hidden)
        logprobs = torch.empty_like(old)
        value = torch.zeros((), device=device)
        scoring = ops.for_device(device)
        size = ops.CPU_LOGITS_CHUNK if device.type == "cpu" else ops.LOGITS_CHUNK
        for start in range(0, len(where), size):
            chunk = slice(start, start + size)
            with torch.no_grad():
                scores = decoder.logits(hidden[chunk])
                logprobs[chunk], lse = scoring.logprobs(scores, targets[chunk], temperatures[chunk])
                if self._loss is None:
                    value += logprobs[chunk].sum()
                    continue
            new = logprobs[chunk].requires_grad_()
            sum_ = token_losses(self._loss, new, old[chunk], advantages[chunk], self._bounds).sum()
            (to_new,) = torch.autograd.grad(sum_, new)
            with torch.no_grad():
                to_scores = scoring.logit_gradients(scores, lse, targets[chunk], temperatures[chunk], to_new, hidden.dtype)
                torch.mm(to_scores, decoder.unembedding, out=to_hidden[chunk])
                value += sum_.detach()
        # A matrix that no token used, such as an expert's, has no gradient; here that is zero.
        grads: Sequence[Tensor] = ()
        if self._weights:
            grads = torch.autograd.grad(hidden, self._weights, to_hidden, allow_unused=True, materialize_grads=True)
        largest = [torch.linalg.vector_norm(grad, torch.inf, dtype=torch.float32) for grad in grads]
        self._logprobs.append((spans, sampled_T, logprobs.detach()))
        return grads, torch.stack([value, *largest])


_Span = tuple[int, int, int]  # a sequence, and from which to which of its tokens


def _halves(trees: list[Node]) -> list[list[Node]] | None:
    """A micro-batch split in two; None if it is one sequence."""
    half = len(trees) // 2
    if half:
        return [trees[:half], trees[half:]]
    parts = trees[0].split()
    return parts and [[part] for part in parts]


def token_losses(
    loss: LossName, logprobs: Tensor, sampled: Tensor, advantages: Tensor, bounds: Bounds | None = None
) -> Tensor:
    """The loss of each action token, by the definitions of ``peergrad.learn.losses``."""
    if loss == "cross_entropy":
        return -advantages * logprobs
    ratios = torch.exp(logprobs - sampled)
    if loss == "importance_sampling":
        return -ratios * advantages
    clipped = ratios.clamp(*(bounds or RATIO_BOUNDS[loss]))
    if loss == "ppo":
        return -torch.minimum(ratios * advantages, clipped * advantages)
    return -clipped.detach() * advantages * logprobs
